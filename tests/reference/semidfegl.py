"""SemiDFEGL device by device and node by node; gradients are derivatives of the loss itself.

Slow on purpose. Every device has its own copy of its items (`Q`, a row (b_i, e_i) for each item of
the catalogue), and of the predicted items of its group. Derivatives are complex steps: the
imaginary part of the loss at x + i h, which is exact because the loss is a polynomial.
"""

import numpy as np

from tests.reference.fcf import Adam

STEP = 1e-30


def layers_of_group(model, devices, n_devices):
    """Embedding z_u of each user of each device, by propagation over the nodes of one group.

    A device is (users, Q, common): for each user its p_u and own items; the device's own items;
    and the embeddings of the predicted items, none if it has no group. `n_devices` is the number
    of all devices of the group, some of which may be away.
    """
    degrees = [[len(own) + len(common) for _, own in users] for users, _, common in devices]
    layer = [[p for p, _ in users] for users, _, _ in devices]
    # Each user's copy of each own item; every user of the group is a neighbour of all common items.
    leaves = [[[Q[i, -model.n_factors :] for i in own] for _, own in us] for us, Q, _ in devices]
    common = [list(common) for _, _, common in devices]
    sums = [list(one) for one in layer]
    for _ in range(model.n_layers):
        messages = []
        for k, (users, _, _) in enumerate(devices):
            scaled = [e / np.sqrt(deg) for e, deg in zip(layer[k], degrees[k], strict=True)]
            messages.append(sum(scaled) / len(users))
        # Devices that are away are taken to send what the others send on average.
        received = n_devices * sum(messages) / len(messages)
        new, new_leaves, new_common = [], [], []
        for k, (users, _, _) in enumerate(devices):
            e_new, l_new = [], []
            for u in range(len(users)):
                root = np.sqrt(degrees[k][u])
                e = sum(leaves[k][u], np.zeros(model.n_factors)) / root
                for c in common[k]:
                    e = e + c / (root * np.sqrt(n_devices))
                e_new.append(e)
                # An own item of this user has one neighbour, so its degree is 1.
                l_new.append([layer[k][u] / root for _ in leaves[k][u]])
            new.append(e_new)
            new_leaves.append(l_new)
            new_common.append([received / np.sqrt(n_devices) for _ in common[k]])
        layer, leaves, common = new, new_leaves, new_common
        sums = [
            [s + e for s, e in zip(a, b, strict=True)] for a, b in zip(sums, layer, strict=True)
        ]
    return [[s / (model.n_layers + 1) for s in one] for one in sums]


def loss_of_group(model, devices, data, biases, n_devices):
    """Half the squared errors of all users of the devices, times the ratings' weights."""
    total = 0.0
    for (users, Q, _), own_data, own_bias, own_z in zip(
        devices, data, biases, layers_of_group(model, devices, n_devices), strict=True
    ):
        for (_, own), (w, r), b, z in zip(users, own_data, own_bias, own_z, strict=True):
            for i in own:
                score = z @ Q[i, -model.n_factors :]
                if model.biases:
                    score = score + b + Q[i, 0]
                total = total + 0.5 * w[i] * (score - r[i]) ** 2
    return total


def derivative(function, array):
    """Of a function of no arguments, by the numbers of a complex array that it reads."""
    result = np.zeros(array.shape)
    for place in np.ndindex(array.shape):
        array[place] += 1j * STEP
        result[place] = function().imag / STEP
        array[place] = array[place].real
    return result


class Device:
    """A client: weights w (0: not rated) and ratings r less the level, of each of its users."""

    def __init__(self, model, w, r):
        n, self.model, self.data = len(w), model, list(zip(w, r, strict=True))
        self.own = [np.flatnonzero(one) for one in w]
        self.p = np.zeros((n, model.n_factors), dtype=complex)
        self.bias = np.zeros(n, dtype=complex)
        self.Q = self.common = self.received = None
        self.group, self.n_devices = -1, 1
        self.steps = [Adam(model) for _ in range(n)]

    def receive(self, Q, common, group, n_devices):
        self.Q, self.common = Q.astype(complex), common.astype(complex)
        self.group, self.n_devices = group, n_devices

    def node(self, connected):
        common = self.common if connected else self.common[:0]
        return list(zip(self.p, self.own, strict=True)), self.Q, common

    def step(self, by_p, by_bias):
        """The users' step of Adam, given the derivatives of the group's whole loss."""
        model = self.model
        for u, (w, _) in enumerate(self.data):
            penalty = model.reg_user * w.sum() ** model.REG_POWER
            gradient = by_p[u] + penalty * self.p[u].real
            values = self.p[u].real
            if model.biases:
                b = self.bias[u].real
                gradient = np.r_[by_bias[u] + model.reg_bias * b, gradient]
                values = np.r_[b, values]
            moved = self.steps[u].step(values, gradient / w.sum(), model.user_learning_rate)
            self.p[u] = moved[-model.n_factors :]
            self.bias[u] = moved[0] if model.biases else 0.0


def message(model, node, n_devices):
    """The sum of the layers that reach other devices, as a device sends it."""
    users, Q, common = node
    total = 0
    for p, own in users:
        root = np.sqrt(len(own) + len(common))
        first = sum(Q[i, -model.n_factors :] for i in own) / root
        for c in common:
            first = first + c / (root * np.sqrt(n_devices))
        total = total + (p + first if model.n_layers == 3 else p) / root
    return total / len(users)


def update_group(model, devices, connected):
    """What each device of a group uploads; they also step. (gradient, common, embedding) each."""
    nodes = [one.node(connected) for one in devices]
    n_devices = devices[0].n_devices if connected else 1
    data, biases = [one.data for one in devices], [one.bias for one in devices]

    def loss():
        return loss_of_group(model, nodes, data, biases, n_devices)

    z = layers_of_group(model, nodes, n_devices)
    steps, uploads = [], []
    for one, (_, Q, common), own_z in zip(devices, nodes, z, strict=True):
        gradient, rated = np.zeros(Q.shape), np.unique(np.concatenate(one.own))
        for i in rated:
            gradient[i] = derivative(loss, Q[i])
        # All predicted items have the same neighbours, so all derivatives are equal.
        by_common = [derivative(loss, c) for c in common]
        for other in by_common[1:]:
            np.testing.assert_allclose(other, by_common[0], atol=1e-12)
        uploads.append((gradient, by_common[0] if connected else None, np.mean(own_z, axis=0).real))
        steps.append((derivative(loss, one.p), derivative(loss, one.bias)))
    messages = [message(model, node, n_devices) for node in nodes]
    for one, (_, _, common), step in zip(devices, nodes, steps, strict=True):
        one.received = messages, common.copy(), n_devices
        one.step(*step)
    return uploads


def shares_of(points, centres, fuzziness):
    """Each point's share in each cluster."""
    shares = np.zeros((len(points), len(centres)))
    for x, point in enumerate(points):
        squares = np.array([max(((point - c) ** 2).sum(), 1e-12) for c in centres])
        for k in range(len(centres)):
            shares[x, k] = 1 / sum((squares[k] / squares) ** (1 / (fuzziness - 1)))
    return shares


def fuzzy_c_means(points, centres, fuzziness):
    """Bezdek's iteration, at most 50 times or until the centres stand still; the shares."""
    for _ in range(50):
        weights = shares_of(points, centres, fuzziness) ** fuzziness
        old, centres = centres, []
        for k in range(len(old)):
            weighed = [weight * point for weight, point in zip(weights[:, k], points, strict=True)]
            centres.append(sum(weighed) / weights[:, k].sum())
        if max(np.abs(new - one).max() for new, one in zip(centres, old, strict=True)) <= 1e-4:
            break
    return shares_of(points, centres, fuzziness)


class Server:
    """Items, embeddings of clients, and groups."""

    def __init__(self, model, n_clients, items, penalties):
        self.model, self.items, self.penalties = model, items, penalties
        self.adam, self.n_clients = Adam(model), n_clients
        self.embeddings = {}
        self.groups = np.full(n_clients, -1)
        self.predicted = []

    def message(self, client):
        group = self.groups[client]
        if group < 0:
            return self.items, np.zeros((1, self.model.n_factors)), -1, 1
        common = self.items[self.predicted[group], -self.model.n_factors :]
        return self.items, common, group, (self.groups == group).sum()

    def close(self, uploads):
        """`uploads` has (gradient, by_common, embedding) by client."""
        if not uploads:
            return
        total = np.zeros(self.items.shape)
        for client, (gradient, by_common, embedding) in uploads.items():
            total += gradient
            if by_common is not None:
                for i in self.predicted[self.groups[client]]:
                    total[i, -self.model.n_factors :] += by_common
            self.embeddings[client] = embedding
        total = total / len(uploads) + self.penalties / self.n_clients * self.items
        self.items = self.adam.step(self.items, total)

    def cluster(self, generator):
        model, known = self.model, sorted(self.embeddings)
        if not known:
            return
        users = [unit(self.embeddings[client]) for client in known]
        items = [unit(item) for item in self.items[:, -model.n_factors :]]
        distinct = np.unique(np.stack(users), axis=0, return_index=True)[1]
        drawn = generator.permutation(np.sort(distinct))[: model.n_groups]
        shares = fuzzy_c_means(users + items, [users[k] for k in drawn], model.FUZZINESS)
        self.groups[known] = shares[: len(users)].argmax(axis=1)
        of_items = shares[len(users) :]
        n = min(model.n_common, len(items))
        self.predicted = [
            sorted(range(len(items)), key=lambda i, k=k: -of_items[i, k])[:n]
            for k in range(len(drawn))
        ]


def unit(vector):
    length = np.linalg.norm(vector)
    return vector / length if length > 0 else vector


def run(model, devices, server, turns, key):
    """All rounds. `turns` has (receives, active, delivers), a mask over clients each, by round."""
    for t, (receives, active, delivers) in enumerate(turns):
        for client in np.flatnonzero(receives):
            devices[client].receive(*server.message(client))
        ready = [c for c in np.flatnonzero(active) if devices[c].Q is not None]
        groups, uploads = {}, {}
        for client in ready:
            group = devices[client].group if receives[client] else -1
            groups.setdefault((group, client if group < 0 else None), []).append(client)
        for (group, _), clients in groups.items():
            answers = update_group(model, [devices[c] for c in clients], group >= 0)
            uploads |= {c: a for c, a in zip(clients, answers, strict=True) if delivers[c]}
        server.close(dict(sorted(uploads.items())))
        if model.n_common and t % model.CLUSTER_EVERY == 0:
            server.cluster(key.at(t).generator("centres"))


def final_user(model, device, u, items):
    """(z_u, b_u) with the final items, and the others' embeddings of the device's last round."""
    messages, common, n_devices = device.received
    degree = len(device.own[u]) + len(common)
    root, own = np.sqrt(degree), len(device.own[u]) / degree
    first = sum(items[i, -model.n_factors :] for i in device.own[u]) / root
    for c in common:
        first = first + c / (root * np.sqrt(n_devices))
    p = device.p[u].real
    z = [p, first, own * p, own * first][: model.n_layers + 1]
    others = len(common) / root * np.mean(messages, axis=0)
    return (sum(z) + others).real / (model.n_layers + 1), device.bias[u].real
