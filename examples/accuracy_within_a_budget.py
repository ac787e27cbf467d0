"""How accurate can a model be within a budget of bytes?

Search for the best NDCG@10 within 20 kB of uploads per client.

Scorers of bytes stand beside ranking metrics, and `best_within` picks the winner. Each point is
one candidate of the search. Points to the right of the dashed line cost more than the budget; the
star is the best to its left. The most accurate candidate costs nearly four times the budget and
gains little.
"""

import matplotlib.pyplot as plt
from sklearn.model_selection import GridSearchCV

from fedrecsk import LocALS
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import best_within, bytes_up_scorer, make_ranking_scorer
from fedrecsk.model_selection import UserKFold

BUDGET = 20e3
X = make_interactions(n_users=500, n_items=400, n_interactions=20_000, random_state=0)
ranking = make_ranking_scorer(["ndcg", "hit_rate"], k=10)
search = GridSearchCV(
    LocALS(random_state=0),
    {"n_factors": [4, 8, 16, 32], "n_rounds": [3, 5, 10]},
    cv=UserKFold(3, shuffle=True, random_state=0),
    scoring={**ranking, "bytes_up": bytes_up_scorer},
    refit=best_within(BUDGET, metric="ndcg@10"),
).fit(X)
print("Best within 20 kB:", search.best_params_)

# %%
results = search.cv_results_
kilobytes = -results["mean_test_bytes_up"] / 1e3  # scorers of costs are negative: more is better
ndcg = results["mean_test_ndcg@10"]
n_factors = results["param_n_factors"]
_, ax = plt.subplots(figsize=(7, 4.3), layout="constrained")
for width in (4, 8, 16, 32):
    one = n_factors == width
    ax.plot(kilobytes[one], ndcg[one], "o-", label=f"{width} factors; 3, 5, 10 rounds")
best = search.best_index_
ax.plot(kilobytes[best], ndcg[best], "*", ms=20, color="k", label="chosen")
ax.axvline(BUDGET / 1e3, color="0.4", linestyle="--", label="budget")
ax.set(xlabel="kB that a client sends in all", ylabel="NDCG@10")
ax.legend()
plt.show()
