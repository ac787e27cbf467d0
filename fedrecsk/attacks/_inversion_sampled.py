"""FedMF, CoLR, SCoLR: from one client's upload to its positives and its user's direction."""

from __future__ import annotations

import numpy as np

from fedrecsk.attacks._guesses import Guess, direction_of, sent_rows


def sampled(model, message, upload, n_items):
    """Visited items move along p_u (along B p_u), positives one way and negatives the other."""
    rows, items = sent_rows(upload["updates"], n_items)
    direction = direction_of(rows)
    along = rows @ direction
    # Most visited items are sampled negatives, if there are any.
    has_negatives = model.loss == "bce" and model.n_negatives > 0
    positive = along > 0
    if (2 * positive.sum() > len(items)) == has_negatives:
        positive, direction = ~positive, -direction
    if "basis" in message:
        # Rows lie along B p, which determines p within the row space of B.
        direction = np.linalg.pinv(message["basis"].values) @ direction
    return Guess(direction, items[positive] if has_negatives else items)
