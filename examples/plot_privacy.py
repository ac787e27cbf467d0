"""What does local differential privacy cost in accuracy?

RFRec's clients clip each number that they upload and add Laplace noise. The axis has what one
client loses in all, over every number of every round, which is far more than the epsilon of a
single number that papers quote. Runs offline; needs ``pip install 'fedrecsk[plot]'``.
"""

import matplotlib.pyplot as plt

from fedrecsk import RFRec
from fedrecsk.datasets import make_ratings
from fedrecsk.plotting import PrivacyDisplay
from fedrecsk.privacy import LaplaceMechanism

X, y = make_ratings(n_users=300, n_items=200, n_ratings=9000, random_state=0)
mechanisms = {"no noise": None}
mechanisms |= {
    f"epsilon {epsilon:g} per number": LaplaceMechanism(clip=0.2, scale=0.4 / epsilon)
    for epsilon in (0.03, 0.1, 0.3, 1.0, 10.0)
}
display = PrivacyDisplay.from_estimator(
    RFRec(n_factors=8, n_rounds=30, rating_scale=(1, 5), items=range(200), random_state=0),
    X,
    y,
    param_range=mechanisms,
    score="rmse",
    compare_params={"cv": 3},
)
for epsilon, rmse, _ in zip(*display.curves["RFRec"], strict=True):
    print(f"total epsilon {epsilon:12,.0f}: RMSE {rmse:.3f}")
plt.show()
