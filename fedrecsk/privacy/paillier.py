"""Paillier: exact sums of encrypted fixed-point vectors."""

from __future__ import annotations

import hashlib
import math
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk._utils.user_warnings import warn
from fedrecsk.privacy._secure_sum import Encryption, Keys, Party

# NIST SP 800-57 part 1, table 2: a modulus of 3072 bits is 128-bit security; 2048 is 112.
_SAFE_KEY_BITS = 3072
_SLOT_BITS = 64
_SLOT_BYTES = _SLOT_BITS // 8


@dataclass(eq=False, repr=False)
class Paillier(Encryption):
    """Secure sums under Paillier through phe and gmpy2 (Paillier, EUROCRYPT 1999).

    Values are rounded to multiples of ``2 ** -fraction_bits``, whose sums are exact. Needs the
    extra ``fedrecsk[privacy]``.

    Parameters
    ----------
    key_bits : int, default=3072
        Bits of the modulus n, a multiple of 64. 3072 bits are 128-bit security.
    fraction_bits : int, default=40
        Bits after the binary point.
    packing : bool, default=True
        Whether to put many values into one plaintext, in slots of 64 bits: 47 values at 3072
        bits, 31 at 2048. All clients must then send the same positions, as they do for dense
        fields; a Top-K upload has no fixed positions.
    allow_weak : bool, default=False
        Whether to accept moduli of fewer than 3072 bits, such as the 2048 bits (112-bit security)
        of many papers.
    audit : int or "all", default=2
        Number of clients per round whose uploads are actually encrypted. The bytes of the others
        are counted without encrypting them.

    Notes
    -----
    A slot of 64 bits holds the sum over clients of value + offset, where the offset is
    2 ** 63 / n_clients, so that no slot is negative or overflows into the next one; see
    :meth:`max_value`. A ciphertext is twice as long as the modulus. The exponent is fixed; that of
    phe's own numbers, in plaintext, reveals the size of a value.

    Examples
    --------
    >>> from fedrecsk.privacy import Paillier
    >>> scheme = Paillier(key_bits=512, allow_weak=True)  # quick, and not secure
    >>> keys = scheme.generate_keys(n_clients=2)
    >>> total = keys.server.add(
    ...     keys.clients.encrypt([1.5, -2.0]), keys.clients.encrypt([0.25, 1.0])
    ... )
    >>> keys.clients.decrypt(total)
    array([ 1.75, -1.  ])
    """

    key_bits: int = 3072
    fraction_bits: int = 40
    _: KW_ONLY
    packing: bool = True
    allow_weak: bool = False
    audit: int | Literal["all"] = 2

    _parameter_constraints: ClassVar[dict] = {
        **Encryption._parameter_constraints,
        "key_bits": [Interval(Integral, 128, None, closed="left")],
        "fraction_bits": [Interval(Integral, 0, 60, closed="both")],
        "packing": ["boolean"],
        "allow_weak": ["boolean"],
    }
    _extra = ("phe", "gmpy2")

    def _check_parameters(self):
        if self.key_bits % 64:
            raise ValueError(f"key_bits={self.key_bits} must be a multiple of 64.")
        if self.key_bits < _SAFE_KEY_BITS and not self.allow_weak:
            raise ValueError(
                f"key_bits={self.key_bits} is weaker than 128-bit security, which takes "
                f"{_SAFE_KEY_BITS} bits. Use key_bits={_SAFE_KEY_BITS}, or set allow_weak=True."
            )

    @property
    def values_per_block(self) -> int:
        """How many values a ciphertext holds."""
        return (self.key_bits - 1) // _SLOT_BITS if self.packing else 1

    def max_value(self, n_clients: int = 1) -> float:
        """Return the largest size of a value that may enter a sum over `n_clients`."""
        self._check_n_clients(n_clients)
        return _largest(n_clients) / 2.0**self.fraction_bits

    def precision(self, n_clients: int = 1, max_abs: float = 1.0) -> float:
        """Bound on the absolute error of a sum: half a unit for each client, and float64's."""
        self._check_n_clients(n_clients)
        return n_clients * (0.5 / 2.0**self.fraction_bits + max_abs * 2.0**-52)

    def ciphertext_bytes(self, n_values: int) -> int:
        """Return the exact bytes of an encrypted vector of `n_values` as it is sent."""
        return self._n_blocks(n_values) * (2 * self.key_bits // 8)

    def key_nbytes(self) -> int:
        """Return the bytes of the key pair that every client receives: its two primes."""
        return self.key_bits // 8

    def generate_keys(self, n_clients: int = 1) -> Keys:
        """Make a new key pair: the clients receive both keys, the server only the modulus."""
        self._check_n_clients(n_clients)
        self._validate_params()
        phe = self._import("phe.paillier")
        _, private = phe.generate_paillier_keypair(n_length=self.key_bits)
        public = phe.PaillierPublicKey(private.public_key.n)
        key_id = hashlib.sha256(str(public.n).encode()).hexdigest()[:16]
        server = _PaillierParty(self, n_clients, key_id, public, None)
        return Keys(server, _PaillierParty(self, n_clients, key_id, public, private))

    def _party(self, n_clients, key_id, keys, secret):
        phe, size = self._import("phe.paillier"), self.key_bits // 8
        if not secret:
            public = phe.PaillierPublicKey(int.from_bytes(keys, "little"))
            return _PaillierParty(self, n_clients, key_id, public, None)
        # Both sides of the clients' keys: the two primes.
        p, q = (int.from_bytes(one, "little") for one in (keys[: size // 2], keys[size // 2 :]))
        public = phe.PaillierPublicKey(p * q)
        private = phe.PaillierPrivateKey(public, p, q)
        return _PaillierParty(self, n_clients, key_id, public, private)

    def _advice(self, largest, n_clients):
        fits = self.fraction_bits
        while fits > 0 and largest > _largest(n_clients) / 2.0**fits:
            fits -= 1
        if largest > _largest(n_clients) / 2.0**fits:
            return "Scale the values down."
        return f"Scale the values down, or lower fraction_bits to at most {fits}."


def _offset(n_clients):
    """Return the offset that makes every slot of a client non-negative."""
    # At least 2 clients, so that every value fits into a signed 64-bit number.
    return 2 ** (_SLOT_BITS - 1) // max(n_clients, 2)


def _largest(n_clients):
    """Return the largest float that is below the offset when rounded to a whole number."""
    offset = _offset(n_clients)
    return min(offset - 1, math.nextafter(offset, 0))


class _PaillierParty(Party):
    """One side of the sum with phe's keys; `private` is None on the server."""

    def __init__(self, scheme, n_clients, key_id, public, private):
        super().__init__(scheme, n_clients, key_id)
        self._public = public
        self._private = private
        self._number = scheme._import("phe.paillier").EncryptedNumber

    @property
    def holds_secret_key(self) -> bool:
        return self._private is not None

    def _key_bytes(self):
        size = self.scheme.key_bits // 8
        if self._private is None:
            return int(self._public.n).to_bytes(size, "little")
        primes = self._private.p, self._private.q
        return b"".join(int(prime).to_bytes(size // 2, "little") for prime in primes)

    def _encrypt_block(self, values):
        fixed = np.rint(values * 2.0**self.scheme.fraction_bits).astype(np.int64)
        slots = fixed.astype("<u8") + np.uint64(_offset(self.n_clients))
        plaintext = int.from_bytes(slots.tobytes(), "little")
        return self._to_bytes(self._public.raw_encrypt(plaintext))

    def _load_block(self, block, n_values):
        ciphertext = int.from_bytes(block, "little")
        is_long = len(block) == 2 * self.scheme.key_bits // 8
        n, nsquare = int(self._public.n), self._public.nsquare
        if not is_long or ciphertext >= nsquare or math.gcd(ciphertext, n) != 1:
            raise ValueError("This is no ciphertext under these keys.")
        return self._number(self._public, ciphertext, exponent=0)

    def _save_block(self, total):
        return self._to_bytes(total.ciphertext(be_secure=False))

    def _decrypt_block(self, block, n_values, n_clients):
        plaintext = int(self._private.raw_decrypt(int.from_bytes(block, "little")))
        used = 8 * _SLOT_BYTES * n_values
        if plaintext >> used:
            # A client that sends random numbers spoils the sum, but does not end the fit.
            warn(
                f"What the keys {self.key_id!r} decrypt is no sum of clients' numbers, but random: "
                "a ciphertext in it was made with other keys, or forged. Make sure that all "
                "clients have these keys."
            )
            plaintext %= 1 << used
        slots = np.frombuffer(plaintext.to_bytes(_SLOT_BYTES * n_values, "little"), "<u8")
        fixed = slots - np.uint64(n_clients * _offset(self.n_clients))
        return fixed.view(np.int64) / 2.0**self.scheme.fraction_bits

    def _to_bytes(self, ciphertext):
        return ciphertext.to_bytes(2 * self.scheme.key_bits // 8, "little")
