"""How accurate can a model be within a budget of bytes?

One grid search for the best NDCG@10 that a client can have for 20 kB of uploads.

Communication is a metric among others: scorers of bytes stand beside ranking metrics, and
`best_within` picks the winner. Runs offline.
"""

from sklearn.model_selection import GridSearchCV

from fedrecsk import LocALS
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import best_within, bytes_up_scorer, make_ranking_scorer
from fedrecsk.model_selection import UserKFold

X = make_interactions(n_users=500, n_items=400, n_interactions=20_000, random_state=0)
ranking = make_ranking_scorer(["ndcg", "hit_rate"], k=10)
search = GridSearchCV(
    LocALS(random_state=0),
    {"n_factors": [4, 8, 16, 32], "n_rounds": [3, 10]},
    cv=UserKFold(3, shuffle=True, random_state=0),
    scoring={**ranking, "bytes_up": bytes_up_scorer},
    refit=best_within(20e3, metric="ndcg@10"),
).fit(X)

results = search.cv_results_
for i, params in enumerate(results["params"]):
    ndcg, hits = results["mean_test_ndcg@10"][i], results["mean_test_hit_rate@10"][i]
    kilobytes = -results["mean_test_bytes_up"][i] / 1e3
    print(f"NDCG@10 {ndcg:.3f}  HR@10 {hits:.3f}  {kilobytes:5.1f} kB up a client  {params}")
print("Best within 20 kB:", search.best_params_)
