"""What does keeping the data at home cost?

Federated and centralised ALS on one split.

Runs offline on generated interactions.
"""

from fedrecsk import ImplicitALS, LocALS, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout

X = make_interactions(random_state=0)
X_train, X_test = UserHoldout(test_size=0.2, random_state=0).train_test_split(X)
models = {
    "popularity": Popularity(),
    "implicit ALS": ImplicitALS(n_factors=20, regularization=10, alpha=2, random_state=0),
    "LocALS": LocALS(n_factors=20, n_rounds=10, random_state=0),
}
for name, model in models.items():
    model.fit(X_train)
    scores = evaluate_ranking(model, X_test, metrics=["precision", "ndcg", "hit_rate"], k=10)
    shown = "  ".join(f"{metric} {value:.3f}" for metric, value in scores.items())
    print(f"{name:>12}  {shown}")
print(models["LocALS"].communication_)
