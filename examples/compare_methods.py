"""Which recommender for these ratings?

Quality and cost of several, on the same folds.

Rating and ranking models, federated and centralised, stand side by side; a cell is empty where a
number has no meaning. Runs offline.
"""

from fedrecsk import BiasOnly, ImplicitALS, LocALS, Popularity, RFRec
from fedrecsk.datasets import make_ratings
from fedrecsk.model_selection import compare

X, y = make_ratings(n_users=300, n_items=200, n_ratings=12_000, random_state=0)
comparison = compare(
    {
        "RFRec": RFRec(n_factors=8, n_rounds=30, random_state=0),
        "LocALS": LocALS(n_factors=8, random_state=0),
        "implicit ALS": ImplicitALS(n_factors=8, regularization=10, alpha=2, random_state=0),
        "popularity": Popularity(),
        "biases": BiasOnly(),
    },
    X,
    y,
    cv=3,
)
print(comparison)
