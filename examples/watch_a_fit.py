"""How do I follow a fit, and stop it early?

Round by round, with scikit-learn's callbacks.

For a progress bar, ``pip install 'fedrecsk[progress]'`` and add ``sklearn.callback.ProgressBar()``
to the callbacks. Runs offline.
"""

from sklearn.callback import ScoringMonitor

from fedrecsk import RFRec
from fedrecsk.datasets import make_ratings

X, y = make_ratings(n_users=300, n_items=200, n_ratings=12_000, random_state=0)

scoring = "neg_root_mean_squared_error"
monitor = ScoringMonitor(scoring=scoring)
RFRec(n_rounds=30, random_state=0).set_callbacks(monitor).fit(X, y)
rounds = [row for row in monitor.get_logs().data if row["task_name"] == "round"]
for row in rounds[::10]:
    print(f"round {row['task_id']}: training RMSE {-row[scoring]:.4f}")

stopped = RFRec(n_rounds=300, early_stopping=True, random_state=0).fit(X, y)
print(f"early stopping: {stopped.n_rounds_} rounds, the best was {stopped.best_round_}")
