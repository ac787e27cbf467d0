"""What does homomorphic encryption cost, and how far do small updates help?

Bytes and minutes of FedMF and CoLR in plaintext and under CKKS.

A ciphertext is larger than the numbers in it, and every client must download the encrypted sum and
take the server's step itself: encrypted, FedMF sends 8 times and receives 30 times as much. CoLR
uploads low-rank changes, and sends less under encryption than FedMF does in plaintext. Two clients
per round are really encrypted; the bytes of the others are counted. Needs the extra ``privacy``.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedrecsk import CoLR, Federation, FedMF
from fedrecsk.datasets import make_interactions
from fedrecsk.privacy import CKKS
from fedrecsk.protocol import estimate_training_time

X = make_interactions(n_users=300, n_items=1000, n_interactions=12_000, random_state=0)

sent, received = {}, {}
for scheme in (None, CKKS()):
    for model in (FedMF(64), CoLR(4, n_factors=64)):
        model.set_params(n_rounds=20, federation=Federation(secure_aggregation=scheme))
        model.set_params(random_state=0).fit(X)
        ledger, minutes = model.communication_, estimate_training_time(model, "4g").minutes
        name = f"{type(model).__name__}, {'CKKS' if scheme else 'plaintext'}"
        sent[name], received[name] = ledger.bytes_up / 300 / 1e6, ledger.bytes_down / 300 / 1e6
        line = f"{name:16} {sent[name]:5.2f} MB up, {received[name]:6.2f} MB down per client"
        if scheme:
            report = model.encryption_
            line += f"; {report.client_seconds:.3f} s per client and round"
        print(f"{line}; {minutes:.1f} minutes on 4G")

# %%
_, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
place = np.arange(len(sent))
ax.barh(place - 0.2, list(sent.values()), 0.38, color="#0072B2", label="sends")
ax.barh(place + 0.2, list(received.values()), 0.38, color="#56B4E9", label="receives")
ax.set_yticks(place, list(sent))
ax.invert_yaxis()
ax.set(xscale="log", xlabel="MB per client in 20 rounds (logarithmic)")
ax.legend()
plt.show()
