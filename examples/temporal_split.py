"""Does a random split flatter a recommender?

It does where the world changes: compare with a split in time.

The generated interactions drift: items rise and fall. Runs offline.
"""

from fedrecsk import ImplicitALS, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import LeaveLastOut, TemporalHoldout, UserHoldout

X = make_interactions(drift=1.0, random_state=0)
splits = {
    "random, a fifth of each user": UserHoldout(test_size=0.2, random_state=0),
    "the last fifth of each user": TemporalHoldout(test_size=0.2, per_user=True),
    "the last fifth of all": TemporalHoldout(test_size=0.2),
    "the last one of each user": LeaveLastOut(),
}
models = {
    "popularity": Popularity(),
    "implicit ALS": ImplicitALS(n_factors=20, regularization=10, alpha=2, random_state=0),
}
for split_name, splitter in splits.items():
    X_train, X_test = splitter.train_test_split(X)
    for name, model in models.items():
        scores = evaluate_ranking(model.fit(X_train), X_test, metrics=["ndcg", "hit_rate"], k=10)
        shown = "  ".join(f"{metric} {value:.3f}" for metric, value in scores.items())
        print(f"{split_name:>28}  {name:>12}  {shown}")
