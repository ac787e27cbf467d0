"""SecAgg+: the protocol against a plain sum, clients that are lost, and attacks."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.stats import hypergeom

from fedrecsk.privacy import Identity, MaskingFailed, SecAggPlus
from fedrecsk.privacy import _secagg_protocol as protocol
from fedrecsk.privacy._secagg_protocol import (
    MaskingClient,
    MaskingPlan,
    MaskingServer,
    PublicKeys,
    Ring,
    bytes_of_sum,
    combine,
    signed,
    split,
    unpacked,
)
from tests.privacy.masked_sums import Lost, masked_sum

pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")

N, N_VALUES = 18, 37
PLAN = MaskingPlan(n_clients=N, n_neighbors=10, threshold=6, n_bits=27)
COMPLETE = PLAN._replace(n_neighbors=N - 1, threshold=10)


def make(plan=PLAN, seed=0):
    rng = np.random.default_rng(seed)
    vectors = {c: rng.integers(-(2**21), 2**21, N_VALUES) for c in range(plan.n_clients)}
    return vectors, Ring(rng.permutation(plan.n_clients), plan.n_neighbors)


def summed(vectors, clients):
    """Add vectors up in plain Python."""
    return [sum(int(vectors[c][i]) for c in clients) for i in range(N_VALUES)]


# ------------------------------------------------------------------------------- sums


@pytest.mark.parametrize(
    ("plan", "lost"),
    [
        (COMPLETE, Lost()),
        (PLAN, Lost(shares=[3, 8])),
        (PLAN, Lost(vector=[0, 5, 11])),
        (PLAN, Lost(confirmation=[2, 9])),
        (PLAN, Lost(answer=[1, 14])),
        (COMPLETE, Lost(shares=[3], vector=[4], confirmation=[5], answer=[6])),
    ],
    ids=str,
)
def test_the_sum_is_exact_whoever_is_lost(plan, lost):
    vectors, ring = make(plan)
    total, alive = masked_sum(plan, vectors, ring, lost)
    gone = {*lost.shares, *lost.vector}
    assert np.flatnonzero(alive).tolist() == [c for c in range(N) if c not in gone]
    assert total.tolist() == summed(vectors, set(range(N)) - gone)


@pytest.mark.parametrize("stage", ["shares", "vector", "confirmation", "answer"])
def test_below_the_threshold_the_sum_is_lost_and_nothing_else(stage):
    vectors, ring = make()
    # Of the neighbours of one client, all but five are lost.
    gone = Ring(ring.order, 10).neighbours()[0][5:]
    with pytest.raises(MaskingFailed, match=r"fewer than the threshold 6"):
        masked_sum(PLAN, vectors, ring, Lost(**{stage: gone}))


def size(message, code=4):
    """Bytes of a message: of entries by neighbour with their codes, of survivors one bit each."""
    if isinstance(message, dict):
        return sum(code + size(one) for one in message.values())
    if isinstance(message, np.ndarray):
        return -(-len(message) // 8) if message.dtype == bool else 0  # its own vector stays
    if isinstance(message, PublicKeys):
        return sum(map(len, message[:3]))  # not the certificate, which is the same in every sum
    return 0 if isinstance(message, Identity) else len(message)


def test_bytes_are_those_of_the_messages(monkeypatch):
    sent, received = Counter(), Counter()

    def counted(name, run):
        def call(client, *arguments):
            answer = run(client, *arguments)
            received[client.code] += sum(map(size, arguments))
            sent[client.code] += size(answer, code=0 if name == "unmask" else 4)
            return answer

        return call

    for name in ("advertise", "share", "mask", "confirm", "unmask"):
        monkeypatch.setattr(MaskingClient, name, counted(name, getattr(MaskingClient, name)))
    for plan in (PLAN, COMPLETE):
        vectors, ring = make(plan)
        for lost in ([], [3, 4, 9]):
            sent.clear()
            received.clear()
            _, alive = masked_sum(plan, vectors, ring, Lost(vector=lost))
            up, down = bytes_of_sum(plan, ring, alive[ring.order], N_VALUES)
            assert [sent[c] for c in ring.order] == up.tolist()
            assert [received[c] for c in ring.order] == down.tolist()
    # Two keys and a signature; 17 shares; 37 numbers of 27 bits; 14 confirmations; 17 answers.
    assert sent[0] == 128 + 17 * (4 + 50) + 125 + 14 * (4 + 16) + 17 * 17


def test_any_threshold_of_the_shares_is_enough_and_fewer_say_nothing():
    seed = bytes(range(16))
    shares = dict(enumerate(split(seed, 5, 3), start=1))
    for places in itertools.combinations(shares, 3):
        assert combine({x: shares[x] for x in places}) == seed
    # Two shares fit every secret: with a third share made up, each comes out.
    two = {1: shares[1], 2: shares[2]}
    for wanted in (0, 7, 2**128 - 1):
        first, second = (int.from_bytes(two[x]) for x in (1, 2))
        # The line of degree 2 through (0, wanted), (1, first), (2, second) at 3.
        third = (wanted - 3 * first + 3 * second) % protocol.PRIME
        assert combine({**two, 3: third.to_bytes(17)}) == wanted.to_bytes(16)


# -------------------------------------------------------------------- neighbours and threshold


@pytest.mark.parametrize("n_clients", [100, 943, 6040])
def test_neighbours_keep_both_promises_and_two_fewer_do_not(n_clients):
    scheme = SecAggPlus()
    plan = scheme.plan(n_clients)

    def keeps(k, t):
        lost = int(scheme.max_dropout * n_clients)
        colluding = int(scheme.max_colluding * n_clients)
        alive = hypergeom(n_clients - 1, n_clients - 1 - lost, k)
        exposed = hypergeom(n_clients - 1, colluding, k)
        cut = n_clients * (scheme.max_dropout + scheme.max_colluding) ** (k // 2)
        return (
            n_clients * alive.cdf(t - 1) <= 2.0**-30
            # A server that lies needs so many helpers among a client's k neighbours.
            and n_clients * exposed.sf(2 * t - k - 1) <= 2.0**-40
            and cut <= 2.0**-40
        )

    assert keeps(plan.n_neighbors, plan.threshold)
    k = plan.n_neighbors - 2
    assert not any(keeps(k, t) for t in range(2, k + 1))


def test_sums_over_all_clients_cannot_overflow():
    for n_clients in (3, 10, 6040):
        scheme = SecAggPlus()
        n_bits = scheme.plan(n_clients).n_bits
        assert 2 ** (n_bits - 2) <= n_clients * scheme._largest < 2 ** (n_bits - 1)


@pytest.mark.parametrize(
    ("parameters", "n_clients", "message"),
    [
        ({"n_neighbors": 20}, 1000, r"n_neighbors=20 is too few among 1000 clients.*exposed"),
        ({"threshold": 0.9}, 1000, r"threshold=0.9 .*is too few|threshold=0.9 asks"),
        ({"n_neighbors": 200, "threshold": 0.06}, 1000, "n_neighbors=200 with threshold=0.06"),
        ({"n_neighbors": 81}, 1000, "n_neighbors=81 must be even"),
        ({"threshold": 0.95}, 20, "threshold=0.95 asks for 19 of 19 neighbours"),
        ({}, 2, "at least 3 clients in a sum, but got 2"),
        ({}, 1, "a sum over one is its upload"),
        ({"max_dropout": 0.45, "max_colluding": 0.1}, 9, "leave too few honest clients"),
        ({"threshold": 0.5}, 20, "which sees uploads if 10 is not above 10"),
        ({"fraction_bits": 40, "max_abs": 1e6}, 100, "need 68 bits, and 63 is the most"),
    ],
)
def test_what_cannot_be_kept_is_refused(parameters, n_clients, message):
    scheme = SecAggPlus(**parameters)

    def check():
        scheme._validate_params()
        scheme.plan(n_clients)

    with pytest.raises(ValueError, match=message):
        check()


def test_more_can_be_asked_of_more_neighbours():
    careful = SecAggPlus(max_colluding=0.2).plan(6040)
    assert careful.n_neighbors > SecAggPlus().plan(6040).n_neighbors
    assert SecAggPlus(n_neighbors=900).plan(6040).n_neighbors == 900
    assert SecAggPlus(n_neighbors=900).plan(100).n_neighbors == 99


def test_of_few_clients_fewer_may_be_lost_but_none_is_exposed():
    scheme = SecAggPlus(max_dropout=0.4, max_colluding=0.15)
    for n_clients in range(3, 60):
        plan = scheme.plan(n_clients)
        assert 2 * plan.threshold > plan.n_neighbors + int(0.15 * n_clients)
        assert plan.threshold <= plan.n_neighbors


def test_a_plan_for_any_number_of_clients_takes_a_few_neighbours():
    assert SecAggPlus().plan(2**31 - 1).n_neighbors < 2000


# ----------------------------------------------------------------------------- attacks


class Sum:
    """One sum up to the masked vectors, by clients that keep to the protocol.

    The `late` ones have sent shares and no vector yet.
    """

    def __init__(self, plan=PLAN, vectors=None, Client=MaskingClient, late=()):
        self.plan = plan
        self.vectors, self.ring = make(plan)
        self.vectors = vectors or self.vectors
        self.identities = {c: Identity.new(bytes(32), str(c)) for c in self.vectors}
        self.clients = {c: Client(plan, b"one", c) for c in self.vectors}
        self.server = MaskingServer(plan, b"one", self.ring, len(self.vectors[0]))
        self.keys = {c: one.advertise(self.identities[c]) for c, one in self.clients.items()}
        keys = self.server.route_keys({c: b"".join(one) for c, one in self.keys.items()})
        self.shares = {
            c: one.answer("shares", keys[c], self.identities[c]) for c, one in self.clients.items()
        }
        self.routed = self.server.route_shares(self.shares)
        self.masked = {
            c: one.mask(self.vectors[c], self.routed[c])
            for c, one in self.clients.items()
            if c not in late
        }
        self.neighbours = self.ring.neighbours()

    def opened(self, target, seed_shares, key_shares):
        """Remove a client's masks as a curious server would, given shares by their places."""
        session = self.server.session
        own = protocol._own_mask(combine(seed_shares), session, N_VALUES)
        private = protocol._private_key(combine(key_shares), session)
        total = unpacked(self.masked[target], N_VALUES, self.plan.n_bits) - own
        pairs = np.zeros(N_VALUES, dtype=np.uint64)
        for other in self.neighbours[target]:
            public = self.keys[other].masking
            pairs = protocol._with_pair(pairs, private, public, session, target, other)
        return signed(total - pairs, self.plan.n_bits)

    def known(self, target, colluding):
        """Shares of a client's two seeds that colluding neighbours hold, by their places."""
        places = {other: x for x, other in enumerate(self.neighbours[target], start=1)}
        pairs = {places[c]: self.clients[c]._shares[target] for c in colluding}
        return tuple({x: pair[i] for x, pair in pairs.items()} for i in (0, 1))


def test_a_masked_vector_is_uniform():
    one = Sum(PLAN._replace(n_bits=8), {c: np.zeros(4096, dtype=np.int64) for c in range(N)})
    counts = np.bincount(unpacked(one.masked[0], 4096, 8).astype(int), minlength=256)
    # Chi-squared of 255 degrees of freedom: below 360 but for odds of 2e-5.
    assert ((counts - 16) ** 2 / 16).sum() < 360


def test_as_many_colluding_neighbours_as_the_threshold_see_an_upload_and_one_fewer_do_not():
    one, target = Sum(), 7
    enough = one.neighbours[target][: PLAN.threshold]
    assert one.opened(target, *one.known(target, enough)).tolist() == one.vectors[target].tolist()
    fewer = one.known(target, enough[:-1])
    # What they hold fits other seeds as well: here the missing share is made up.
    for guess in (1, 2):
        made_up = [dict(own) | {10: guess.to_bytes(17)} for own in fewer]
        try:
            found = one.opened(target, *made_up)
        except MaskingFailed:
            continue
        assert found.tolist() != one.vectors[target].tolist()


class Trusting(MaskingClient):
    """A client that does not insist that neighbours confirm the same survivors."""

    def _compare(self, confirmations):
        pass


def lie(one, target):
    """Tell each client other survivors, so that all masks of the target can be removed.

    All hear that the target survives, so that they open its own mask. Of each of its neighbours,
    as many as the threshold hear that it is lost, so that they open its key. Nobody hears of more
    lost neighbours than it would accept.
    """
    lists = {code: np.ones(N, dtype=bool) for code in one.clients}
    for victim in one.neighbours[target]:
        holders = [c for c in one.neighbours[victim] if c != target]
        holders.sort(key=lambda c: -lists[c].sum())
        for code in holders[: one.plan.threshold]:
            lists[code][victim] = False
    return lists


@pytest.mark.parametrize("withholds", [False, True])
@pytest.mark.parametrize("checks", [False, True])
def test_different_lists_of_survivors_reveal_an_upload_unless_clients_compare(checks, withholds):
    one, target = Sum(Client=MaskingClient if checks else Trusting), 7
    lists = lie(one, target)
    routed = one.server.route({c: one.clients[c].confirm(alive) for c, alive in lists.items()})
    answers = {}
    for code, own in routed.items():
        if withholds:
            # A cleverer server passes on only what does not give it away.
            own = {c: tag for c, tag in own.items() if np.array_equal(lists[c], lists[code])}
        try:
            answers[code] = one.clients[code].unmask(own)
        except MaskingFailed as error:
            assert ("fewer than the threshold" if withholds else "different lists") in str(error)  # noqa: PT017

    def opened(code, is_lost):
        """Return a client's seed, if enough neighbours have answered as if it were lost, or not."""
        shares = {
            x: answers[other][code]
            for x, other in enumerate(one.neighbours[code], start=1)
            if other in answers and lists[other][code] != is_lost
        }
        enough = list(shares.items())[: PLAN.threshold]
        return combine(dict(enough)) if len(enough) == PLAN.threshold else None

    own_seed = opened(target, False)
    seeds = {code: opened(code, True) for code in one.neighbours[target]}
    if checks:
        assert own_seed is None
        assert not any(seeds.values())
        return
    total = unpacked(one.masked[target], N_VALUES, PLAN.n_bits)
    session = one.server.session
    total = total - protocol._own_mask(own_seed, session, N_VALUES)
    for code, seed in seeds.items():
        private, public = protocol._private_key(seed, session), one.keys[target].masking
        total = protocol._with_pair(total, private, public, session, code, target)
    assert signed(total, PLAN.n_bits).tolist() == one.vectors[target].tolist()


def test_a_client_answers_once_and_never_for_a_sum_without_it_or_its_neighbours():
    one, everyone = Sum(), np.ones(N, dtype=bool)
    with pytest.raises(MaskingFailed, match="shares of its neighbours' masks out of turn"):
        one.clients[0].unmask({})
    for few in (everyone[:0], everyone[:10]):
        with pytest.raises(MaskingFailed, match=f"a list of {len(few)} survivors"):
            one.clients[0].confirm(few)
    without = everyone.copy()
    without[0] = False
    with pytest.raises(MaskingFailed, match="a sum in which it is not"):
        one.clients[0].confirm(without)
    alone = np.zeros(N, dtype=bool)
    alone[0] = True
    with pytest.raises(MaskingFailed, match=r"with 0 of its neighbours.*it refuses"):
        one.clients[0].confirm(alone)
    routed = one.server.route({c: one.clients[c].confirm(everyone) for c in one.clients})
    with pytest.raises(MaskingFailed, match="confirmation of survivors out of turn or a second"):
        one.clients[0].confirm(everyone)
    one.clients[0].unmask(routed[0])
    with pytest.raises(MaskingFailed, match="out of turn or a second time"):
        one.clients[0].unmask(routed[0])
    few = dict(list(routed[1].items())[: PLAN.threshold - 1])
    with pytest.raises(MaskingFailed, match="5 neighbours of client 1 have confirmed"):
        one.clients[1].unmask(few)


def test_shares_and_vector_are_sent_once():
    """New shares would be encrypted by an old key; two vectors show their difference."""
    one = Sum()
    keys = {c: one.keys[c] for c in one.neighbours[0]}
    with pytest.raises(MaskingFailed, match="asked for shares out of turn or a second time"):
        one.clients[0].share(keys, one.identities[0])
    with pytest.raises(MaskingFailed, match="asked for its vector out of turn or a second time"):
        one.clients[0].mask(one.vectors[0] + 1, one.routed[0])


def test_a_neighbour_that_is_lost_confirms_nothing():
    """Even if it says the same list, in which it is not."""
    one, alive = Sum(), np.arange(N) != 3
    near = one.neighbours[3][0]
    left = np.flatnonzero(alive).tolist()
    routed = one.server.route({c: one.clients[c].confirm(alive) for c in left})
    one.clients[3]._survivors = alive
    routed[near][3] = one.clients[3]._confirmation(3, near)
    with pytest.raises(MaskingFailed, match=f"{near} and client 3 got different lists"):
        one.clients[near].unmask(routed[near])


def test_one_identity_counts_as_one_neighbour():
    """Else a single helper of the server could stand for a threshold of neighbours."""
    one, message = Sum(), "Two of the clients have the same certificate"
    first, second = one.neighbours[0][:2]
    for client, owner in ((second, first), (second, 0)):
        again = MaskingClient(PLAN, b"one", client).advertise(one.identities[owner])
        keys = {code: one.keys[code] for code in one.neighbours[0]}
        victim = MaskingClient(PLAN, b"one", 0)
        with pytest.raises(MaskingFailed, match=message):
            victim.share(keys | {client: again}, one.identities[0])
        assert victim.share(keys, one.identities[0])


@pytest.mark.parametrize("which", ["sharing", "masking"])
def test_a_key_of_low_order_is_the_loss_of_its_client_alone(which):
    one = Sum()
    keys = dict(one.keys)
    low = {"sharing": keys[3].sharing, "masking": keys[3].masking, which: bytes(32)}
    content = protocol._of_keys(one.server.session, 3, **low)
    keys[3] = PublicKeys(**low, signature=one.identities[3].sign(content), certificate=keys[3][3])
    near = one.neighbours[3][0]
    client = MaskingClient(PLAN, b"one", near)
    with pytest.raises(MaskingFailed, match="Client 3 has sent a key of low order"):
        client.share({c: keys[c] for c in one.neighbours[near]}, one.identities[near])
    server = MaskingServer(PLAN, b"one", one.ring, N_VALUES)
    assert server.route_keys({c: b"".join(own) for c, own in keys.items()}).keys() == {
        *range(N)
    } - {3}


def test_a_message_of_another_form_is_refused():
    one = Sum()
    for stage, message in (("shares", b""), ("confirm", {}), ("unmask", b"x")):
        with pytest.raises(MaskingFailed, match=f"malformed message of {stage}"):
            one.clients[0].answer(stage, message, one.identities[0])


def test_shares_of_other_sums_clients_or_receivers_are_refused():
    one, two = Sum(late=[0]), Sum()
    routed = one.routed
    first, second = list(routed[0])[:2]
    other = MaskingClient(PLAN, b"two", 0)
    for wrong in (
        two.shares[first][0],  # of another sum
        routed[0][second],  # of another sender
        one.shares[first][next(c for c in one.shares[first] if c != 0)],  # to another receiver
        routed[0][first][:-1] + bytes([routed[0][first][-1] ^ 1]),
    ):
        with pytest.raises(MaskingFailed, match=f"client {first} did not encrypt for it"):
            one.clients[0].mask(one.vectors[0], {**routed[0], first: wrong})
    # The same keys replayed in another sum have the wrong signature.
    keys = {c: one.keys[c] for c in one.neighbours[0]}
    with pytest.raises(MaskingFailed, match="has not signed its keys itself"):
        other.share(keys, one.identities[0])


def test_keys_of_the_servers_own_are_refused():
    one = Sum(late=[0])
    keys = {c: one.keys[c] for c in one.neighbours[0]}
    client = MaskingClient(PLAN, b"one", 0)
    first, second = list(keys)[:2]
    forged = keys[first]._replace(masking=bytes(range(32)))
    with pytest.raises(MaskingFailed, match="has not signed its keys itself"):
        client.share({**keys, first: forged}, one.identities[0])
    with pytest.raises(MaskingFailed, match="not those of others"):
        client.share({**keys, first: keys[second]}, one.identities[0])
    with pytest.raises(MaskingFailed, match="not those of others"):
        client.share({**dict(list(keys.items())[1:]), 0: one.keys[0]}, one.identities[0])
    with pytest.raises(MaskingFailed, match="keys of 11 neighbours, more than the 10"):
        client.share({**keys, 99: one.keys[0]}, one.identities[0])
    weak = MaskingClient(PLAN._replace(threshold=5), b"one", 0)
    with pytest.raises(MaskingFailed, match="threshold of 5 that does not protect it"):
        weak.share(keys, one.identities[0])
    with pytest.raises(MaskingFailed, match="keys of 5 neighbours, but 6"):
        client.share(dict(list(keys.items())[:5]), one.identities[0])
    with pytest.raises(MaskingFailed, match="shares of 5 neighbours"):
        one.clients[0].mask(one.vectors[0], dict(list(one.routed[0].items())[:5]))
    # What was refused counts for nothing.
    assert len(one.clients[0].mask(one.vectors[0], one.routed[0])) == PLAN.nbytes(N_VALUES)


def test_a_client_that_lies_about_shares_spoils_the_sum_and_reveals_nothing():
    one = Sum()
    alive = one.server.survivors({c: m for c, m in one.masked.items() if c != 3})
    left = np.flatnonzero(alive).tolist()
    routed = one.server.route({c: one.clients[c].confirm(alive) for c in left})
    answers = {c: one.clients[c].unmask(routed[c]) for c in left}
    liar = one.neighbours[3][0]
    answers[liar][3] = bytes(17)
    with pytest.raises(MaskingFailed, match=r"not those of its key|do not belong together"):
        one.server.total(answers)
