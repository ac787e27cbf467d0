"""Binary codes in 64-bit words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

BITS_PER_WORD = 64


def n_words(n_bits):
    """Words of 64 bits that a code takes."""
    return -(-n_bits // BITS_PER_WORD)


def pack_codes(signs: ArrayLike) -> NDArray[np.uint64]:
    """Pack the signs of rows of numbers: above 0 is +1, all others are -1.

    Parameters
    ----------
    signs : array-like of shape (n, n_bits)

    Returns
    -------
    codes : ndarray of shape (n, ceil(n_bits / 64)), dtype uint64
        Bit k is bit k % 64 of word k // 64; the bits after the last are 0.

    Examples
    --------
    >>> from fedrecsk.federated import pack_codes
    >>> pack_codes([[1, -1, 1]])
    array([[5]], dtype=uint64)
    """
    bits = np.asarray(signs) > 0
    places = np.zeros((len(bits), 8 * n_words(bits.shape[1])), dtype=np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    places[:, : packed.shape[1]] = packed
    return places.view("<u8").astype(np.uint64)


def unpack_codes(codes: NDArray[np.uint64], n_bits: int) -> NDArray[np.int8]:
    """Codes as +1 and -1, the inverse of :func:`pack_codes`.

    Parameters
    ----------
    codes : ndarray of shape (..., ceil(n_bits / 64)), dtype uint64
    n_bits : int

    Returns
    -------
    signs : ndarray of shape (..., n_bits), dtype int8

    Raises
    ------
    ValueError
        If the codes are not of this length.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk.federated import unpack_codes
    >>> unpack_codes(np.array([[5]], dtype=np.uint64), n_bits=3)
    array([[ 1, -1,  1]], dtype=int8)
    """
    codes = np.asarray(codes)
    if codes.dtype != np.uint64 or codes.ndim == 0 or codes.shape[-1] != n_words(n_bits):
        raise ValueError(
            f"Codes of n_bits={n_bits} are uint64 arrays whose last axis is {n_words(n_bits)}, got "
            f"{codes.dtype} of shape {codes.shape}; pass the n_bits that they were packed with."
        )
    tail = n_bits % BITS_PER_WORD
    if tail and (codes[..., -1] >> np.uint64(tail)).any():
        raise ValueError(
            f"A code has a bit set after the first n_bits={n_bits}; pass the n_bits that it was "
            "packed with."
        )
    places = np.ascontiguousarray(codes, dtype="<u8").view(np.uint8)
    signs = np.unpackbits(places, axis=-1, count=n_bits, bitorder="little").view(np.int8)
    signs += signs
    signs -= 1
    return signs


def random_codes(key, purpose, index, n_planes, n_bits):
    """Random codes of users or items by their numbers.

    Parameters
    ----------
    key : Key
    purpose : str
    index : array-like of shape (n,)
        The numbers; a code depends only on its own number.
    n_planes, n_bits : int

    Returns
    -------
    codes : ndarray of shape (n, n_planes, ceil(n_bits / 64)), dtype uint64
    """
    size = n_planes * n_words(n_bits)
    codes = key.hashed(purpose, np.asarray(index)[:, None] * size + np.arange(size))
    codes = codes.reshape(len(index), n_planes, n_words(n_bits))
    tail = n_bits % BITS_PER_WORD
    if tail:
        codes[..., -1] &= np.uint64(2**tail - 1)
    return codes
