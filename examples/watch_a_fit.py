"""How do I follow a fit, and stop it early?

With scikit-learn's callbacks, and with ``early_stopping``.

The training error falls in every round. Each client also holds out 10% of its ratings and reports
the error on them, which hardly improves after about fifty rounds. The fit stops when it has not
improved for ten rounds, and keeps the model of the best round. For a progress bar, install
the extra ``progress`` and pass ``sklearn.callback.ProgressBar()`` to ``set_callbacks``.
"""

import matplotlib.pyplot as plt
from sklearn.callback import ScoringMonitor

from fedrecsk import RFRec
from fedrecsk.datasets import make_ratings

X, y = make_ratings(n_users=300, n_items=200, n_ratings=12_000, random_state=0)

scoring = "neg_root_mean_squared_error"
monitor = ScoringMonitor(scoring=scoring)
model = RFRec(n_rounds=300, early_stopping=True, random_state=0).set_callbacks(monitor).fit(X, y)
print(f"{model.n_rounds_} of 300 rounds; the best was round {model.best_round_}")

training = [-row[scoring] for row in monitor.get_logs().data if row["task_name"] == "round"]
held_out = [row["validation_loss"] ** 0.5 for row in model.history_]
for number in range(0, model.n_rounds_, 20):
    print(f"round {number:2}: RMSE {training[number]:.3f}, held out {held_out[number]:.3f}")

# %%
_, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.plot(training, color="#0072B2", label="the clients' training ratings")
ax.plot(held_out, color="#D55E00", label="ratings held out by the clients")
ax.axvline(model.best_round_, color="0.5", linestyle=":", label="best round, which is kept")
ax.set(xlabel="Round", ylabel="RMSE (stars)")
ax.legend()
plt.show()
