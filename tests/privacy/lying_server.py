"""A server of masked sums that lies to its clients, and opens whatever their answers allow."""

from dataclasses import dataclass, field

import numpy as np

from fedrecsk.privacy import Identity, MaskingFailed
from fedrecsk.privacy import _secagg_protocol as protocol
from fedrecsk.privacy._secagg_protocol import (
    SHARE_BYTES,
    MaskingClient,
    MaskingServer,
    PublicKeys,
    Ring,
    combine,
    signed,
    unpacked,
)


@dataclass
class Lies:
    """What a lying server sends to its clients, by code."""

    # Whose keys each client gets.
    neighbours: dict[int, list[int]]
    # Who has survived, as each client hears it.
    survivors: dict[int, np.ndarray]
    # Shares (sender, receiver) that it keeps back.
    withheld: set[tuple[int, int]] = field(default_factory=set)


def split(victim, first, second, others=()):
    """Tell the first group that the victim has survived, and the second that it has not.

    All have each other's keys. The `others` hear what the second group hears.
    """
    everyone = [int(code) for code in (victim, *first, *second, *others)]
    alive = np.ones(max(everyone) + 1, dtype=bool)
    lost = alive.copy()
    lost[victim] = False
    survivors = dict.fromkeys([victim, *first], alive) | dict.fromkeys([*second, *others], lost)
    return Lies({c: [o for o in everyone if o != c] for c in everyone}, survivors)


class Helper(MaskingClient):
    """A client that helps the server: it takes all keys and shares, and masks nothing."""

    def share(self, keys, identity):
        self._keys = dict(sorted(keys.items()))
        nothing = bytes(2 * SHARE_BYTES)
        return {c: self._cipher(self.code, c).encrypt(bytes(12), nothing, None) for c in keys}

    def mask(self, values, shares):
        for code, one in shares.items():
            pair = self._cipher(code, self.code).decrypt(bytes(12), one, None)
            self._shares[code] = pair[:SHARE_BYTES], pair[SHARE_BYTES:]
        return b""

    def confirm(self, survivors):
        return {}

    def confirmation_of(self, survivors, receiver):
        """Confirm whatever list a client has got."""
        self._survivors = np.array(survivors, dtype=bool)
        return self._confirmation(self.code, receiver)


class Clients:
    """Clients in this process, of which those in `helping` help the server."""

    def __init__(self, vectors, plan_of, helping=(), session=b"one"):
        self.vectors = vectors
        self.identities = {c: Identity.new(bytes(32), str(c)) for c in vectors}
        self.all = {
            c: (Helper if c in helping else MaskingClient)(plan_of(c), session, c) for c in vectors
        }
        # What clients have said that refuse a step.
        self.refusals = []

    def ask(self, stage, messages):
        answers = {}
        for code, one in messages.items():
            try:
                answers[code] = self.all[code].answer(
                    stage, one, self.identities[code], self.vectors[code]
                )
            except MaskingFailed as error:
                self.refusals.append(str(error))
        return answers


class LyingServer:
    """Takes the steps of a sum with the help of some clients, and tells each client other lies."""

    def __init__(self, plan, session, n_values, ask, lies, helpers=None):
        ring = Ring(np.array(sorted(lies.neighbours)), plan.n_neighbors)
        # By which keys and masks of this sum are named.
        self.session = MaskingServer(plan, session, ring, n_values).session
        self.plan, self.n_values, self.lies = plan, n_values, lies
        self.helpers = helpers or {}
        self.honest = set(lies.neighbours) - set(self.helpers)
        keys = ask("keys", dict.fromkeys(sorted(lies.neighbours), b""))
        self.keys = keys
        self.given = {c: {o: keys[o] for o in lies.neighbours[c] if o in keys} for c in keys}
        shares = ask("shares", self.given)
        arrived = self._routed(shares, self.given, lambda a, b: (a, b) not in lies.withheld)
        self.vectors = ask("vectors", arrived)
        # Clients with which each shares a mask.
        self.masked_with = {c: set(arrived[c]) for c in self.vectors if c in self.honest}
        lists = lies.survivors
        confirmed = ask("confirm", {c: np.packbits(lists[c]).tobytes() for c in self.masked_with})
        # It passes on what clients accept, and no more.
        tags = self._routed(
            confirmed,
            self.masked_with,
            lambda a, b: lists[b][a] and np.array_equal(lists[a], lists[b]),
        )
        for code, own in tags.items():
            for name, one in self.helpers.items():
                if name in self.masked_with[code] and lists[code][name]:
                    own[name] = one.confirmation_of(lists[code], code)
        self.answers = ask("unmask", tags)

    @staticmethod
    def _routed(messages, receivers, passes):
        return {
            c: {
                o: messages[o][c] for o in receivers[c] if c in messages.get(o, ()) and passes(o, c)
            }
            for c in messages
        }

    def _secret(self, code, is_key):
        """Return a client's seed, or that of its key; None if too few shares are known."""
        shares = {}
        for place, other in enumerate(sorted(self.given[code]), start=1):
            if other in self.helpers and code in self.helpers[other]._shares:
                shares[place] = self.helpers[other]._shares[code][is_key]
            elif code in self.answers.get(other, ()) and self.lies.survivors[other][code] != is_key:
                shares[place] = self.answers[other][code]
        enough = dict(list(shares.items())[: self.plan.threshold])
        return combine(enough) if len(enough) == self.plan.threshold else None

    def opened(self, key=None):
        """Return the sums that the server sees: lists of honest clients, and the numbers.

        `key` is what it has found out elsewhere about the key of client 0.
        """
        private = {
            code: protocol._private_key(seed, self.session)
            for code in self.masked_with
            if (seed := self._secret(code, is_key=True)) is not None
        }
        private |= {} if key is None else {0: protocol._private_key(key, self.session)}
        private |= {code: one._masking for code, one in self.helpers.items()}
        numbers, left = {}, {}
        for code, others in self.masked_with.items():
            seed = self._secret(code, is_key=False)
            if seed is None:
                continue
            total = unpacked(self.vectors[code], self.n_values, self.plan.n_bits)
            total = total - protocol._own_mask(seed, self.session, self.n_values)
            left[code] = set()
            for other in others:
                owner, public = (code, other) if code in private else (other, code)
                if owner not in private:
                    left[code].add(other)
                    continue
                masking = PublicKeys.of(self.keys[public]).masking
                pair = self.session, code, other
                total = protocol._with_pair(total, private[owner], masking, *pair, sign=-1)
            numbers[code] = total
        found, seen = [], set()
        for code in numbers:
            group, border = set(), {code} - seen
            while border:
                group |= border
                border = set().union(*(left.get(c, ()) for c in border)) - group
            seen |= group
            # Masks that no other vector of the group has stay in the sum.
            is_closed = all(c in left and all(c in left.get(o, ()) for o in left[c]) for c in group)
            if group and is_closed:
                total = sum(numbers[c] for c in group)
                found.append((sorted(group), signed(total, self.plan.n_bits).tolist()))
        return found
