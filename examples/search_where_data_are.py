"""How do I choose hyperparameters without collecting data?

Clients evaluate all candidates on rows they hold out and upload sums. The server keeps the best
third after 10% and 30% of the rounds, and one candidate after 75%, which then learns from all rows.
Compare the result with the default parameters on rows that were not used, and with the bytes of
fitting every candidate.
"""

from sklearn.base import clone

from fedrecsk import LocALS
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout
from fedrecsk.selection import FederatedSearch

X = make_interactions(n_users=400, n_items=300, n_interactions=16_000, random_state=0)
X_train, X_test = UserHoldout(test_size=0.2, random_state=0).train_test_split(X)
grid = {
    "reg_user": [3.0, 10.0, 30.0],
    "reg_item": [3.0, 10.0, 30.0],
    "alpha": [0.5, 1.0, 2.0],
}
method = LocALS(n_factors=8, random_state=0)
search = FederatedSearch(method, grid, random_state=0).fit(X_train)
default = clone(method).fit(X_train)

for name, model in (("default", default), ("search", search)):
    ndcg = evaluate_ranking(model, X_test, metrics="ndcg", k=10)["ndcg@10"]
    ledger = model.communication_
    print(f"{name}: NDCG@10 {ndcg:.3f}, {(ledger.bytes_up + ledger.bytes_down) / 1e6:.0f} MB")
print("found:", search.best_params_)
print("candidates at each cut:", search.n_candidates_, "after rounds:", search.n_resources_)
