"""How small can a recommender on a phone be, and what does it lose?

Compare what a device must store for the items with how good its recommendations are.

LightFR stores an item as some bits, LocALS as some float32 numbers. At 64 bits per item, the space
of two numbers, LightFR ranks far better than LocALS, and a phone ranks with XOR and bit counts.
With four times the space LocALS is better. A model on the dotted line has learned nothing.
"""

import matplotlib.pyplot as plt

from fedrecsk import LightFR, LocALS, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout

X = make_interactions(n_users=800, n_items=400, n_interactions=40_000, random_state=0)
X_train, X_test = UserHoldout(test_size=0.2, random_state=0).train_test_split(X)


def ndcg(model):
    return evaluate_ranking(model.fit(X_train), X_test, metrics="ndcg", k=10)["ndcg@10"]


models = {
    "LightFR": [LightFR(n_bits=n, random_state=0) for n in (64, 128)],
    "LocALS": [LocALS(n_factors=n, random_state=0) for n in (1, 2, 4, 8, 16)],
}
_, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for name, sizes in models.items():
    quality = [ndcg(model) for model in sizes]
    # LightFR's item_codes_ are packed bits, and its item_factors_ the same as signs.
    items = [getattr(model, "item_codes_", model.item_factors_) for model in sizes]
    kilobytes = [array.nbytes / 1e3 for array in items]
    for size, score in zip(kilobytes, quality, strict=True):
        print(f"{name:8} {size:5.1f} kB of items, NDCG@10 {score:.3f}")
    ax.plot(kilobytes, quality, "o-", label=name)
popular = ndcg(Popularity())
print(f"popularity: {popular:.3f}")
ax.axhline(popular, color="0.5", linestyle=":", label="popularity")
ax.set_xscale("log", base=2)
ax.xaxis.set_major_formatter("{x:g}")
ax.set(xlabel="kB of items on the device", ylabel="NDCG@10", ylim=(0, None))
ax.legend(loc="lower right")
plt.show()
