"""How many rounds are enough?

Compare round by round how fast three solvers of the same problem converge.

On the left, the training loss; on the right, the ranking of held-out items, which matters more.
LocALS converges after about five rounds and GlobSGD, whose server takes gradient steps, after
twenty. LocSGD is still improving after thirty. Each round costs every client a download and an
upload.
"""

import warnings

import matplotlib.pyplot as plt
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import GlobSGD, LocALS, LocSGD
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout
from fedrecsk.plotting import ConvergenceDisplay

X = make_interactions(n_users=400, n_items=300, n_interactions=16_000, random_state=0)
X_train, X_test = UserHoldout(test_size=0.2, random_state=0).train_test_split(X)

# The first rounds are meant to be worse than popularity.
warnings.filterwarnings("ignore", category=ConvergenceWarning)
checkpoints = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30)
models, ndcg = {}, {}
for Method in (LocALS, GlobSGD, LocSGD):
    name = Method.__name__
    models[name] = model = Method(n_factors=8, warm_start=True, random_state=0)
    ndcg[name] = []
    for n_rounds in checkpoints:
        model.set_params(n_rounds=n_rounds).fit(X_train)
        ndcg[name].append(evaluate_ranking(model, X_test, metrics="ndcg", k=10)["ndcg@10"])
    print(f"{name}: NDCG@10 {ndcg[name][3]:.3f} after 5 rounds, {ndcg[name][-1]:.3f} after 30")

# %%
_, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
ConvergenceDisplay.from_results(models, ax=left)
for line in left.lines:
    right.plot(checkpoints, ndcg[line.get_label()], "o-", color=line.get_color())
right.set(xlabel="Rounds", ylabel="NDCG@10 on held-out items")
plt.show()
