"""Robust aggregation as its papers write it: explicit loops over clients and numbers."""

import numpy as np


def clipped_sum(changes, bound):
    """Sum over clients of each change, shortened to `bound`."""
    total = np.zeros_like(changes[0])
    for change in changes:
        norm = np.sqrt((change**2).sum())
        total += change * min(1.0, bound / norm) if norm > 0 else 0
    return total


def median(changes):
    """Median over clients of each number."""
    out = np.zeros_like(changes[0])
    for where in np.ndindex(out.shape):
        numbers = sorted(change[where] for change in changes)
        n = len(numbers)
        out[where] = (numbers[(n - 1) // 2] + numbers[n // 2]) / 2
    return out


def trimmed_mean(changes, n_cut):
    """Mean over clients of each number without the n_cut lowest and highest."""
    out = np.zeros_like(changes[0])
    for where in np.ndindex(out.shape):
        numbers = sorted(change[where] for change in changes)
        out[where] = np.mean(numbers[n_cut : len(numbers) - n_cut])
    return out


def krum(changes, f, n_selected):
    """Mean of the `n_selected` clients with the lowest Krum scores (Blanchard et al., 2017)."""
    n, scores = len(changes), []
    for i in range(n):
        distances = sorted(((changes[i] - changes[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(distances[: n - f - 2]))
    chosen = sorted(range(n), key=lambda i: scores[i])[:n_selected]
    return np.mean([changes[i] for i in chosen], axis=0)


def largest_row(change):
    """Norm of the largest row of one client's change."""
    return max(np.sqrt((row**2).sum()) for row in change)


def with_rows_clipped(changes, bound):
    """Each client's change, each of its rows shortened to `bound`."""
    clipped = [np.zeros_like(change) for change in changes]
    for out, change in zip(clipped, changes, strict=True):
        for i, row in enumerate(change):
            norm = np.sqrt((row**2).sum())
            out[i] = row * min(1.0, bound / norm) if norm > 0 else 0
    return clipped


def row_bound(changes, multiple=1.0):
    """Median over the clients that have changed something of their largest row's norm."""
    largest = [largest_row(change) for change in changes if change.any()]
    return multiple * np.median(largest)


def clipped_at_the_median(changes, multiple=1.0):
    """Sum of the changes, each shortened to the median norm."""
    norms = [np.sqrt((change**2).sum()) for change in changes]
    return clipped_sum(changes, multiple * np.median(norms))


def row_clipped_sum(changes, multiple=1.0):
    """Sum of the changes whose rows, and then wholes, are shortened to medians."""
    clipped = with_rows_clipped(changes, row_bound(changes, multiple))
    return clipped_at_the_median(clipped, multiple)


def units_of(uploads, names):
    """Median norm of each field over the clients that have changed it."""
    units = {}
    for name in names:
        norms = [np.sqrt((upload[name] ** 2).sum()) for upload in uploads]
        units[name] = np.median([norm for norm in norms if norm > 0])
    return units


def geometric_median(uploads, n_iterations):
    """Smoothed Weiszfeld algorithm (Pillutla et al., 2022, Algorithm 2), from a clipped mean."""
    units = units_of(uploads, uploads[0])
    vectors = [np.concatenate([u[name].ravel() / units[name] for name in units]) for u in uploads]
    norms = [np.sqrt((x**2).sum()) for x in vectors]
    weights = [1 / max(norm, np.sqrt(np.median(np.square(norms)))) for norm in norms]
    middle = sum(w * x for w, x in zip(weights, vectors, strict=True)) / sum(weights)
    for _ in range(n_iterations):
        weights = [1 / max(1e-6, np.sqrt(((x - middle) ** 2).sum())) for x in vectors]
        middle = sum(w * x for w, x in zip(weights, vectors, strict=True)) / sum(weights)
    ends = np.cumsum([uploads[0][name].size for name in units])[:-1]
    return {
        name: (part * units[name]).reshape(uploads[0][name].shape)
        for name, part in zip(units, np.split(middle, ends), strict=True)
    }


def fl_trust(uploads, reference):
    """Mean of the rescaled uploads, weighted by their trust (Cao et al., 2021, Algorithm 2)."""
    trusted = uploads[reference]
    units = {name: np.sqrt((trusted[name] ** 2).sum()) for name in trusted}
    vectors = [np.concatenate([u[name].ravel() / units[name] for name in units]) for u in uploads]
    own = vectors[reference]
    total, trust = {name: np.zeros_like(trusted[name]) for name in trusted}, 0.0
    for upload, x in zip(uploads, vectors, strict=True):
        norm = np.sqrt((x**2).sum())
        score = max(0.0, (x * own).sum() / (norm * np.sqrt((own**2).sum())))
        trust += score
        for name in total:
            total[name] += score * np.sqrt((own**2).sum()) / norm * upload[name]
    return {name: total[name] / trust for name in total}


def hierarchical_totals(rounds, multiple, total_multiple, share):
    """Totals of each round: clipped rows, added to what was held back, and clipped by item."""
    n_items = len(rounds[0][0])
    held, held_sent, out = np.zeros_like(rounds[0][0]), np.zeros(n_items), []
    for changes in rounds:
        clipped = with_rows_clipped(changes, row_bound(changes, multiple))
        totals = held + sum(clipped)
        sent = held_sent + sum(np.sqrt((one**2).sum(axis=1)) for one in clipped)
        norms = [np.sqrt((row**2).sum()) for row in totals]
        chosen = sorted(range(n_items), key=lambda i: -norms[i])[: int(np.ceil(share * n_items))]
        agreement = [norms[i] / sent[i] for i in chosen if norms[i] > 0]
        bound = total_multiple * np.median(agreement)
        result = np.zeros_like(totals)
        for i in chosen:
            if norms[i] > 0:
                result[i] = totals[i] * min(1.0, bound * sent[i] / norms[i])
            totals[i], sent[i] = 0, 0
        held, held_sent = totals, sent
        out.append(result)
    return out


def filtered_by_popularity(changes, tolerance, popular):
    """Clipped changes without rows that push suspicious items too hard; and these items."""
    clipped = with_rows_clipped(changes, row_bound(changes))
    n_items = len(clipped[0])
    rows = [[one[i] for one in clipped if one[i].any()] for i in range(n_items)]
    sizes = [sum(np.sqrt((row**2).sum()) for row in of_item) for of_item in rows]
    n_popular = max(1, round(popular * sum(len(of_item) > 0 for of_item in rows)))
    top = sorted(range(n_items), key=lambda i: -sizes[i])[:n_popular]
    direction = sum(sum(rows[i]) for i in top)
    direction = direction / np.sqrt((direction**2).sum())
    pushes = [[float(row @ direction) for row in of_item] for of_item in rows]
    means = [np.mean(of_item) if of_item else 0.0 for of_item in pushes]
    deviations = [(push - means[i]) ** 2 for i in top for push in pushes[i]]
    spread = np.sqrt(np.mean(deviations))
    kept, suspicious = [one.copy() for one in clipped], []
    for i in range(n_items):
        limit = max(means[j] for j in top) + tolerance * spread / np.sqrt(max(1, len(rows[i])))
        if means[i] > limit:
            suspicious.append(i)
            for one in kept:
                if one[i] @ direction > limit:
                    one[i] = 0
    return kept, suspicious
