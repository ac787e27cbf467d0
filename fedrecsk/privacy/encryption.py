"""CKKS: approximate sums of encrypted real vectors. Paillier: exact sums in fixed point."""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Annotated, Literal

import numpy as np

from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.sklearn_compat import Interval, Options
from fedrecsk._utils.user_warnings import warn
from fedrecsk.privacy._secure_aggregation import Encryption, Keys, Party

# Most bits of the coefficient modulus at 128-bit security, by degree (Homomorphic Encryption
# Standard, 2018, table 1, ternary secrets).
_MOST_BITS = {2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
# SEAL draws the noise of a coefficient from a centred binomial of 21 pairs of bits.
_NOISE_VARIANCE = 10.5
# A modulus of more than a word is decoded in float64 word by word: 64 bits lose 11.
_DECODING_VARIANCE = 2.0**22 / 12
# Leaves room for the noise and for rounding.
_BELOW_THE_LINE = 1 - 2.0**-16
_KIB = 1024
# NIST SP 800-57 part 1, table 2: a modulus of 3072 bits is 128-bit security; 2048 is 112.
_SAFE_KEY_BITS = 3072
_SLOT_BITS = 64
_SLOT_BYTES = _SLOT_BITS // 8


@dataclass(eq=False, repr=False)
class CKKS(Encryption):
    """Secure sums under CKKS through TenSEAL (Cheon et al., ASIACRYPT 2017).

    A ciphertext holds ``poly_modulus_degree / 2`` real values. Sums are approximate;
    :meth:`precision` bounds their error. Only additions are used, so the moduli need no room for
    products. Needs the extra ``privacy``.

    Parameters
    ----------
    poly_modulus_degree : {2048, 4096, 8192, 16384, 32768}, default=4096
        Degree of the polynomials (N); a ciphertext holds N / 2 values.
    coeff_mod_bit_sizes : sequence of int, default=(54, 55)
        Bits of the prime factors of the coefficient modulus: at least two factors, of 20 to 60
        bits each. The last is SEAL's special prime, which counts for security and holds no data.
        For 128-bit security the sum is at most 54, 109, 218, 438 or 881 for the degrees above.
    scale_bits : int, default=40
        Values are multiplied by 2 ** scale_bits and rounded: more bits are more precise but leave
        less room for large values.
    audit : int or "all", default=2
        Number of clients per round whose uploads are actually encrypted. The bytes of the others
        are counted without encrypting them.

    Notes
    -----
    Encryption is symmetric, since the clients share the secret key anyway; the server has only the
    parameters. Those below 128-bit security raise an error, as in TenSEAL. Any party with a
    decrypted sum and its ciphertexts can compute the secret key (Li and Micciancio, EUROCRYPT
    2021), so the sum must stay with the clients. See :doc:`/encryption`.

    Examples
    --------
    >>> from fedrecsk.privacy import CKKS
    >>> scheme = CKKS()
    >>> scheme.values_per_block
    2048
    >>> scheme.precision(n_clients=60) < 1e-8
    True
    >>> keys = scheme.generate_keys(n_clients=2)
    >>> total = keys.server.add(
    ...     keys.clients.encrypt([1.5, -2.0]), keys.clients.encrypt([0.25, 1.0])
    ... )
    >>> keys.clients.decrypt(total).round(6)
    array([ 1.75, -1.  ])
    """

    poly_modulus_degree: Annotated[int, Options(Integral, set(_MOST_BITS))] = 4096
    coeff_mod_bit_sizes: tuple[int, ...] | list[int] = (54, 55)
    scale_bits: AtLeast1 = 40
    _: KW_ONLY
    audit: AtLeast1 | Literal["all"] = 2

    _extra = ("tenseal",)

    def _check_parameters(self):
        bits = self.coeff_mod_bit_sizes
        if len(bits) < 2 or not all(isinstance(b, Integral) and 20 <= b <= 60 for b in bits):
            raise ValueError(
                f"coeff_mod_bit_sizes={bits} must have at least two whole numbers from 20 to 60."
            )
        most = _MOST_BITS[self.poly_modulus_degree]
        if sum(bits) > most:
            raise ValueError(
                f"coeff_mod_bit_sizes={bits} add up to {sum(bits)} bits, but 128-bit security at "
                f"poly_modulus_degree={self.poly_modulus_degree} allows {most}. Use smaller "
                "primes or a larger degree."
            )
        room = self._data_bits - 1 - self.scale_bits
        if room < 2:
            raise ValueError(
                f"scale_bits={self.scale_bits} is too large for coeff_mod_bit_sizes={bits}: "
                f"{self._data_bits} bits hold data, so sums would have to stay below "
                f"2 ** {room}. Use scale_bits of at most {self._data_bits - 3}, or larger primes "
                "before the last."
            )

    @property
    def _data_bits(self):
        return sum(self.coeff_mod_bit_sizes[:-1])

    @property
    def values_per_block(self) -> int:
        return self.poly_modulus_degree // 2

    def max_value(self, n_clients: int = 1) -> float:
        # Coefficients of a sum are at most half the modulus; of a new encoding, by SEAL, a quarter.
        self._check_n_clients(n_clients)
        self._import("tenseal")
        modulus = _modulus(self.poly_modulus_degree, tuple(self.coeff_mod_bit_sizes))
        return _BELOW_THE_LINE * modulus / 2 ** (self.scale_bits + 1) / max(n_clients, 2)

    def precision(self, n_clients: int = 1, max_abs: float = 1.0) -> float:
        """Bound on the absolute error of a sum: eight standard deviations, and float64's.

        The noise of the ciphertexts exceeds it with a probability of 1e-15 per value.
        """
        self._check_n_clients(n_clients)
        variance = (_NOISE_VARIANCE + 1 / 12) * n_clients
        if self._data_bits > 64:
            variance += _DECODING_VARIANCE
        deviation = math.sqrt(variance * self.poly_modulus_degree / 2) / 2.0**self.scale_bits
        return 8 * deviation + n_clients * max_abs * 2.0**-48

    def _bytes_of_block(self):
        sizes = tuple(self.coeff_mod_bit_sizes)
        return _block_bytes(self.poly_modulus_degree, sizes, self.scale_bits)

    def key_nbytes(self) -> int:
        """Return the bytes of the parameters and the secret key that every client receives."""
        self._validate_params()
        return _key_bytes(self.poly_modulus_degree, tuple(self.coeff_mod_bit_sizes))

    def _new_keys(self, n_clients):
        """Make a new secret key for the clients; the server receives only the parameters."""
        tenseal = self._import("tenseal")
        context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS,
            self.poly_modulus_degree,
            coeff_mod_bit_sizes=list(self.coeff_mod_bit_sizes),
            encryption_type=tenseal.ENCRYPTION_TYPE.SYMMETRIC,
            n_threads=1,
        )
        context.global_scale = 2.0**self.scale_bits
        key_id = secrets.token_hex(8)
        public = tenseal.context_from(_serialized(context, secret=False), 1)
        server = _CKKSParty(self, n_clients, key_id, public)
        return Keys(server, _CKKSParty(self, n_clients, key_id, context))

    def _advice(self, largest, n_clients):
        excess = largest / self.max_value(n_clients)
        fits = self.scale_bits - math.ceil(math.log2(excess))
        lower = f"lower scale_bits to at most {fits}, " if fits > 0 else ""
        return (
            f"Scale the values down, {lower}or take larger primes before the last of "
            "coeff_mod_bit_sizes."
        )


@functools.lru_cache
def _modulus(poly_modulus_degree, coeff_mod_bit_sizes):
    """Return the product of the primes that hold data, as SEAL chooses them."""
    from tenseal.sealapi import CoeffModulus

    primes = CoeffModulus.Create(poly_modulus_degree, list(coeff_mod_bit_sizes))
    return math.prod(prime.value() for prime in primes[:-1])


@functools.lru_cache
def _block_bytes(poly_modulus_degree, coeff_mod_bit_sizes, scale_bits):
    keys = CKKS(poly_modulus_degree, coeff_mod_bit_sizes, scale_bits).generate_keys()
    return _in_kib(keys.clients.encrypt(np.zeros(poly_modulus_degree // 2)).nbytes)


@functools.lru_cache
def _key_bytes(poly_modulus_degree, coeff_mod_bit_sizes):
    keys = CKKS(poly_modulus_degree, coeff_mod_bit_sizes).generate_keys()
    return _in_kib(len(_serialized(keys.clients._context, secret=True)))


def _in_kib(measured):
    """Round up what SEAL has compressed to whole KiB, so that counts are reproducible."""
    return -(-measured // _KIB) * _KIB


def _serialized(context, secret):
    """Return the parameters as bytes, with the secret key if asked for."""
    return context.serialize(
        save_public_key=False, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )


class _CKKSParty(Party):
    """One side of the sum with its TenSEAL context, which may have the secret key."""

    def __init__(self, scheme, n_clients, key_id, context):
        super().__init__(scheme, n_clients, key_id)
        self._context = context
        self._tenseal = scheme._import("tenseal")

    @property
    def holds_secret_key(self) -> bool:
        return self._context.has_secret_key()

    def _encrypt_block(self, values):
        self._check_secret("encrypt")
        return self._tenseal.ckks_vector(self._context, values.tolist()).serialize()

    def _load_block(self, block, n_values):
        loaded = self._tenseal.ckks_vector_from(self._context, block)
        scales = [one.scale for one in loaded.ciphertext()]
        if loaded.size() != n_values or scales != [2.0**self.scheme.scale_bits]:
            raise ValueError(f"A block has {loaded.size()} values and the scales {scales}.")
        return loaded

    def _save_block(self, total):
        return total.serialize()

    def _decrypt_block(self, block, n_values, n_clients):
        return np.array(self._load_block(block, n_values).decrypt())


@dataclass(eq=False, repr=False)
class Paillier(Encryption):
    """Secure sums under Paillier through phe and gmpy2 (Paillier, EUROCRYPT 1999).

    Values are rounded to multiples of ``2 ** -fraction_bits``, whose sums are exact. Needs the
    extra ``privacy``.

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

    key_bits: Annotated[int, Interval(Integral, 128, None, closed="left")] = 3072
    fraction_bits: Annotated[int, Interval(Integral, 0, 60, closed="both")] = 40
    _: KW_ONLY
    packing: bool = True
    allow_weak: bool = False
    audit: AtLeast1 | Literal["all"] = 2

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
        return (self.key_bits - 1) // _SLOT_BITS if self.packing else 1

    def max_value(self, n_clients: int = 1) -> float:
        self._check_n_clients(n_clients)
        return _largest(n_clients) / 2.0**self.fraction_bits

    def precision(self, n_clients: int = 1, max_abs: float = 1.0) -> float:
        """Bound on the absolute error of a sum: half a unit for each client, and float64's."""
        self._check_n_clients(n_clients)
        return n_clients * (0.5 / 2.0**self.fraction_bits + max_abs * 2.0**-52)

    def _bytes_of_block(self):
        return 2 * self.key_bits // 8

    def key_nbytes(self) -> int:
        """Return the bytes of the key pair that every client receives: its two primes."""
        return self.key_bits // 8

    def _new_keys(self, n_clients):
        """Make a new key pair: the clients receive both keys, the server only the modulus."""
        phe = self._import("phe.paillier")
        _, private = phe.generate_paillier_keypair(n_length=self.key_bits)
        public = phe.PaillierPublicKey(private.public_key.n)
        key_id = hashlib.sha256(str(public.n).encode()).hexdigest()[:16]
        server = _PaillierParty(self, n_clients, key_id, public, None)
        return Keys(server, _PaillierParty(self, n_clients, key_id, public, private))

    def _advice(self, largest, n_clients):
        room = _largest(n_clients) / largest
        if room < 1:
            return "Scale the values down."
        fits = math.floor(math.log2(room))
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

    def _encrypt_block(self, values):
        fixed = np.rint(values * 2.0**self.scheme.fraction_bits).astype(np.int64)
        slots = fixed.astype("<u8") + np.uint64(_offset(self.n_clients))
        plaintext = int.from_bytes(slots.tobytes(), "little")
        return self._to_bytes(self._public.raw_encrypt(plaintext))

    def _load_block(self, block, n_values):
        ciphertext = int.from_bytes(block, "little")
        is_long = len(block) == self.scheme._bytes_of_block()
        n, nsquare = int(self._public.n), self._public.nsquare
        if not is_long or ciphertext >= nsquare or math.gcd(ciphertext, n) != 1:
            raise ValueError("This is not a ciphertext under these keys.")
        return self._number(self._public, ciphertext, exponent=0)

    def _save_block(self, total):
        return self._to_bytes(total.ciphertext(be_secure=False))

    def _decrypt_block(self, block, n_values, n_clients):
        plaintext = int(self._private.raw_decrypt(int.from_bytes(block, "little")))
        used = 8 * _SLOT_BYTES * n_values
        if plaintext >> used:
            # A client that sends random numbers spoils the sum, but does not end the fit.
            warn(
                f"The keys {self.key_id!r} decrypt random numbers, not a sum: a ciphertext in it "
                "was made with other keys, or forged. Give all clients the same keys."
            )
            plaintext %= 1 << used
        slots = np.frombuffer(plaintext.to_bytes(_SLOT_BYTES * n_values, "little"), "<u8")
        fixed = slots - np.uint64(n_clients * _offset(self.n_clients))
        return fixed.view(np.int64) / 2.0**self.scheme.fraction_bits

    def _to_bytes(self, ciphertext):
        return ciphertext.to_bytes(self.scheme._bytes_of_block(), "little")
