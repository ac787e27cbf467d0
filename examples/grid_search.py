"""How do I search hyperparameters?

With scikit-learn's GridSearchCV, over parameters of the method and of the federation.

Each square is one combination, cross-validated; darker is better. In the left grid all uploads
arrive, in the right one 90% are lost: the best NDCG@10 falls from 0.47 to 0.44, and a
penalty (``reg_user``) of 10 suits both. ``federation__dropout`` reaches into the nested
``Federation``.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV

from fedrecsk import Federation, LocALS
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import make_ranking_scorer
from fedrecsk.model_selection import UserKFold

X = make_interactions(n_users=400, n_items=300, n_interactions=16_000, random_state=0)
grid = {
    "federation__dropout": [0.0, 0.9],
    "n_factors": [4, 8, 16],
    "reg_user": [1.0, 3.0, 10.0, 30.0],
}
search = GridSearchCV(
    LocALS(n_rounds=10, federation=Federation(), random_state=0),
    grid,
    scoring=make_ranking_scorer("ndcg", k=10),
    cv=UserKFold(3, shuffle=True, random_state=0),  # a third of each user's rows
).fit(X)
print(f"Best: NDCG@10 {search.best_score_:.3f} with {search.best_params_}")

# %%
# The scores come in the order of the grid, the last parameter changing fastest:
shape = [len(values) for values in grid.values()]
scores = search.cv_results_["mean_test_score"].reshape(shape)
_, axes = plt.subplots(1, 2, figsize=(8.5, 4), layout="constrained", sharey=True)
for ax, dropout, square in zip(axes, grid["federation__dropout"], scores, strict=True):
    image = ax.imshow(square, cmap="Blues", vmin=scores.min(), vmax=scores.max())
    for (row, column), score in np.ndenumerate(square):
        dark = score > scores.mean()
        ax.text(column, row, f"{score:.3f}", ha="center", va="center", color="w" if dark else "k")
    ax.set_xticks(range(4), grid["reg_user"])
    ax.set(xlabel="reg_user", title=f"{dropout:.0%} of the uploads lost")
axes[0].set_yticks(range(3), grid["n_factors"])
axes[0].set_ylabel("n_factors")
plt.colorbar(image, ax=axes, label="NDCG@10")
plt.show()
