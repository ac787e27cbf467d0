"""Asynchronous rounds as a plain loop over events: one client, one upload at a time."""

import heapq

import numpy as np

from fedrecsk.protocol.blocks import of_clients
from fedrecsk.protocol.keys import SETUP, Keys
from fedrecsk.protocol.messages import Catalogue, Message, Total, Upload
from fedrecsk.protocol.participation import RoundMasks


def fedbuff(
    algorithm,
    data,
    key,
    seconds,
    start,
    n_steps,
    concurrency,
    n_awaited,
    *,
    damped,
    turns,
):
    """Return the server's state after `n_steps`, and the time of each step.

    `seconds` are what each client needs. `turns`: clients that have begun less often come first.
    """
    ones = np.ones(1, dtype=bool)
    keys, turn = Keys(key, key), RoundMasks(ones, ones, False)
    blocks = [of_clients(data, np.array([client])) for client in range(data.n_clients)]
    ratings = float(data.values.min()), float(data.values.max())
    catalogue, sums = Catalogue(data.n_items, data.n_clients, ratings), None
    if algorithm.setup_fields(data.n_items):
        request = algorithm.request(catalogue)
        sums = mean([(1, algorithm.answer(b, request, keys.at(SETUP)).fields) for b in blocks])
    server = algorithm.begin(catalogue, sums, key)
    announced = algorithm.announce(server)
    states, n_begun = [None] * data.n_clients, np.zeros(data.n_clients)
    training, now, times = [], start, []
    for step in range(n_steps):
        buffer = []
        message = algorithm.broadcast(server, key.at(step))
        message = algorithm.decode(message, key.at(step))
        chance = key.at(step).hashed("cohort", np.arange(data.n_clients))
        busy = {client for _, client, _, _ in training}
        asked = [client for client in range(data.n_clients) if client not in busy]
        asked.sort(key=lambda client: (turns * n_begun[client], chance[client]))
        while len(buffer) < n_awaited:
            while asked and len(training) < concurrency:
                client = asked.pop(0)
                n_begun[client] += 1
                if states[client] is None:
                    first = Message(**announced, **message)
                    states[client] = algorithm.enter(blocks[client], first, keys.at(step))
                states[client], updates, _ = algorithm.update(
                    blocks[client], states[client], message, turn, keys.at(step)
                )
                heapq.heappush(training, (now + seconds[client], client, step, updates.fields))
            now, _, began, fields = heapq.heappop(training)
            buffer.append((1 / np.sqrt(1 + step - began) if damped else 1.0, fields))
        server = algorithm.step(server, mean(buffer), key.at(step))
        times.append(now)
    return server, np.array(times)


def mean(uploads):
    """Return the Upload of uploads with weights: each counts as so many clients."""
    n_clients, totals = sum(weight for weight, _ in uploads), {}
    for name in uploads[0][1]:
        total = sum(weight * values_of(fields[name]) for weight, fields in uploads)
        totals[name] = Total(total, n_clients)
    return Upload(n_clients, None, **totals)


def values_of(field):
    """Return the numbers of a field, which may have the sizes of messages beside them."""
    return np.asarray(getattr(field, "values", field), dtype=np.float64)
