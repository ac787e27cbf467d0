"""How many rounds are enough?

Training loss by round of three solvers of the same problem. Runs offline; needs
``pip install 'fedrecsk[plot]'``.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedrecsk import GlobSGD, LocALS, LocSGD
from fedrecsk.datasets import make_interactions
from fedrecsk.plotting import ConvergenceDisplay

X = make_interactions(n_users=400, n_items=300, n_interactions=16_000, random_state=0)
models = {}
for Method in (LocALS, LocSGD, GlobSGD):
    model = Method(n_factors=8, n_rounds=30, random_state=0).fit(X)
    loss = np.array(model.loss_curve_)
    enough = np.flatnonzero(loss <= 1.01 * loss.min())[0] + 1
    print(f"{Method.__name__}: within 1 % of its lowest loss after {enough} rounds")
    models[Method.__name__] = model
ConvergenceDisplay.from_results(models)
plt.show()
