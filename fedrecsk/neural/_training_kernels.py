"""Plan the local training of many clients side by side.

Clients draw their examples and shuffle them as FedMF's do, each with its own stream of random
numbers. Here the batches are only written down, padded to the same shape, so that one tensor
operation can process the same step of all clients.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import kernel
from fedrecsk.federated._fedmf_kernels import PAGE_BITS, Layout, draw_examples, shuffle, take_slots


class Steps(NamedTuple):
    """The examples of each step, of shape (n_steps, n_clients, batch_size)."""

    # User of an example, counted within its client.
    whose: np.ndarray
    # Item of an example, as a place in the client's `visited` items.
    what: np.ndarray
    target: np.ndarray
    # 0 where a batch is not full.
    weight: np.ndarray


class Visits(NamedTuple):
    """The items in each client's examples, and how many steps it takes."""

    # Of a client in ascending order, then zeros, (n_clients, most items).
    items: np.ndarray
    n_items: np.ndarray
    # May be fewer than the padded ones.
    n_steps: np.ndarray


class Work(NamedTuple):
    """Scratch for the examples of one client; `is_visited` and `pages` are zero between uses."""

    whose: np.ndarray
    what: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    order: np.ndarray
    is_visited: np.ndarray
    pages: np.ndarray
    slot_of: np.ndarray
    visited: np.ndarray
    stream: np.ndarray


def planned(clients, n_examples, block, feedback, seeds, n_negatives, n_epochs, batch_size):
    """Return some of a block's clients, those with most steps first, their Steps and Visits."""
    n_clients, most, n_items = len(clients), int(n_examples.max()), block.n_items
    shape = n_epochs * -(-most // batch_size), n_clients, min(batch_size, most)
    dtype = feedback.targets.dtype
    steps = Steps(*np.zeros((2, *shape), np.int64), *np.zeros((2, *shape), dtype))
    visited = np.zeros((n_clients, min(n_items, most)), np.int64)
    visits = Visits(visited, *np.zeros((2, n_clients), np.int64))
    whose, what, order = np.empty((3, most), np.int32)
    slot_of, found = np.empty((2, n_items), np.int32)
    is_visited, pages = np.zeros(n_items, np.int32), np.zeros((n_items >> PAGE_BITS) + 1, np.bool_)
    numbers, stream = np.empty((2, most), dtype), np.empty(1, np.uint64)
    work = Work(whose, what, *numbers, order, is_visited, pages, slot_of, found, stream)
    layout = Layout(block.client_indptr, block.indptr, block.items)
    plan(clients, layout, feedback, seeds, n_negatives, n_epochs, batch_size, steps, visits, work)
    # A client whose users have rated everything has no negatives, and fewer steps than others.
    order = np.argsort(-visits.n_steps, kind="stable")
    if (np.diff(order) > 0).all():
        return clients, steps, visits
    steps = Steps(*(one[:, order] for one in steps))
    return clients[order], steps, Visits(*(one[order] for one in visits))


@kernel
def plan(clients, layout, feedback, seeds, n_negatives, n_epochs, batch_size, steps, visits, work):
    """Write the steps of these clients of a block."""
    n_items = len(work.is_visited)
    for k in range(len(clients)):
        c = clients[k]
        work.stream[0] = seeds[k]
        first, last = layout.client_indptr[c], layout.client_indptr[c + 1]
        n = draw_examples(first, last, layout, feedback, n_items, n_negatives, work)
        visits.n_items[k] = take_slots(n, work)
        for s in range(visits.n_items[k]):
            visits.items[k, s] = work.visited[s]
        for e in range(n):
            work.order[e] = e
        step = 0
        for _ in range(n_epochs):
            shuffle(work.order, n, work.stream)
            for start in range(0, n, batch_size):
                for j in range(start, min(start + batch_size, n)):
                    e = work.order[j]
                    steps.whose[step, k, j - start] = work.whose[e]
                    steps.what[step, k, j - start] = work.what[e]
                    steps.target[step, k, j - start] = work.target[e]
                    steps.weight[step, k, j - start] = work.weight[e]
                step += 1
        visits.n_steps[k] = step


@kernel
def add_changes(places, numbers, n_rows, after, received, changes):
    """Add by how much clients have changed their rows of what they have received, at places."""
    for k in range(len(n_rows)):
        for j in range(n_rows[k]):
            for f in range(changes.shape[1]):
                change = after[k, j, f] - received[numbers[k, j], f]
                changes[places[k, j], f] += change
