"""How do I search hyperparameters and the federation's parameters?

With scikit-learn's GridSearchCV.

Which is worse for RFRec, losing half of the uploads or half of the clients? Runs offline.
"""

from sklearn.model_selection import GridSearchCV, KFold

from fedrecsk import Federation, RFRec
from fedrecsk.datasets import make_ratings

X, y = make_ratings(n_users=300, n_items=200, n_ratings=12_000, random_state=0)
search = GridSearchCV(
    RFRec(n_rounds=60, random_state=0, federation=Federation(dropout=0.5)),
    {"federation__dropout_mode": ["upload", "offline"], "reg_user": [0.02, 0.04, 0.08]},
    scoring="neg_root_mean_squared_error",
    cv=KFold(3, shuffle=True, random_state=0),
).fit(X, y)

results = search.cv_results_
for params, score in zip(results["params"], results["mean_test_score"], strict=True):
    print(f"RMSE {-score:.4f}  {params}")
print("Best:", search.best_params_)
