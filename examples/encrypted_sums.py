"""What does homomorphic encryption cost, and how far do small updates help?

Two clients a round are really encrypted, the others' bytes are counted. Runs offline; needs
``pip install 'fedrecsk[privacy]'``.
"""

from fedrecsk import CoLR, Federation, FedMF
from fedrecsk.datasets import make_interactions
from fedrecsk.privacy import CKKS
from fedrecsk.simulation import estimate_training_time

X = make_interactions(n_users=300, n_items=1000, n_interactions=12_000, random_state=0)

for scheme in (None, CKKS()):
    for model in (FedMF(64), CoLR(4, n_factors=64)):
        model.set_params(n_rounds=20, federation=Federation(secure_aggregation=scheme))
        model.set_params(random_state=0).fit(X)
        ledger, minutes = model.communication_, estimate_training_time(model, "4g").minutes
        line = (
            f"{type(model).__name__:5} {'CKKS' if scheme else 'plaintext':9} "
            f"{ledger.bytes_up / 1e6:7.1f} MB up, {ledger.bytes_down / 1e6:7.1f} MB down, "
            f"{minutes:.1f} minutes on 4G"
        )
        if scheme:
            report = model.encryption_
            line += f"; {report.client_seconds:.3f} s a client, error {report.max_error:.0e}"
        print(line)
