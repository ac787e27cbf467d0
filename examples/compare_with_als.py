"""What does keeping the data at home cost?

Federated and centralised ALS on one split, round by round.

The federated model improves with each round and is as good as the centralised one after three.
Both are far better than recommending what is popular. Keeping the data at home therefore costs
hardly any accuracy here; it costs bytes, which the last line prints.
"""

import matplotlib.pyplot as plt

from fedrecsk import ImplicitALS, LocALS, Popularity
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout

X = make_interactions(random_state=0)
X_train, X_test = UserHoldout(test_size=0.2, random_state=0).train_test_split(X)


def ndcg(model):
    return evaluate_ranking(model, X_test, metrics="ndcg", k=10)["ndcg@10"]


central = ImplicitALS(n_factors=20, reg=10, alpha=2, random_state=0).fit(X_train)
popularity = Popularity().fit(X_train)
# A warm start goes on where the last fit stopped.
federated = LocALS(n_factors=20, warm_start=True, random_state=0)
rounds = range(1, 11)
by_round = [ndcg(federated.set_params(n_rounds=n).fit(X_train)) for n in rounds]
for n in (1, 2, 3, 5, 10):
    print(f"LocALS after {n:2} rounds: NDCG@10 {by_round[n - 1]:.3f}")
print(f"implicit ALS: {ndcg(central):.3f}, popularity: {ndcg(popularity):.3f}")
print(federated.communication_)

# %%
_, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.plot(rounds, by_round, "o-", color="#0072B2", label="LocALS, federated")
ax.axhline(ndcg(central), color="0.3", linestyle="--", label="implicit ALS, centralised")
ax.axhline(ndcg(popularity), color="0.6", linestyle=":", label="popularity")
ax.set(xlabel="Rounds", ylabel="NDCG@10 on held-out items", ylim=(0, None))
ax.legend()
plt.show()
