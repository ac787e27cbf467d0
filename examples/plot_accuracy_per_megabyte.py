"""How much accuracy does a megabyte buy?

Every method is cross-validated and drawn by what a client sends and receives. Off the Pareto front
a method costs more than another that is at least as good; the lines are centralised models,
which collect the data instead. Runs offline; needs ``pip install 'fedrecsk[plot]'``.
"""

import matplotlib.pyplot as plt

from fedrecsk import GlobSGD, ImplicitALS, LocALS, LocSGD, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.model_selection import compare
from fedrecsk.plotting import CostDisplay

X = make_interactions(n_users=400, n_items=300, n_interactions=16_000, random_state=0)
models = {f"LocALS, d={d}": LocALS(n_factors=d, random_state=0) for d in (2, 4, 8, 16)}
models |= {
    "LocSGD": LocSGD(n_factors=8, random_state=0),
    "GlobSGD": GlobSGD(n_factors=8, random_state=0),
    "implicit ALS": ImplicitALS(n_factors=8, regularization=10, alpha=2, random_state=0),
    "popularity": Popularity(),
}
display = CostDisplay.from_results(compare(models, X, cv=3))
print("On the Pareto front, the cheapest first:", ", ".join(display.pareto_))
plt.show()
