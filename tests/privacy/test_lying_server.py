"""Attacks of a server that lies to each client, alone and with helpers, on masked sums.

With k neighbours, of whom t must answer, and c helpers among them, no sum over fewer than 2 t - k -
c + 1 honest clients may be seen, whatever graph, lists and numbers of clients the server makes up.
"""

import numpy as np
import pytest

from fedrecsk.privacy import Identity, MaskingFailed, SecAggPlus
from fedrecsk.privacy._secagg_protocol import MaskingClient, MaskingPlan
from tests.privacy.lying_server import Clients, Lies, LyingServer, split

pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")

N_VALUES = 3
PLAN = MaskingPlan(n_clients=18, n_neighbors=10, threshold=6, n_bits=27)


def vectors_of(n_clients):
    rng = np.random.default_rng(0)
    return {c: rng.integers(-(2**20), 2**20, N_VALUES) for c in range(n_clients)}


def attack(plan, lies, helping=(), session=b"one", vectors=None):
    """Let the server lie; return it and the clients."""
    vectors = vectors_of(max(lies.neighbours) + 1) if vectors is None else vectors
    clients = Clients(vectors, lambda code: plan, helping, session)
    helpers = {code: clients.all[code] for code in helping}
    return LyingServer(plan, session, N_VALUES, clients.ask, lies, helpers), clients


def check(plan, server, clients, n_helping=0):
    """Assert that what the server sees is right, and that no sum is over too few clients."""
    found = server.opened()
    for group, numbers in found:
        assert numbers == sum(clients.vectors[c] for c in group).tolist()
        assert len(group) >= 2 * plan.threshold - plan.n_neighbors - n_helping + 1
    return [group for group, _ in found]


@pytest.mark.parametrize(
    ("n_real", "n_claimed"),
    [(8, 3), (8, 4), (8, 5), (8, 8), (20, 3), (20, 20), (90, 3), (60, 1000), (100, 100)],
)
def test_no_number_of_clients_that_the_server_names_reveals_an_upload(n_real, n_claimed):
    plan, half = SecAggPlus().plan(n_claimed), n_real // 2
    server, clients = attack(plan, split(0, range(1, half), range(half, n_real)))
    assert check(plan, server, clients) == []
    # At least half of the neighbours would have to go along.
    assert len(clients.refusals) >= n_real // 2
    # Nor does it if it keeps to the number of neighbours.
    some, half = range(1, min(plan.n_neighbors, n_real - 1, 12) + 1), plan.n_neighbors // 2
    server, clients = attack(plan, split(0, some[:half], some[half:]))
    assert all(len(group) > 1 for group in check(plan, server, clients))


def two_camps(plan, n_helping):
    """Two camps around client 0, with helpers in both, and others who confirm in the second one."""
    t, k = plan.threshold, plan.n_neighbors
    first = range(1, t - n_helping + 1)
    helping = range(first.stop, first.stop + n_helping)
    second = range(helping.stop, k + 1)
    others = range(k + 1, k + 2 + t - n_helping - len(second))
    lies = split(0, first, [*second, *others], helping)
    lies.neighbours[0] = [*range(1, k + 1)]
    of_first, of_others = {*first, *helping}, {*second, *helping, *others}
    near = {code: of_first | {0} for code in first} | dict.fromkeys(others, of_others)
    near |= {code: of_others | {0} for code in second}
    lies.neighbours |= {code: sorted(own - {code}) for code, own in near.items()}
    return lies, [*helping]


@pytest.mark.parametrize("n_helping", [0, 1, 2])
def test_as_many_helpers_as_promised_reveal_nothing_and_one_more_reveals_an_upload(n_helping):
    """Among neighbours of which the server has chosen all, on no ring."""
    lies, helping = two_camps(PLAN, n_helping)
    server, clients = attack(PLAN, lies, helping)
    groups = check(PLAN, server, clients, n_helping)
    assert ([0] in groups) == (n_helping > PLAN.max_colluding_with_liar)


def test_shares_that_are_kept_back_leave_as_many_clients_in_a_sum_as_promised():
    """Two clients share masks with each other, and with some whose keys are told elsewhere."""
    plan = MaskingPlan(n_clients=14, n_neighbors=5, threshold=3, n_bits=27)
    # Of 0 and 1; of 2 and 3, who are lost for all after them.
    around = {0: [1, 2, 3, 4, 5], 1: [0, 2, 3, 6, 7], 2: [0, 1, 8, 9, 10], 3: [0, 1, 11, 12, 13]}
    others = range(4, 14)
    for code in others:
        near = [4 + (code - 4 + step) % 10 for step in (-2, -1, 1, 2)]
        around[code] = sorted([c for c in range(4) if code in around[c]] + near)
    alive = np.ones(14, dtype=bool)
    lost = alive & ~np.isin(np.arange(14), (2, 3))
    lists = dict.fromkeys(range(4), alive) | dict.fromkeys(others, lost)
    withheld = {(sender, code) for code in (0, 1) for sender in around[code] if sender > 3}
    server, clients = attack(plan, Lies(around, lists, withheld))
    assert [0, 1] in check(plan, server, clients)


def test_clients_that_hear_different_numbers_of_clients_are_no_neighbours():
    """With few neighbours each, a single helper would reveal the keys of all of them."""
    large, small = SecAggPlus().plan(8), SecAggPlus().plan(4)
    clients = Clients(vectors_of(8), lambda code: small if code else large)
    server = LyingServer(large, b"one", N_VALUES, clients.ask, split(0, range(1, 4), range(4, 8)))
    assert server.opened() == []
    assert any("for this sum over 8 clients" in text for text in clients.refusals)


def test_shares_of_one_sum_open_nothing_in_the_next():
    """The victim has survived the first sum for all clients, and the second one for none."""
    plan, vectors = SecAggPlus().plan(8), vectors_of(8)
    first, clients = attack(plan, split(0, range(1, 8), ()), vectors=vectors)
    second, again = attack(plan, split(0, (), range(1, 8)), session=b"two", vectors=vectors)
    assert check(plan, first, clients) == [[*range(8)]]
    assert check(plan, second, again) == [[*range(1, 8)]]
    key = second._secret(0, is_key=True)
    assert key is not None
    assert all(
        group != [0] or numbers != vectors[0].tolist() for group, numbers in first.opened(key)
    )


def drawn(seed, plan, n_helping):
    """Draw whose keys and shares each client gets, and which of two lists of survivors it hears."""
    rng, n_clients = np.random.default_rng(seed), plan.n_clients
    helping, neighbours, survivors = rng.permutation(n_clients)[:n_helping].tolist(), {}, {}
    lists = [rng.random(n_clients) < 0.85, np.ones(n_clients, dtype=bool)]
    for code in range(n_clients):
        others = np.delete(np.arange(n_clients), code)
        n_near = len(others) if code in helping else plan.n_neighbors
        neighbours[code] = sorted(rng.permutation(others)[:n_near].tolist())
        survivors[code] = lists[int(rng.random() < 0.3) if lists[0][code] else 1]
    pairs = {(a, b) for a, near in neighbours.items() for b in near}
    withheld = {(a, b) for a, b in pairs if (b, a) not in pairs or rng.random() < 0.05}
    return Lies(neighbours, survivors, withheld), helping


@pytest.mark.parametrize(
    ("plan", "n_helping"),
    [
        (MaskingPlan(n_clients=8, n_neighbors=7, threshold=4, n_bits=27), 0),
        (MaskingPlan(n_clients=8, n_neighbors=7, threshold=5, n_bits=27), 2),
    ],
)
def test_no_lies_that_are_drawn_show_a_sum_over_too_few(plan, n_helping):
    groups = []
    for seed in range(20):
        lies, helping = drawn(seed, plan, n_helping)
        groups += check(plan, *attack(plan, lies, helping), n_helping)
    # Not all of the lies are refused.
    assert groups


def test_a_client_takes_part_in_no_sum_over_fewer_than_its_operator_says():
    identity = Identity.new(bytes(32), "0", fewest=10)
    assert MaskingClient(SecAggPlus().plan(10), b"one", 0).advertise(identity)
    with pytest.raises(MaskingFailed, match=r"over 9 clients.*certified it.*at least 10"):
        MaskingClient(SecAggPlus().plan(9), b"one", 0).advertise(identity)
    # It is the operator who has said so.
    start = 32 + 64
    fewer = identity.certificate[:start] + (3).to_bytes(4) + identity.certificate[start + 4 :]
    assert not identity.certifies(fewer)


@pytest.mark.parametrize(("fewest", "n_helping"), [(3, 0), (10, 2), (20, 5)])
def test_more_helpers_are_borne_where_the_operator_certifies_more_clients(fewest, n_helping):
    """As docs/encryption.md says, whatever number the server names."""
    scheme = SecAggPlus()
    plans = [scheme.plan(n) for n in (*range(fewest, 200), 500, 1000, 6040, 10**6)]
    assert min(plan.max_colluding_with_liar for plan in plans) == n_helping


@pytest.mark.parametrize("max_dropout", [0.05, 0.1, 1 / 3])
@pytest.mark.parametrize("max_colluding", [0.0, 0.05])
def test_shares_of_noise_are_planned_for_the_fewest_honest_clients_of_a_sum(
    max_dropout, max_colluding
):
    scheme = SecAggPlus(max_dropout=max_dropout, max_colluding=max_colluding)
    for n_clients in (3, 4, 7, 10, 37, 110, 6040, 10**6):
        plan = scheme.plan(n_clients, noisy=0.0)
        # All others are neighbours: with a few of them hardly any share would be sure.
        assert plan.n_neighbors == n_clients - 1
        n_helping = int(max_colluding * n_clients)
        fewest = 2 * plan.threshold - plan.n_neighbors - n_helping + 1
        assert scheme.sure_shares(n_clients) == fewest - 1 >= 1
    # About as many as promised are lost, twice: once for each of two groups that a server deceives.
    assert scheme.sure_shares(6040) == pytest.approx(
        6040 * (1 - 2 * max_dropout - max_colluding), abs=3
    )


def test_no_lies_that_are_drawn_show_a_sum_with_less_noise():
    """Of the shares in a sum, those of the others make up the noise even without a client's own."""
    scheme = SecAggPlus(max_colluding=0.0)
    plan, n_shares, groups = scheme.plan(8, noisy=0.0), scheme.sure_shares(8), []
    for seed in range(20):
        lies, helping = drawn(seed, plan, 0)
        groups += check(plan, *attack(plan, lies, helping))
    assert groups
    assert all(len(group) - 1 >= n_shares for group in groups)
