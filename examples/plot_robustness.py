"""What if clients drop out, and what if some of them lie?

Draw quality against the share of lost uploads, and under two attacks.

On the left, 50% or 90% of the uploads are lost, each round anew: LocALS hardly suffers. On the
right, 10% of the clients attack. An attacker chooses the strength of its attack, so each point is
the worst of several strengths. The next example shows what helps.
"""

import matplotlib.pyplot as plt

from fedrecsk import GlobSGD, LocALS
from fedrecsk.attacks import RandomUpload, SignFlip
from fedrecsk.datasets import make_interactions
from fedrecsk.plotting import RobustnessDisplay

X = make_interactions(n_users=400, n_items=200, n_interactions=16_000, random_state=0)
models = {
    "LocALS": LocALS(n_factors=8, random_state=0),
    "GlobSGD": GlobSGD(n_factors=8, n_rounds=15, random_state=0),
}
_, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
RobustnessDisplay.from_estimator(
    models,
    X,
    param_name="federation__dropout",
    param_range=(0.0, 0.5, 0.9),
    compare_params={"cv": 3},
    ax=left,
)
display = RobustnessDisplay.from_estimator(
    models,
    X,
    param_name="federation__adversary",
    param_range={
        "no attack": None,
        "noise": [RandomUpload(strength=s) for s in (0.1, 1.0, 10.0)],
        "sign flip": [SignFlip(strength=s) for s in (1.0, 5.0, 25.0)],
    },
    compare_params={"cv": 3},
    ax=right,
)
right.set(ylabel=None, ylim=(0, None))
for name, (attacks, ndcg, _) in display.curves.items():
    shown = zip(attacks, ndcg, strict=True)
    print(name, ", ".join(f"{attack}: NDCG@10 {value:.3f}" for attack, value in shown))
for (name, attack), chosen in display.worst_.items():
    if attack != "no attack":
        print(f"The worst {attack} for {name}: {chosen['variant']}")
plt.show()
