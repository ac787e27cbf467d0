"""How much accuracy does a megabyte buy?

Cross-validate methods and draw them by what a client sends and receives.

Further up is more accurate, further left is cheaper. The line joins the Pareto front; a method
below it costs more than another that is at least as good. Horizontal lines are centralised models,
which transmit nothing. Wider models cost more, and eight factors are enough here. With int8 a
client uploads one byte per number instead of four, which halves its uploads at 16 factors and
costs no accuracy.
"""

import matplotlib.pyplot as plt

from fedrecsk import FedEASE, Federation, GlobSGD, ImplicitALS, LocALS, Popularity
from fedrecsk.compression import Quantization
from fedrecsk.datasets import make_interactions
from fedrecsk.model_selection import compare
from fedrecsk.plotting import CostDisplay

X = make_interactions(n_users=400, n_items=300, n_interactions=16_000, random_state=0)
models = {f"LocALS, d={d}": LocALS(n_factors=d, random_state=0) for d in (2, 4, 8, 16)}
models |= {
    "LocALS, d=16, int8": LocALS(
        n_factors=16, federation=Federation(compression=Quantization("int8")), random_state=0
    ),
    "GlobSGD, d=8": GlobSGD(n_factors=8, random_state=0),
    "FedEASE": FedEASE(),
    "implicit ALS": ImplicitALS(n_factors=16, reg=10, alpha=2, random_state=0),
    "popularity": Popularity(),
}
display = CostDisplay.from_results(compare(models, X, cv=3))
print("On the Pareto front, the cheapest first:", ", ".join(display.pareto_))
plt.show()
