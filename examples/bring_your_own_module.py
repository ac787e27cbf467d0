"""How do I make a federated recommender of my torch module?

Name its private parameters. The clients train all of it, and share the others.

The module below scores movies by their genres and by a vector of each movie. The genres are public:
a table that is not trained (``requires_grad=False``) is part of the module on every device, and is
never sent. Needs the extra ``torch``; the page :doc:`/methods/neural` lists the rules for modules.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from fedrecsk import Popularity
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout
from fedrecsk.neural import FederatedModule, Net

N_USERS, N_MOVIES, N_GENRES = 300, 200, 12


class Movies(nn.Module):
    """What a user thinks of a movie and of its genres."""

    def __init__(self, n_users, n_items, genres, width=8):
        super().__init__()
        # It is also called with few items, to see which parameters have a row for each.
        genres = torch.as_tensor(genres[:n_items], dtype=torch.float32)
        self.genres = nn.Parameter(genres, requires_grad=False)
        self.mix = nn.Linear(genres.shape[1], width, bias=False)
        self.user, self.item = nn.Embedding(n_users, width), nn.Embedding(n_items, width)
        self.item_bias = nn.Embedding(n_items, 1)
        for table in (self.user, self.item, self.item_bias):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, users, items):
        movie = self.item(items) + self.mix(self.genres[items])
        return (self.user(users) * movie).sum(-1) + self.item_bias(items).squeeze(-1)


# %%
# Generated viewings: a user likes some genres, and each movie has about two.

rng = np.random.default_rng(0)
genres = rng.random((N_MOVIES, N_GENRES)) < 2 / N_GENRES
tastes = rng.normal(size=(N_USERS, N_GENRES))
appeal = 1.5 * tastes @ genres.T + rng.normal(size=N_MOVIES) + rng.gumbel(size=(N_USERS, N_MOVIES))

seen = np.argsort(-appeal, axis=1)[:, :20]
X = np.column_stack([np.repeat(np.arange(N_USERS), 20), seen.ravel()])
X_train, X_test = UserHoldout(test_size=0.2, random_state=0).train_test_split(X)

# %%
# The table has a row for each movie, in ascending order of the movies' ids, which are 0 to 199.

settings = {"learning_rate": 0.1, "n_rounds": 20, "items": range(N_MOVIES), "random_state": 0}
models = {
    "popularity": Popularity(items=range(N_MOVIES)),
    "without genres": FederatedModule(Net(Movies, genres=np.zeros((N_MOVIES, 1))), **settings),
    "with genres": FederatedModule(Net(Movies, genres=genres), **settings),
}
scores = {}
for name, model in models.items():
    table = evaluate_ranking(model.fit(X_train), X_test, metrics="ndcg", k=10)
    scores[name] = table["ndcg@10"]
    print(f"{name}: NDCG@10 {scores[name]:.3f}")
print("Clients send changes of", ", ".join(models["with genres"].parameters_))

# %%
_, ax = plt.subplots(figsize=(7, 2.5), layout="constrained")
ax.barh(list(scores), list(scores.values()), color=["0.5", "#0072B2", "#D55E00"])
ax.set(xlabel="NDCG@10")
ax.invert_yaxis()
plt.show()
