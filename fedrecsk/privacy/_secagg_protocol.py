"""The protocol of SecAgg+, for one sum: graph, shares, masks, clients and server.

Bell, Bonawitz, Gascon, Lepoint and Raykova, "Secure single-server aggregation with
(poly)logarithmic overhead", CCS 2020, with the consistency check of Bonawitz et al., "Practical
secure aggregation for privacy-preserving machine learning", CCS 2017. One sum:

1. Keys. Each client sends two fresh public keys, signed. The server places the clients on a ring,
   in random order; a client's neighbours are the k nearest.
2. Shares. Each client cuts the seed of its own mask, and that of its secret key for masks with
   neighbours, into k shares, of which t recover them, and sends each neighbour one, encrypted.
3. Masked vectors. Each client sends its vector plus its own mask, plus a mask for each neighbour of
   a higher code, minus one for each of a lower code; these cancel in the sum.
4. Survivors. The server names the clients whose vector has arrived. Each of these confirms the list
   to its neighbours, and goes on only if they have confirmed the same one.
5. Unmasking. Of each neighbour, a client sends the share of the seed, if the neighbour is a
   survivor, and that of the secret key if it is not; never both.

A server that lies. It may tell each client another list of survivors, other neighbours and another
number of clients, keep messages back, and have c helpers among a client's neighbours, whose shares
and confirmations it makes up. All that clients sign or encrypt is bound to the plan, so clients
with another plan are no neighbours. A client takes the keys of at most k neighbours, and 2 t > k +
c. For both of a client's seeds, t neighbours each must tell one, of whom t - c are honest and tell
no other, so 2 (t - c) + c > k would be needed: one stays secret. An honest client that has
answered is, as t neighbours have confirmed, on their list, so that its key stays secret in the same
way. Of the t neighbours that tell the own mask of a client v, and the t with which v shares a mask,
2 t - k - c are both and honest; they have answered. So v's number is seen in a sum with theirs
only: no sum over fewer than 2 t - k - c + 1 honest clients is seen. This is about one sum: two sums
of the same numbers, of which one lacks a client, show its numbers, unless they have noise.
"""

from __future__ import annotations

import functools
import hmac
import itertools
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrecsk._utils.extras import require

# Seeds of 128 bits, the security of X25519, and the smallest prime above 2 ** 128, to share them.
SEED_BYTES = 16
PRIME = 2**128 + 51
SHARE_BYTES = 17
KEY_BYTES = 32
SIGNATURE_BYTES = 64
KEYS_BYTES = 2 * KEY_BYTES + SIGNATURE_BYTES
ED25519 = "cryptography.hazmat.primitives.asymmetric.ed25519"
# Of a message from neighbour to neighbour: Poly1305's tag, or HMAC-SHA256, cut.
TAG_BYTES = 16
CIPHER_BYTES = 2 * SHARE_BYTES + TAG_BYTES
# A client's code, where a message lists several.
CODE_BYTES = 4
# A sum over two clients tells each of them what the other sent.
FEWEST_CLIENTS = 3


class MaskingFailed(RuntimeError):
    """A sum of masked vectors that cannot be unmasked, or that a client refuses to unmask."""


class MaskingPlan(NamedTuple):
    """What all parties of one sum know."""

    n_clients: int
    n_neighbors: int  # of each client, k
    threshold: int  # neighbours that must answer so that a client can be unmasked, t
    n_bits: int  # of a masked number, b: numbers are added modulo 2 ** b

    @property
    def max_colluding(self) -> int:
        """How many of a client's neighbours may help a server that keeps to the protocol."""
        return self.threshold - 1

    @property
    def max_colluding_with_liar(self) -> int:
        """How many may help a server that lies to clients, in any graph; -1: not even 0."""
        return 2 * self.threshold - self.n_neighbors - 1

    def named(self, session: bytes) -> bytes:
        """Return a sum's name with its plan, so that clients with different plans do not agree."""
        return b"|".join([session, *(str(number).encode() for number in self)])

    def nbytes(self, n_values: int) -> int:
        """Return the bytes of a masked vector."""
        return -(-n_values * self.n_bits // 8)


# ------------------------------------------------------------------------------ the graph


class Ring(NamedTuple):
    """The clients of one sum in random order; neighbours are the nearest on both sides."""

    order: np.ndarray  # codes of the clients around the ring, int64
    n_neighbors: int

    def neighbours(self) -> dict[int, list[int]]:
        """Return each client's neighbours, in ascending order of their codes."""
        n_clients = len(self.order)
        steps = [d for d in range(-self.n_neighbors // 2, self.n_neighbors // 2 + 1) if d]
        around = (np.arange(n_clients)[:, None] + steps) % n_clients
        lists = np.sort(self.order[around], axis=1).tolist()
        return dict(zip(self.order.tolist(), lists, strict=True))

    def n_alive(self, alive: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Count each client's neighbours that a mask around the ring has, in the ring's order."""
        n_clients, half = len(self.order), self.n_neighbors // 2
        if self.n_neighbors == n_clients - 1:
            return alive.sum() - alive.astype(np.int64)
        around = np.concatenate([alive[n_clients - half :], alive, alive[:half]])
        sums = np.concatenate([[0], np.cumsum(around)])
        return sums[2 * half + 1 :] - sums[:n_clients] - alive


# --------------------------------------------------------------------------- Shamir's shares


def split(secret: bytes, n_shares: int, threshold: int) -> list[bytes]:
    """Cut a seed into shares, the values of a random polynomial at 1, 2, ..., n_shares."""
    polynomial = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for x in range(1, n_shares + 1):
        y = 0
        for coefficient in reversed(polynomial):
            y = (y * x + coefficient) % PRIME
        shares.append(y.to_bytes(SHARE_BYTES))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of at least `threshold` shares, given by their places 1, 2, ..."""
    places = tuple(shares)
    weights = _lagrange(places)
    total = sum(w * int.from_bytes(shares[x]) for w, x in zip(weights, places, strict=True)) % PRIME
    if total >> (8 * SEED_BYTES):
        raise MaskingFailed("Shares of a client do not belong together, so it cannot be unmasked.")
    return total.to_bytes(SEED_BYTES)


@functools.lru_cache(maxsize=1024)
def _lagrange(places):
    """Return the weights by which values at these places give the value at 0."""
    weights = []
    for x in places:
        above, below = 1, 1
        for other in places:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


# ------------------------------------------------------------------------------- numbers


def mask(key: bytes, n_values: int) -> NDArray[np.uint64]:
    """Expand a key of 32 bytes to random numbers of 64 bits, by ChaCha20."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * n_values)), "<u8")


def packed(numbers: NDArray[np.uint64], n_bits: int) -> bytes:
    """Return the lowest bits of each number, one number after the other."""
    whole = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
    bits = np.unpackbits(whole, axis=1, count=n_bits, bitorder="little")
    return np.packbits(bits, bitorder="little").tobytes()


def unpacked(content: bytes, n_values: int, n_bits: int) -> NDArray[np.uint64]:
    """Return the numbers again."""
    bits = np.unpackbits(
        np.frombuffer(content, np.uint8), count=n_values * n_bits, bitorder="little"
    )
    whole = np.zeros((n_values, 64), dtype=np.uint8)
    whole[:, :n_bits] = bits.reshape(n_values, n_bits)
    return np.packbits(whole, axis=1, bitorder="little").view("<u8").ravel()


def signed(numbers: NDArray[np.uint64], n_bits: int) -> NDArray[np.int64]:
    """Return the integers between -2 ** (n_bits - 1) and 2 ** (n_bits - 1) of their lowest bits."""
    shift = np.int64(64 - n_bits)
    return (numbers.astype(np.uint64).view(np.int64) << shift) >> shift


# ------------------------------------------------------------------------------ the parties


class PublicKeys(NamedTuple):
    """What a client sends first: a key for shares, one for masks, a signature, a certificate."""

    sharing: bytes
    masking: bytes
    signature: bytes
    # Sent in every sum, but always the same, so that ledgers do not count it.
    certificate: bytes

    @classmethod
    def of(cls, content: bytes) -> PublicKeys:
        """Return the keys of bytes, which are `KEYS_BYTES` and a certificate."""
        ends = KEY_BYTES, 2 * KEY_BYTES, KEYS_BYTES
        return cls(*(content[a:b] for a, b in itertools.pairwise((0, *ends, len(content)))))

    def is_signed(self, session: bytes, code: int) -> bool:
        """Return whether the owner of the certificate, whoever it is, has signed these keys."""
        content = _of_keys(session, code, self.sharing, self.masking)
        return _has_signed(self.certificate[:KEY_BYTES], self.signature, content)

    @property
    def are_usable(self) -> bool:
        """Whether clients can agree on secrets by these keys: not by points of low order."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import (
            X25519PrivateKey,
            X25519PublicKey,
        )

        private = X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES))
        try:
            for public in (self.sharing, self.masking):
                private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            return False
        return True


class Identity(NamedTuple):
    """A client's own key to sign with, and what the operator certifies about it.

    Attributes
    ----------
    private : bytes
        Ed25519.
    certificate : bytes
        The client's public key; the operator's signature of it and of the rest; how many clients
        must be in a sum, at least; and the client's id.
    operator : bytes
        The operator's public key, by which other clients' certificates are checked.
    """

    private: bytes
    certificate: bytes
    operator: bytes

    @classmethod
    def new(cls, operator_secret: bytes, name: str, fewest: int = FEWEST_CLIENTS) -> Identity:
        """Make the identity of a client, and certify it by the operator's secret key.

        It takes part in sums over at least `fewest` clients.
        """
        private, signer = secrets.token_bytes(KEY_BYTES), _signer(operator_secret)
        public = _signer(private).public_key().public_bytes_raw()
        rest = fewest.to_bytes(CODE_BYTES) + name.encode()
        certificate = public + signer.sign(_certified(public, rest)) + rest
        return cls(private, certificate, signer.public_key().public_bytes_raw())

    @property
    def public(self) -> bytes:
        """The key by which others check what the client has signed."""
        return self.certificate[:KEY_BYTES]

    @property
    def fewest(self) -> int:
        """The fewest clients of a sum in which this client takes part."""
        start = KEY_BYTES + SIGNATURE_BYTES
        return int.from_bytes(self.certificate[start : start + CODE_BYTES])

    def sign(self, content: bytes) -> bytes:
        """Return the client's signature of some bytes."""
        return _signer(self.private).sign(content)

    def certifies(self, certificate: bytes) -> bool:
        """Return whether a certificate is signed by this client's operator."""
        public, rest = certificate[:KEY_BYTES], certificate[KEY_BYTES:]
        by_operator, rest = rest[:SIGNATURE_BYTES], rest[SIGNATURE_BYTES:]
        return _has_signed(self.operator, by_operator, _certified(public, rest))


def _certified(public, rest):
    """Return what the operator signs of a certificate."""
    return b"fedrecsk node|" + public + rest


def _signer(private):
    """Return the key that signs."""
    return require(ED25519, "SecAggPlus").Ed25519PrivateKey.from_private_bytes(private)


def _has_signed(public, signature, content):
    """Return whether the owner of a public key, if it is one, has signed some bytes."""
    from cryptography.exceptions import InvalidSignature

    keys = require(ED25519, "SecAggPlus").Ed25519PublicKey
    try:
        keys.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _of_keys(session, code, sharing, masking):
    """Return what a client signs of its keys for a sum."""
    return _named(session, b"keys", str(code).encode(), sharing, masking)


def _named(session, purpose, *parts):
    """Return the bytes to which a signature or a key is bound."""
    return b"|".join([b"fedrecsk SecAgg+", session.hex().encode(), purpose, *parts])


def _derive(secret, name):
    """Return 32 bytes by HKDF."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, None, name).derive(secret)


def _agree(private, public, session, purpose, *codes):
    """Return 32 bytes that two clients share, by X25519."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    return _derive(secret, _named(session, purpose, *(str(code).encode() for code in codes)))


def _private_key(seed, session):
    """Return the secret key for masks with neighbours."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(_derive(seed, _named(session, b"key")))


def _own_mask(seed, session, n_values):
    return mask(_derive(seed, _named(session, b"own mask")), n_values)


def _with_pair(total, private, public, session, code, other, *, sign=1):
    """Add the mask of two clients, which the one of the lower code adds, the other subtracts."""
    key = _agree(private, public, session, b"mask", *sorted((code, other)))
    random = mask(key, len(total))
    return total + random if (code < other) == (sign > 0) else total - random


class MaskingClient:
    """A client in one sum, which takes each step once, in this order, or raises.

    Who is asked for a step again must send the same bytes, and not take it again.
    """

    def __init__(self, plan: MaskingPlan, session: bytes, code: int) -> None:
        # The name of the sum, which no other sum has: messages of other sums are refused.
        self.session: bytes = plan.named(session)
        self.plan = plan
        self.code = code
        self._sharing_key: bytes = secrets.token_bytes(KEY_BYTES)
        # Of its own mask, and of its key for masks with neighbours.
        self._seeds: list[bytes] = [secrets.token_bytes(SEED_BYTES) for _ in range(2)]
        self._keys: dict[int, PublicKeys] = {}
        # Shares of the neighbours' seeds and keys.
        self._shares: dict[int, tuple[bytes, bytes]] = {}
        self._survivors: Any = None
        # How many steps after the keys it has taken.
        self._n_steps = 0

    def answer(
        self, stage: str, message: Any, identity: Identity, values: NDArray[np.int64] | None = None
    ) -> bytes | dict[int, bytes]:
        """Take a step, and answer a message of `MaskingServer.run`; `values` are to be masked."""
        if isinstance(message, dict) != (stage in ("shares", "vectors", "unmask")):
            raise MaskingFailed(f"Client {self.code} got a malformed message of {stage}.")
        if stage == "keys":
            return b"".join(self.advertise(identity))
        if stage == "shares":
            keys = {code: PublicKeys.of(one) for code, one in message.items()}
            return self.share(keys, identity)
        if stage == "vectors":
            return self.mask(values, message)
        if stage == "confirm":
            return self.confirm(np.unpackbits(np.frombuffer(message, np.uint8)).astype(bool))
        return self.unmask(message)

    @property
    def _sharing(self):
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return X25519PrivateKey.from_private_bytes(self._sharing_key)

    @property
    def _masking(self):
        return _private_key(self._seeds[1], self.session)

    def advertise(self, identity: Identity) -> PublicKeys:
        """Return the client's public keys, which it signs."""
        if self.plan.n_clients < identity.fewest:
            raise MaskingFailed(
                f"Client {self.code} is asked for a sum over {self.plan.n_clients} clients, but "
                f"its operator has certified it for sums over at least {identity.fewest}. Raise "
                "client_fraction, find more clients, or write identities with fewest= lower."
            )
        sharing = self._sharing.public_key().public_bytes_raw()
        masking = self._masking.public_key().public_bytes_raw()
        signature = identity.sign(_of_keys(self.session, self.code, sharing, masking))
        return PublicKeys(sharing, masking, signature, identity.certificate)

    def _take(self, step, name):
        """Raise unless this is the next step."""
        if step != self._n_steps:
            raise MaskingFailed(
                f"Client {self.code} is asked for {name} out of turn or a second time; it takes "
                "each step of a sum once, and refuses."
            )

    def share(self, keys: Mapping[int, PublicKeys], identity: Identity) -> dict[int, bytes]:
        """Take the neighbours' keys, verify them, and return an encrypted share for each."""
        self._take(0, "shares")
        k, t = self.plan.n_neighbors, self.plan.threshold
        if len(keys) > k or 2 * t <= k:
            raise MaskingFailed(
                f"Client {self.code} got the keys of {len(keys)} neighbours, more than the {k} of "
                f"a sum over {self.plan.n_clients} clients, or a threshold of {t} that does not "
                "protect it from a server that lies; it sends nothing."
            )
        if len(keys) < max(t, FEWEST_CLIENTS - 1):
            raise MaskingFailed(
                f"Client {self.code} got the keys of {len(keys)} neighbours, but {t} must be able "
                "to unmask it; it sends nothing."
            )
        if self.code in keys or len({one.masking for one in keys.values()}) < len(keys):
            raise MaskingFailed(f"The keys that client {self.code} got are not those of others.")
        for code, one in keys.items():
            if not (identity.certifies(one.certificate) and one.is_signed(self.session, code)):
                raise MaskingFailed(
                    f"Client {code} has no certificate of this node's operator, or has not signed "
                    f"its keys itself, for this sum over {self.plan.n_clients} clients."
                )
            if not one.are_usable:
                raise MaskingFailed(
                    f"Client {code} has sent a key of low order, by which nothing can be masked."
                )
        publics = {identity.public, *(one.certificate[:KEY_BYTES] for one in keys.values())}
        if len(publics) <= len(keys):
            raise MaskingFailed("Two of the clients have the same certificate.")
        self._keys, self._n_steps = dict(sorted(keys.items())), 1
        pairs = zip(*(split(seed, len(keys), t) for seed in self._seeds), strict=True)
        return {
            code: self._cipher(self.code, code).encrypt(bytes(12), b"".join(pair), None)
            for code, pair in zip(self._keys, pairs, strict=True)
        }

    def _cipher(self, sender, receiver):
        """Return the cipher of one message; because its key is of no other, the nonce is zero."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        return ChaCha20Poly1305(self._way(b"share", sender, receiver))

    def _way(self, purpose, sender, receiver):
        """Return the key of messages between this client and a neighbour."""
        public = self._keys[receiver if sender == self.code else sender].sharing
        return _agree(self._sharing, public, self.session, purpose, sender, receiver)

    def mask(self, values: NDArray[np.int64] | None, shares: Mapping[int, bytes]) -> bytes:
        """Return the vector with a mask for each neighbour whose share has arrived."""
        from cryptography.exceptions import InvalidTag

        self._take(1, "its vector")
        if values is None or values.dtype != np.int64:
            raise TypeError("A client can mask a vector of int64 only.")
        if len(shares) < self.plan.threshold:
            raise MaskingFailed(
                f"Client {self.code} got shares of {len(shares)} neighbours, fewer than the "
                f"threshold {self.plan.threshold}; it sends nothing."
            )
        opened = {}
        for code, cipher in shares.items():
            try:
                pair = self._cipher(code, self.code).decrypt(bytes(12), cipher, None)
            except (InvalidTag, KeyError) as error:
                raise MaskingFailed(
                    f"Client {self.code} got a share that client {code} did not encrypt for it in "
                    "this sum; it sends nothing."
                ) from error
            opened[code] = pair[:SHARE_BYTES], pair[SHARE_BYTES:]
        self._shares, self._n_steps = opened, 2
        total = values.view(np.uint64) + _own_mask(self._seeds[0], self.session, len(values))
        private = self._masking
        for code in self._shares:
            public = self._keys[code].masking
            total = _with_pair(total, private, public, self.session, self.code, code)
        return packed(total, self.plan.n_bits)

    def confirm(self, survivors: NDArray[np.bool_]) -> dict[int, bytes]:
        """Take the mask of the survivors, by code, and return its confirmation to neighbours."""
        self._take(2, "a confirmation of survivors")
        if len(survivors) <= max(self.code, *self._shares):
            raise MaskingFailed(
                f"Client {self.code} got a list of {len(survivors)} survivors, in which it or a "
                "neighbour has no place; it refuses."
            )
        left = [code for code in self._shares if survivors[code]]
        if not survivors[self.code] or len(left) < self.plan.threshold:
            raise MaskingFailed(
                f"Client {self.code} would unmask a sum in which it is not, or with {len(left)} of "
                f"its neighbours, fewer than the threshold {self.plan.threshold}; it refuses."
            )
        self._survivors, self._n_steps = np.array(survivors, dtype=bool), 3
        return {code: self._confirmation(self.code, code) for code in left}

    def _confirmation(self, sender, receiver):
        key, content = self._way(b"confirm", sender, receiver), np.packbits(self._survivors)
        return hmac.digest(key, content.tobytes(), "sha256")[:TAG_BYTES]

    def unmask(self, confirmations: Mapping[int, bytes]) -> dict[int, bytes]:
        """Take the neighbours' confirmations, and return one share of each neighbour."""
        self._take(3, "shares of its neighbours' masks")
        self._compare(confirmations)
        self._n_steps = 4
        return {
            code: seed if self._survivors[code] else key
            for code, (seed, key) in self._shares.items()
        }

    def _compare(self, confirmations):
        """Raise unless enough neighbours, and no others, have confirmed the same survivors."""
        for code, tag in confirmations.items():
            known = code in self._shares and self._survivors[code]
            if not known or not hmac.compare_digest(tag, self._confirmation(code, self.code)):
                raise MaskingFailed(
                    f"Client {self.code} and client {code} got different lists of survivors, as "
                    "from a server that wants to see single uploads; it refuses to unmask."
                )
        if len(confirmations) < self.plan.threshold:
            raise MaskingFailed(
                f"{len(confirmations)} neighbours of client {self.code} have confirmed the list of "
                f"survivors, fewer than the threshold {self.plan.threshold}; it refuses to unmask."
            )


class MaskingServer:
    """The server of one sum of vectors of a length. It takes its steps in this order."""

    def __init__(self, plan: MaskingPlan, session: bytes, ring: Ring, n_values: int) -> None:
        self.plan = plan
        self.session: bytes = plan.named(session)
        self.n_values = n_values
        self.neighbours: dict[int, list[int]] = ring.neighbours()
        # Those of PublicKeys, one after the other.
        self.keys: dict[int, bytes] = {}
        # Who has shared with whom.
        self._shared: dict[int, list[int]] = {}
        self._masked: dict[int, bytes] = {}

    def run(
        self, ask: Callable[[str, dict[int, Any]], dict[int, Any]]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Take all steps; return the sum, and the mask of who is in it, by code.

        `ask` is given a stage ("keys", "shares", "vectors", "confirm", "unmask") and what to send
        to each client, by code: bytes, or bytes by other clients' codes. It returns those of the
        clients' answers that arrive.
        """
        keys = self.route_keys(ask("keys", dict.fromkeys(sorted(self.neighbours), b"")))
        shares = self.route_shares(ask("shares", keys))
        alive = self.survivors(ask("vectors", shares))
        left, listed = np.flatnonzero(alive).tolist(), np.packbits(alive).tobytes()
        confirmed = ask("confirm", dict.fromkeys(left, listed))
        return self.total(ask("unmask", self.route(confirmed))), alive

    def route_keys(self, sent: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """Take all clients' keys, and return to each client those of its neighbours."""
        # Neighbours would refuse others, and their sum would be lost.
        keys = self.keys = {
            code: one
            for code, one in sent.items()
            if (own := PublicKeys.of(one)).is_signed(self.session, code) and own.are_usable
        }
        self._check(len(keys), "sent keys")
        return {
            code: {other: keys[other] for other in self.neighbours[code] if other in keys}
            for code in keys
        }

    def route_shares(self, shares: Mapping[int, dict[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Take encrypted shares by sender and receiver, and return them by receiver and sender."""
        self._check(len(shares), "sent shares")
        self._shared = {code: sorted(own) for code, own in shares.items()}
        return self.route(shares)

    def route(self, messages: Mapping[int, dict[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Take messages by sender and receiver, and return them by receiver and sender."""
        return {
            code: {
                other: messages[other][code]
                for other in self.neighbours[code]
                if code in messages.get(other, ())
            }
            for code in messages
        }

    def survivors(self, masked: Mapping[int, bytes]) -> NDArray[np.bool_]:
        """Take the masked vectors, and return the mask of who is in the sum, by code."""
        length = self.plan.nbytes(self.n_values)
        self._masked = {
            c: one for c, one in masked.items() if c in self._shared and len(one) == length
        }
        self._check(len(self._masked), "sent a masked vector")
        alive = np.zeros(max(self.neighbours) + 1, dtype=bool)
        alive[list(self._masked)] = True
        return alive

    def total(self, answers: Mapping[int, dict[int, bytes]]) -> NDArray[np.int64]:
        """Take the survivors' shares, remove all masks, and return the sum of the vectors."""
        total = np.zeros(self.n_values, dtype=np.uint64)
        for one in self._masked.values():
            total += unpacked(one, self.n_values, self.plan.n_bits)
        for code in self._shared:
            secret = self._recovered(code, answers)
            if secret is None:
                continue
            if code in self._masked:
                total -= _own_mask(secret, self.session, self.n_values)
            else:
                total -= self._pairs_of(code, secret)
        return signed(total, self.plan.n_bits)

    def _recovered(self, code, answers):
        """Return a client's seed or key, from the first shares that are enough."""
        if code not in self._masked and not any(
            other in self._masked for other in self._shared[code]
        ):
            return None  # A lost client without a mask in the sum.
        shares = {}
        for place, other in enumerate(self._shared[code], start=1):
            if other in answers and code in answers[other]:
                shares[place] = answers[other][code]
            if len(shares) == self.plan.threshold:
                return combine(shares)
        raise MaskingFailed(
            f"{len(shares)} neighbours of client {code} have answered, fewer than the threshold "
            f"{self.plan.threshold}, so the sum cannot be unmasked and is lost; the server learns "
            "nothing. Raise max_dropout if this happens often."
        )

    def _pairs_of(self, code, seed):
        """Return what survivors have added for the masks that they share with a lost client."""
        private = _private_key(seed, self.session)
        if private.public_key().public_bytes_raw() != PublicKeys.of(self.keys[code]).masking:
            raise MaskingFailed(f"The shares of client {code} are not those of its key.")
        total = np.zeros(self.n_values, dtype=np.uint64)
        for other in self._shared[code]:
            if other in self._masked:
                # The survivor has done the opposite of what the lost client would have done.
                public = PublicKeys.of(self.keys[other]).masking
                total = _with_pair(total, private, public, self.session, code, other, sign=-1)
        return total

    def _check(self, n_clients, what):
        if n_clients < max(FEWEST_CLIENTS, self.plan.threshold + 1):
            raise MaskingFailed(
                f"Only {n_clients} clients {what}, fewer than a sum needs; it is lost, and the "
                "server learns nothing."
            )


def bytes_of_sum(
    plan: MaskingPlan, ring: Ring, alive: NDArray[np.bool_], n_values: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes that clients send and receive, by place; vectors of `alive` arrive."""
    k, left = plan.n_neighbors, ring.n_alive(alive)
    shares = k * (CODE_BYTES + CIPHER_BYTES)
    confirmations = alive * left * (CODE_BYTES + TAG_BYTES)
    up = KEYS_BYTES + shares + plan.nbytes(n_values) + confirmations + alive * k * SHARE_BYTES
    down = k * (CODE_BYTES + KEYS_BYTES) + shares + alive * -(-plan.n_clients // 8) + confirmations
    return up, down
