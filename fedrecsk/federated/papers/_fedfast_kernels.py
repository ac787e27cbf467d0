"""FedFast: clients' versions of items, weighed by how far each has moved them."""

from fedrecsk._utils.jit import kernel


@kernel
def add_weighed(rows, changes, totals, weights):
    """Add one client's changes, each times its sum of absolute numbers, and these sums.

    Parameters
    ----------
    rows : (n_rows,), the items that the client sends
    changes : (n_rows, d), float64
    totals : (n_items, d), float64
    weights : (n_items,), float64
    """
    for k in range(len(rows)):
        item = rows[k]
        weight = 0.0
        for f in range(changes.shape[1]):
            weight += abs(changes[k, f])
        weights[item] += weight
        for f in range(changes.shape[1]):
            totals[item, f] += weight * changes[k, f]
