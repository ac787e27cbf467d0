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
