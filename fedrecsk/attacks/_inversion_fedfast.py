"""FedFast: from one client's upload to its user's vector and items."""

from __future__ import annotations

from fedrecsk.attacks._guesses import Guess, one_by_one, sent_rows


@one_by_one
def uploaded_vectors(model, message, upload, n_items):
    """The user's vector is in the upload; items that moved along it are positives."""
    vector = message["client_vector"].values[0] + upload["client_vector"].change
    rows, items = sent_rows(upload["updates"], n_items)
    has_negatives = model.loss == "bce" and model.n_negatives > 0
    return Guess(vector, items[rows @ vector > 0] if has_negatives else items)
