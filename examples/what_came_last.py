"""Do recommenders gain from recency?

Let user histories fade, and pairs of items with their distance in them. In these generated data
tastes drift slowly, so half-lives are long and gains small; in MovieLens-100k they are large
(``python -m benchmarks.time scores``). The half-life of 32 was chosen on these test rows, so the
gains here are slightly too large; a search chooses on validation rows (:doc:`/user_guide/time`).

Clients send as many bytes as without half-lives, in the same round; only the weights differ.
"""

import matplotlib.pyplot as plt

from fedrecsk import FedEASE, FedItemKNN, FedSpectral, LocALS
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import LeaveLastOut

X = make_interactions(n_users=600, n_items=300, n_interactions=30_000, drift=1.0, random_state=0)
X_train, X_test = LeaveLastOut(ties="row_order").train_test_split(X)
fading = {"pair_half_life": 32, "history_half_life": 32}
models = {
    "FedEASE": (FedEASE(100.0), fading),
    "FedItemKNN": (FedItemKNN(), fading),
    "FedSpectral": (FedSpectral(32), {"history_half_life": 32}),
    "LocALS": (LocALS(16, random_state=0), {"history_half_life": 32}),
}
ndcg = {"without time": [], "with half-lives": []}
for name, (model, half_lives) in models.items():
    for label, parameters in zip(ndcg, ({}, half_lives), strict=True):
        model.set_params(**parameters).fit(X_train)
        score = evaluate_ranking(model, X_test, metrics="ndcg", k=10)["ndcg@10"]
        ndcg[label].append(score)
        print(f"{name:>12}, {label:<16} NDCG@10 {score:.3f}")

# %%
_, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
for shift, (label, values) in zip((-0.2, 0.2), ndcg.items(), strict=True):
    places = [place + shift for place in range(len(models))]
    ax.bar_label(ax.bar(places, values, 0.38, label=label), fmt="{:.2f}")
ax.set_xticks(range(len(models)), list(models))
ax.set_ylabel("NDCG@10 of each user's last row")
ax.legend()
plt.show()
