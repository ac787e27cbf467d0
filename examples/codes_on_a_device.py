"""How small can a recommender on a phone be, and what does it lose?

LightFR keeps an item as 64 bits; the others as 20 numbers. Runs offline.
"""

from fedrecsk import ImplicitALS, LightFR, LocALS, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import LeaveLastOut

X = make_interactions(n_users=800, n_items=400, n_interactions=40_000, random_state=0)
train, test = next(LeaveLastOut().split(X))

for model in (
    Popularity(),
    LightFR(random_state=0),
    LocALS(n_rounds=10, random_state=0),
    ImplicitALS(20, random_state=0),
):
    model.fit(X[train])
    ndcg = evaluate_ranking(model, X[test], metrics="ndcg", k=10)["ndcg@10"]
    items = getattr(model, "item_codes_", getattr(model, "item_factors_", None))
    size = "" if items is None else f", {items.nbytes / 1000:.1f} kB of items on the device"
    print(f"{type(model).__name__:12} NDCG@10 {ndcg:.3f}{size}")
