"""Which recommender for these data?

Cross-validate federated and centralised models on the same folds, and compare quality and cost.

Each dot is a model, filled if it is federated; further right is better in both panels. BiasOnly
and Popularity are the baselines: a model that does not beat them has learned nothing about tastes.
The tables also list the megabytes a client sends and receives; a cell is empty where a number has
no meaning, such as the RMSE of a ranking model.
"""

import matplotlib.pyplot as plt

from fedrecsk import BiasOnly, FedEASE, FedEB, ImplicitALS, LocALS, Popularity, RFRec, SVDpp
from fedrecsk.datasets import make_interactions, make_ratings
from fedrecsk.model_selection import compare

X, y = make_ratings(n_users=400, n_items=250, n_ratings=20_000, random_state=0)
models = [
    FedEB(client_fraction=0.1, random_state=0),
    RFRec(random_state=0),
    SVDpp(random_state=0),
    BiasOnly(),
]
ratings = compare(models, X, y, cv=3, scoring="rmse")
print(ratings)

# %%
# The same for rankings, on data that have no ratings:
X = make_interactions(n_users=400, n_items=250, n_interactions=16_000, random_state=0)
models = [
    LocALS(random_state=0),
    FedEASE(),
    ImplicitALS(n_factors=20, reg=10, alpha=2, random_state=0),
    Popularity(),
]
rankings = compare(models, X, cv=3, scoring="ndcg@10")
print(rankings)

# %%
# Draw both:
_, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for ax, comparison, column in zip(axes, (ratings, rankings), ("rmse", "ndcg@10"), strict=True):
    table = comparison.summary.iloc[::-1]
    for name, mean, rounds in zip(
        table["estimator"], table[f"mean_{column}"], table["mean_rounds"], strict=True
    ):
        federated = rounds > 0
        ax.plot(mean, name, "o", ms=10, color="#0072B2", fillstyle="full" if federated else "none")
    ax.grid(axis="x", color="0.9")
    ax.margins(x=0.1, y=0.2)
    ax.locator_params(axis="x", nbins=4)
axes[0].set(xlabel="RMSE of ratings (axis reversed)")
axes[0].invert_xaxis()
axes[1].set(xlabel="NDCG@10 of rankings")
axes[1].plot([], [], "o", ms=8, color="#0072B2", label="federated")
axes[1].plot([], [], "o", ms=8, color="#0072B2", fillstyle="none", label="centralised")
axes[1].legend(loc="lower right")
plt.show()
