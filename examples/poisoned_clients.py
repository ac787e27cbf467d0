"""What do dishonest clients do to a model, and what helps?

Attack LocALS with 10% of its clients, with and without a robust aggregator.

On the left, the ranking quality of honest users. Noise ruins it, and ``NormClipping``, which
shortens uploads that are longer than usual, restores most of it. On the right, the share of honest
users who see a promoted item among their ten, although almost no user has chosen it: clipping
halves the success of that attack and does not prevent it. Without an attack the aggregator costs a
little quality.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone

from fedrecsk import Federation, LocALS
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import Promotion, RandomUpload, SignFlip
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking, exposure
from fedrecsk.model_selection import LeaveLastOut

X = make_interactions(n_users=600, n_items=300, n_interactions=20_000, random_state=0)
train, test = next(LeaveLastOut(ties="row_order").split(X))
cold = min(np.unique(X[train, 1]), key=lambda item: (X[train, 1] == item).sum())

attacks = {
    "no attack": None,
    "noise": RandomUpload(strength=1.0),
    "sign flip": SignFlip(),
    "promotion": Promotion(item=cold),
}
defences = {"plain sum": None, "NormClipping": NormClipping()}
ndcg, reach = {name: [] for name in defences}, {name: [] for name in defences}
for attack, adversary in attacks.items():
    for defence, aggregator in defences.items():
        model = clone(LocALS(random_state=0)).set_params(
            federation=Federation(adversary=adversary, aggregator=aggregator)
        )
        model.fit(X[train])
        bad = getattr(model, "compromised_clients_", [])
        honest = test[~np.isin(X[test, 0], bad)]
        score = evaluate_ranking(model, X[honest], metrics="ndcg", k=10)["ndcg@10"]
        ndcg[defence].append(score)
        reach[defence].append(exposure(model, cold, np.setdiff1d(X[:, 0], bad)))
        print(f"{attack:10} {defence:13} NDCG@10 {score:.3f}, exposure {reach[defence][-1]:.2f}")

# %%
_, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
place = np.arange(len(attacks))
for ax, numbers, label in zip(
    axes, (ndcg, reach), ("NDCG@10 of honest users", "Share who see the promoted item"), strict=True
):
    for shift, color, (name, values) in zip(
        (-0.2, 0.2), ("0.7", "#0072B2"), numbers.items(), strict=True
    ):
        ax.bar(place + shift, values, 0.38, color=color, label=name)
    ax.set_xticks(place, list(attacks))
    ax.set(xlabel="Attack", ylabel=label)
axes[1].legend(loc="upper left")
plt.show()
