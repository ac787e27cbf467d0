"""EASE and spectral items by their definitions: one user after the other, dense arrays."""

import numpy as np


def rows_of(data):
    """X: a dense row for each user, the weight where y > 0 and 0 elsewhere."""
    X = np.zeros((data.n_users, data.n_items))
    for user, item, value, weight in zip(
        data.users, data.items, data.values, data.weights, strict=True
    ):
        if value > 0:
            X[user, item] = weight
    return X


def gram(X, users):
    """The sum over these users of x x'."""
    total = np.zeros((X.shape[1], X.shape[1]))
    for user in users:
        total += np.outer(X[user], X[user])
    return total


def ease(G, reg):
    """Steck's B, column by column: the ridge regression of an item on all the others."""
    n_items = len(G)
    B = np.zeros((n_items, n_items))
    for j in range(n_items):
        others = [i for i in range(n_items) if i != j]
        A = G[np.ix_(others, others)] + reg * np.eye(n_items - 1)
        B[others, j] = np.linalg.solve(A, G[others, j])
    return B


def nearest(G, power, shrinkage, n_neighbors, history_power=None):
    """ItemKNN's B: the largest G_ij / (G_ii^history_power G_jj^power + shrinkage) of each row.

    G may have another number for (i, j) than for (j, i).
    """
    B, own = np.zeros(G.shape), power if history_power is None else history_power
    for i in range(len(G)):
        for j in range(len(G)):
            if i != j:
                B[i, j] = G[i, j] / (G[i, i] ** own * G[j, j] ** power + shrinkage)
        for j in sorted(range(len(G)), key=lambda j: -B[i, j])[n_neighbors:]:
            B[i, j] = 0
    return B


def cosines(features, n_known):
    """The cosine of each pair of items, where above 0, as the attributes of the first items weigh.

    A column beyond [-1, 1] is centred and divided by two standard deviations.
    """
    x, width = features.astype(float).copy(), features.shape[1]
    for k in range(width):
        column = features[:n_known, k]
        if max(abs(column)) > 1:
            x[:, k] = (features[:, k] - np.mean(column)) / (2 * np.std(column))
    for k in range(width):
        share = (1 + sum(x[i, k] ** 2 for i in range(n_known))) / (1 + n_known)
        x[:, k] *= max(0, np.log(1 / share))
    K = np.zeros((len(x), len(x)))
    for i in range(len(x)):
        for j in range(len(x)):
            norms = np.linalg.norm(x[i]) * np.linalg.norm(x[j])
            if i != j and norms > 0:
                K[i, j] = max(0, x[i] @ x[j] / norms)
    return K


def with_cosines(G, K, weight):
    """G, as if each pair of items had been counted that many times more, and new items once."""
    more = G + weight * K
    for i in range(len(G)):
        more[i, i] = G[i, i] if G[i, i] > 0 else 1
    return more


def spectral(G, n_factors):
    """Q = D^1/4 V e^1/2 for the leading eigenpairs of D^-1/4 G D^-1/4, columns of mean square 100.

    All eigenpairs, and Q Q' instead of Q, because eigenvectors have no sign.
    """
    n = np.diag(G)
    D = np.diag(np.where(n > 0, n, 1.0))
    root = np.diag(np.diag(D) ** 0.25)
    e, V = np.linalg.eig(np.linalg.inv(root) @ G @ np.linalg.inv(root))
    order = np.argsort(-e.real)[:n_factors]
    Q = root @ V[:, order].real @ np.diag(np.sqrt(np.maximum(e[order].real, 0)))
    return Q @ Q.T * 100 * Q.shape[1] / np.sum(Q**2)


def final_scores(S, x, alpha, reg):
    """Scores of one user: the exact user step, written for S = Q Q' instead of Q.

    With p = (Q'Q + reg I + alpha Q' W Q)^-1 Q' t the scores Q p are
    S (reg I + (I + alpha W) S)^-1 t. A user with few likes leans on popular items: reg grows by
    30 |S| / n^3, where |S| = |Q'Q|, and Q Q'Q p / (|S| n^3) = S Q p / (|S| n^3) is added.
    """
    eye, target = np.eye(len(S)), np.where(x > 0, 1 + alpha * x, 0.0)
    rarity, size = max(x[x > 0].sum(), 1.0) ** -3, np.linalg.norm(S)
    reg = reg + 30 * size * rarity
    scores = S @ np.linalg.solve(reg * eye + (eye + alpha * np.diag(x)) @ S, target)
    return scores + rarity * S @ scores / size


def spectral_scores(G, X, n_factors, alpha, reg):
    """Scores of all users."""
    S, scores = spectral(G, n_factors), np.zeros(X.shape)
    for user, x in enumerate(X):
        scores[user] = final_scores(S, x, alpha, reg)
    return scores


# ----------------------------------------------------------------------- with noise on the sum


def clipped_gram(X, clients, clip):
    """The sum of the clients' X'X, each scaled down so that its pairs have at most this norm."""
    total = np.zeros((X.shape[1], X.shape[1]))
    for users in clients:
        own = gram(X, users)
        norm = np.sqrt(sum(own[i, j] ** 2 for i in range(len(own)) for j in range(i + 1)))
        total += own * min(1.0, clip / norm)
    return total


def clipped_counts(X, clients, clip):
    """The sum of the clients' counts of items, each scaled down to at most this norm."""
    total = np.zeros(X.shape[1])
    for users in clients:
        own = X[users].sum(axis=0)
        total += own * min(1.0, clip / np.sqrt(np.sum(own**2)))
    return total


def clear_items(counts, noise_std, clip, n_clients):
    """Items in order of their counts, until one is hidden by noise or too small a share."""
    kept, total = [], 0.0
    for i in sorted(range(len(counts)), key=lambda i: -counts[i]):
        total += counts[i]
        share = counts[i] / total
        if counts[i] <= 3 * noise_std or 3 * n_clients * clip * share <= 4 * noise_std:
            break
        kept.append(i)
    return sorted(kept)


def without_noise(G, kept, noise_std):
    """What is visible of G on these items, as a list of e v v'."""
    bound = 2 * noise_std * np.sqrt(len(kept))
    found = []
    values, vectors = np.linalg.eigh(G[np.ix_(kept, kept)])
    for k in range(len(kept)):
        if values[k] > bound:
            whole = np.zeros(len(G))
            whole[kept] = vectors[:, k]
            found.append(np.sqrt(values[k] ** 2 - bound**2) * np.outer(whole, whole))
    return found[::-1]


def noisy_ease(G, kept, noise_std, reg):
    """EASE of what is visible, and of the counts on the diagonal."""
    visible = sum(without_noise(G, kept, noise_std))
    for i in kept:
        visible[i, i] = max(visible[i, i], G[i, i])
    return ease(visible, reg)


def noisy_spectral_scores(G, kept, noise_std, X, n_factors, alpha, reg):
    """Scores from S = Q Q', the sum of the largest of what is visible, scaled."""
    found = without_noise(G, kept, noise_std)[:n_factors]
    S = sum(found) * 100 * len(found) / np.trace(sum(found))
    scores = np.zeros(X.shape)
    for user, x in enumerate(X):
        scores[user] = final_scores(S, x, alpha, reg)
    return scores
