"""A federated evaluation as a loop over clients, each of which looks at its own rows alone."""

import numpy as np

from tests.reference import ranking

NAMES = {"hr": "hit_rate"}


def negatives(key, code, catalogue, own, n):
    """Items of a user (by its code) among which its rows are ranked, by the addressed draws."""
    left = [item for item in sorted(catalogue) if item not in own]
    for k in range(n):
        draw = key.uniform("negatives of an evaluation", code * 2**32 + k)
        other = k + int(draw * (len(left) - k))
        left[k], left[other] = left[other], left[k]
    return left[:n]


def client_sums(metric, model, rows, seen, own_negatives):
    """Sum of a metric over a client's units, and their number; `rows` are (user, item, y)."""
    name, _, k = metric.partition("@")
    if name in ("rmse", "mae"):
        predicted = model.predict(np.array([row[:2] for row in rows], dtype=object))
        errors = [abs(y - p) for (*_, y), p in zip(rows, predicted, strict=True)]
        return sum(e**2 if name == "rmse" else e for e in errors), len(errors)
    total, count = 0.0, 0
    for user in {row[0] for row in rows}:
        tested = {item: y for one, item, y in rows if one == user}
        if not any(y > 0 for y in tested.values()):
            continue
        others = model.item_ids_ if own_negatives is None else own_negatives[user]
        if own_negatives is None:
            others = [item for item in others if (user, item) not in seen]
        candidates = [*tested, *(item for item in others if item not in tested)]
        scores = scores_of(model, user, candidates)
        gains = [float(tested.get(item, 0) > 0) for item in candidates]
        total += ranking.expected(NAMES.get(name, name), scores, gains, int(k))
        count += 1
    return total, count


def scores_of(model, user, candidates):
    """Scores before the response, as models are ranked; -inf for unknown items."""
    places = {item: place for place, item in enumerate(model.item_ids_.tolist())}
    board = model._model().score_all(model._users.codes(np.array([user])))[0]
    return [board[places[item]] if item in places else -np.inf for item in candidates]


def evaluate(metric, most, model, clients, seen, own_negatives=None):
    """Value, standard error over clients and histogram; `clients` are lists of their rows."""
    sums = [client_sums(metric, model, rows, seen, own_negatives) for rows in clients]
    sums = [(total, count) for total, count in sums if count]
    is_root = metric == "rmse"
    unit = most**2 if is_root else most
    means = [min(total / count, unit) for total, count in sums]
    value = sum(total for total, _ in sums) / sum(count for _, count in sums)
    error = np.std(means, ddof=1) / np.sqrt(len(means))
    if is_root:
        value = np.sqrt(value)
        error /= 2 * value
    counts = [0] * 10
    for mean in means:
        own = np.sqrt(mean) if is_root else mean
        # What rounding has put just below an edge is on it.
        counts[min(9, int(10 * own / most + 1e-9))] += 1
    return value, error, counts
