"""How do I put the two sides on different machines?

Drive the server and three devices yourself, as a deployment does.

Three shops want better recommendations for their own customers and may not share their data. Left:
what each shop receives and sends, message by message. The number of items decides the size, not the
number of customers. Right: with the others' help, each shop's recommendations are better than those
of a model of its own data alone. :doc:`/user_guide/halves` explains each step.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedrecsk import LocALS
from fedrecsk.datasets import make_interactions
from fedrecsk.deployment import Device, DeviceServer
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout

X = make_interactions(n_users=240, n_items=200, n_interactions=6_000, random_state=0)
X, X_test = UserHoldout(test_size=0.2, random_state=0).train_test_split(X)
shop_of_row = X[:, 0] % 3
method = LocALS(n_factors=8, n_rounds=8, items=range(200))

server = DeviceServer.of(method)
shops = [Device(method, X[shop_of_row == k], client_id=f"shop {k}") for k in range(3)]

# Register, and exchange what the method needs before the rounds.
places = server.register([shop.register() for shop in shops])
for shop, place in zip(shops, places, strict=True):
    shop.place(place)
if server.has_setup:
    message = server.setup_message()
    server.close_setup([answer for shop in shops for answer in shop.setup(message)])
announcement = server.send_announcement()
for shop in shops:
    shop.announce(announcement)

# Rounds: down goes the message, up come messages of the clients; the loss stays in the shop.
for number in range(method.n_rounds):
    participation, message = server.open_round()
    uploads = []
    for shop in shops:
        shop.receive(number, message)
        messages, loss = shop.update(number)
        uploads += messages
    server.close_round(uploads)

# Each shop gets a fitted estimator that knows its own customers only.
final = server.send_final()
together = [shop.fitted(final, server.round) for shop in shops]
alone = [LocALS(8, random_state=0).fit(X[shop_of_row == k]) for k in range(3)]
ndcg = {"alone": [], "together": []}
for k in range(3):
    own = X_test[X_test[:, 0] % 3 == k]
    for name, models in (("alone", alone), ("together", together)):
        score = evaluate_ranking(models[k], own, metrics="ndcg", k=10)["ndcg@10"]
        ndcg[name].append(score)
        print(f"shop {k} {name}: NDCG@10 {score:.3f}")

# %%
ledger = server.ledger.to_frame()
_, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
steps = [
    f"round {row.round + 1}" if row.phase == "round" else row.phase for row in ledger.itertuples()
]
left.barh(steps, ledger["bytes_down"] / 3000, color="#56B4E9", label="receives")
left.barh(steps, -ledger["bytes_up"] / 3000, color="#0072B2", label="sends")
left.invert_yaxis()
left.set_xlabel("kB that a shop sends (left) and receives (right)")
left.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
place = np.arange(3)
for shift, color, (name, values) in zip((-0.2, 0.2), ("0.7", "#0072B2"), ndcg.items(), strict=True):
    right.bar(place + shift, values, 0.38, color=color, label=name)
right.set_xticks(place, ["shop 0", "shop 1", "shop 2"])
right.set_ylabel("NDCG@10 of its customers")
right.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
plt.show()
