"""What do dishonest clients do to a model?

What a tenth of them does, and what helps against it.

Accuracy is that of the honest users; exposure is the share of them who get a promoted item among
their ten. Runs offline.
"""

import numpy as np
from sklearn.base import clone

from fedrecsk import Federation, LocALS
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import Promotion, RandomUpload, SignFlip
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking, exposure
from fedrecsk.model_selection import LeaveLastOut

X = make_interactions(n_users=600, n_items=300, n_interactions=20_000, random_state=0)
train, test = next(LeaveLastOut().split(X))
cold = min(np.unique(X[train, 1]), key=lambda item: (X[train, 1] == item).sum())

attacks = {
    "nobody": None,
    "noise": RandomUpload(strength=1.0),
    "sign flip": SignFlip(),
    "promotion": Promotion(item=cold),
}
for name, adversary in attacks.items():
    for aggregator in (None, NormClipping()):
        model = clone(LocALS(random_state=0)).set_params(
            federation=Federation(adversary=adversary, aggregator=aggregator)
        )
        model.fit(X[train])
        bad = getattr(model, "compromised_clients_", [])
        honest = test[~np.isin(X[test, 0], bad)]
        ndcg = evaluate_ranking(model, X[honest], metrics="ndcg", k=10)["ndcg@10"]
        reach = exposure(model, cold, np.setdiff1d(X[:, 0], bad))
        print(f"{name:10} {aggregator!s:15} NDCG@10 {ndcg:.3f}, exposure {reach:.2f}")
