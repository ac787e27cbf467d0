"""SemiDFEGL: sums over ego graphs, errors, and gradients of the items.

Rows of items and users have `width` numbers. With biases, column 0 of an item is its bias, and
column 0 of a user's row is the 1 that meets it; the user's own bias is in `user_bias`.

What the kernels share:

    layout : blocks.Layout
    users : (n_users,) bool, those to compute something for
    items : (n_items, width), what the clients have received
    left : (n_users, width), the users' rows
"""

from fedrecsk._utils.jit import kernel
from fedrecsk._utils.shared_kernels import add_row, dot_rows, fill_row
from fedrecsk.federated._wmf_kernels import send


@kernel
def neighbour_sums(indptr, neighbours, users, items, sums):
    """Sum the rows of each user's items into ``sums[u]``, of shape (n_users, width)."""
    width, one = items.shape[1], items.dtype.type(1)
    for u in range(len(users)):
        if not users[u]:
            continue
        fill_row(sums, u, items.dtype.type(0), width)
        for k in range(indptr[u], indptr[u + 1]):
            add_row(sums, u, one, items, neighbours[k], width)


@kernel
def errors(indptr, ratings, users, items, left, user_bias, errors, gradients, bias_gradients):
    """Find w (score - rating) of each rating, and users' gradients of half the squared errors."""
    width = items.shape[1]
    for u in range(len(users)):
        if not users[u]:
            continue
        fill_row(gradients, u, items.dtype.type(0), width)
        total = items.dtype.type(0)
        for k in range(indptr[u], indptr[u + 1]):
            score = dot_rows(left, u, items, ratings.items[k], width) + user_bias[u]
            errors[k] = ratings.weights[k] * (score - ratings.values[k])
            total += errors[k]
            add_row(gradients, u, errors[k], items, ratings.items[k], width)
        bias_gradients[u] = total


@kernel
def item_gradients(layout, errors, active, left, through, work, out):
    """Send sums over each active client's users of error left[u] + through[u]."""
    width, gradient = left.shape[1], work.rows
    real = left.dtype.type
    for c in range(len(active)):
        if not active[c]:
            continue
        first = layout.row_indptr[c]
        for row in range(layout.row_indptr[c + 1] - first):
            fill_row(gradient, row, real(0), width)
        for u in range(layout.client_indptr[c], layout.client_indptr[c + 1]):
            for k in range(layout.indptr[u], layout.indptr[u + 1]):
                row = layout.rows[k] - first
                add_row(gradient, row, errors[k], left, u, width)
                add_row(gradient, row, real(1), through, u, width)
        send(c, layout, gradient, work.follow, False, out)
