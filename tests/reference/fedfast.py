"""FedFast as METHODS writes it, client by client and row by row.

Slow on purpose. Local training is that of FedMF's reference.
"""

import numpy as np
from sklearn.cluster import KMeans

from tests.reference import colr


def clusters_of(model, vectors, seed):
    """Each client's cluster."""
    n_clusters = min(model.n_clusters, len({tuple(v) for v in vectors}))
    return KMeans(n_clusters, random_state=seed).fit_predict(vectors)


def cohort_of(clusters, size, chance, offset):
    """ActvSAMP: of a list sorted by clusters, every (n / size)-th client. A mask.

    The list is walked client by client, `size` steps at a time; whoever crosses a multiple of n
    is chosen. The walk begins `offset` steps before such a multiple.
    """
    n = len(clusters)
    order = sorted(range(n), key=lambda c: (clusters[c], chance[c]))
    chosen = np.zeros(n, dtype=bool)
    for place, client in enumerate(order):
        steps = range(place * size, (place + 1) * size)
        chosen[client] = any((step - offset) % n == 0 for step in steps)
    return chosen


def new_items(model, items, uploads, sizes):
    """The item matrix from the changes that the clients send."""
    new = items.copy()
    for i in range(len(items)):
        total, weight = 0.0, 0.0
        for c, (change, visited, _) in uploads.items():
            match model.aggregation:
                case "active":
                    w = np.sum(np.abs(change[i]))
                case "visits":
                    w = float(visited[i])
                case "data_size":
                    w = sizes[c]
            total = total + w * (items[i] + change[i])
            weight += w
        if weight > 0:
            new[i] = total / weight
    return new


def new_vectors(model, vectors, clusters, uploads, t):
    """The vectors of the clients drawn as they say, those of the others after their cluster."""
    new = vectors.copy()
    gamma = 0.0 if model.discount is None else np.exp(-model.discount * t)
    for c in range(len(vectors)):
        if c in uploads:
            new[c] = vectors[c] + uploads[c][2]
            continue
        mates = [k for k in uploads if clusters[k] == clusters[c]]
        if mates:
            new[c] = vectors[c] + gamma * np.mean([uploads[k][2] for k in mates], axis=0)
    return new


def move_to(client, vector):
    """A client's users, moved together so that their mean is where the server has it."""
    client.users = client.users - client.users.mean(axis=0) + vector


def run(model, clients, items, vectors, rounds, seed_of_clusters):
    """All rounds. Returns the items and the clients' vectors.

    `rounds` has a function and seeds for each: the function makes (receives, active, delivers) of
    the clusters, and the seeds are those of the clients' visits. `seed_of_clusters(t)` seeds the
    k-means at the end of round t, -1 being before the first.
    """
    received = [None] * len(clients)
    clusters = clusters_of(model, vectors, seed_of_clusters(-1))
    sizes = [client.data_size for client in clients]
    for t, (draw, seeds) in enumerate(rounds):
        receives, active, delivers = draw(clusters)
        uploads = {}
        for c, client in enumerate(clients):
            if receives[c]:
                received[c] = items, vectors[c]
            if not active[c] or received[c] is None:
                continue
            its_items, its_vector = received[c]
            move_to(client, its_vector)
            eye = np.eye(model.n_factors)
            change, visited = client.visit(its_items, eye, model.learning_rate, seeds[c])
            if delivers[c]:
                uploads[c] = change, visited, client.users.mean(axis=0) - its_vector
        if uploads:
            items = new_items(model, items, uploads, sizes)
            vectors = new_vectors(model, vectors, clusters, uploads, t)
        if (t + 1) % model.cluster_every == 0:
            clusters = clusters_of(model, vectors, seed_of_clusters(t))
    return items, vectors


def final_users(model, clients, items, vectors, seed):
    """What clients recommend with: the server's vectors, trained for `FINAL_EPOCHS`."""
    users = []
    for client, vector in zip(clients, vectors, strict=True):
        move_to(client, vector)
        client.trained = True
        users.append(client.personal_vectors(items, {True: model.FINAL_EPOCHS}, seed))
    return np.concatenate(users)


Client = colr.Client
