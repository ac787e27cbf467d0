"""MetaMF as the paper writes it: a loop over clients with plain torch modules.

Slow on purpose. The network is one module on the server; every client holds what it has received
as leaves of a graph of its own, and its gradients in these leaves are all that it returns.
"""

import torch
from torch import nn
from torch.nn.functional import relu


class Generator(nn.Module):
    """A hidden layer of ReLUs, and a linear layer for each of several matrices (equation 4)."""

    def __init__(self, memory_size, hidden_size, **shapes):
        super().__init__()
        self.hidden = nn.Linear(memory_size, hidden_size)
        self.shapes = shapes
        self.heads = nn.ModuleDict(
            {
                name: nn.Linear(hidden_size, rows * columns)
                for name, (rows, columns) in shapes.items()
            }
        )

    def forward(self, collaborative):
        hidden = relu(self.hidden(collaborative))
        return {name: head(hidden).view(self.shapes[name]) for name, head in self.heads.items()}


class Server(nn.Module):
    """Codes, collaborative memory, and a generator for each layer and for the item table."""

    def __init__(self, model, n_clients, n_items):
        super().__init__()
        d, s, q = model.n_factors, model.rank, model.scorer_size
        k, hidden = model.memory_size, model.hidden_size
        self.codes = nn.Embedding(n_clients, model.code_size)
        self.memory = nn.Parameter(torch.empty(model.code_size, k))
        self.first = Generator(k, hidden, weight_1=(d, q), bias_1=(1, q))
        self.second = Generator(k, hidden, weight_2=(q, 1), bias_2=(1, 1))
        self.items = Generator(k, hidden, table=(n_items, s), basis=(s, d))

    def forward(self, client):
        """What one client receives."""
        collaborative = self.codes.weight[client] @ self.memory
        return self.first(collaborative) | self.second(collaborative) | self.items(collaborative)

    def load(self, weights):
        """Take the weights from arrays that are named as in `MetaMF.network_`, and `codes`."""
        layers = {
            "hidden_1": self.first.hidden,
            "hidden_2": self.second.hidden,
            "hidden_3": self.items.hidden,
            **{n: self.first.heads[n] for n in ("weight_1", "bias_1")},
            **{n: self.second.heads[n] for n in ("weight_2", "bias_2")},
            **{n: self.items.heads[n] for n in ("table", "basis")},
        }
        with torch.no_grad():
            self.codes.weight.copy_(torch.from_numpy(weights["codes"]))
            self.memory.copy_(torch.from_numpy(weights["memory"]))
            for name, layer in layers.items():
                layer.weight.copy_(torch.from_numpy(weights[name]))
                layer.bias.copy_(torch.from_numpy(weights[f"{name}_bias"]))


def score(received, item):
    """A client's score of one item: the item's vector, and a scorer of two layers."""
    item_vector = received["table"][item] @ received["basis"]
    hidden = relu(item_vector @ received["weight_1"] + received["bias_1"])
    return (hidden @ received["weight_2"] + received["bias_2"]).squeeze()


def client_gradients(received, ratings, level):
    """What a client uploads: gradients in what it has received, and its number of ratings."""
    own = {name: one.detach().clone().requires_grad_() for name, one in received.items()}
    loss = sum(w * (score(own, item) + level - rating) ** 2 for item, rating, w in ratings)
    loss.backward()
    return {name: one.grad for name, one in own.items()}, sum(w for _, _, w in ratings)


def run(model, server, data, level, rounds):
    """All rounds; `data` has each client's (item, rating, weight), `rounds` each one's senders."""
    adam = torch.optim.Adam(
        server.parameters(),
        lr=model.learning_rate,
        betas=(model.BETA_1, model.BETA_2),
        eps=model.EPSILON,
        weight_decay=model.reg,
    )
    for senders in rounds:
        adam.zero_grad()
        n_ratings = 0.0
        for client in senders:
            received = server(client)
            gradients, number = client_gradients(received, data[client], level)
            names = list(received)
            torch.autograd.backward([received[n] for n in names], [gradients[n] for n in names])
            n_ratings += number
        for parameter in server.parameters():
            parameter.grad /= n_ratings
        if model.max_norm is not None:
            nn.utils.clip_grad_norm_(server.parameters(), model.max_norm)
        adam.step()


def predictions(server, level, scale, client, n_items):
    """A client's clipped predictions of all items."""
    with torch.no_grad():
        received = server(client)
        scores = [score(received, item) + level for item in range(n_items)]
        return torch.stack(scores).clamp(*scale).numpy()
