"""What does a curious server learn from a single upload?

The server keeps to the protocol, and inverts what clients send. Chance is the best guess that reads
no upload and is the same for every client. Runs offline; needs ``pip install 'fedrecsk[privacy]'``.
"""

from fedrecsk import CoLR, Federation, LightFR, LocALS, RFRec
from fedrecsk.attacks import measure_leak
from fedrecsk.datasets import make_ratings
from fedrecsk.privacy import CKKS, LaplaceMechanism

X, y = make_ratings(n_users=80, n_items=60, n_ratings=1500, random_state=0)

noise = Federation(local_dp=LaplaceMechanism(clip=0.2, scale=0.4))
sums = Federation(secure_aggregation=CKKS())
for name, model in {
    "LocALS, plaintext": LocALS(8, reg_user=1.0),
    "LocALS, encrypted sums": LocALS(8, reg_user=1.0, upload="all", federation=sums),
    "LightFR, plaintext": LightFR(),
    "CoLR, plaintext": CoLR(16, n_factors=16),
    "RFRec, plaintext": RFRec(8, rating_scale=(1, 5)),
    "RFRec, local noise": RFRec(8, rating_scale=(1, 5), items=range(60), federation=noise),
}.items():
    report = measure_leak(model.set_params(random_state=0), X, y)
    print(
        f"{name:23} user vectors {report.vectors:4.0%}, directions {report.directions:4.0%}, "
        f"who has what {report.interactions:4.0%} (chance {report.chance['interactions']:.0%})"
    )
