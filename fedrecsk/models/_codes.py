"""Models of binary codes, in 64-bit words, and of their Hamming distances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrecsk._utils.memory import batches
from fedrecsk.models._model import Floats, Integers, Model, score_kernels

BITS_PER_WORD = 64


def n_words(n_bits):
    """Return how many words of 64 bits a code takes."""
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
    """Unpack codes to +1 and -1, the inverse of :func:`pack_codes`.

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
    """Return a random code for each number, (n, n_planes, n_words), which depends on it alone."""
    size = n_planes * n_words(n_bits)
    codes = key.hashed(purpose, np.asarray(index)[:, None] * size + np.arange(size))
    codes = codes.reshape(len(index), n_planes, n_words(n_bits))
    tail = n_bits % BITS_PER_WORD
    if tail:
        codes[..., -1] &= np.uint64(2**tail - 1)
    return codes


@dataclass(frozen=True, eq=False, kw_only=True)
class BinaryCodes(Model):
    """Similarities, 1 less the share of the largest Hamming distance between codes."""

    # (n_users, n_planes, n_words) and (n_items, n_words)
    users: NDArray[np.uint64]
    items: NDArray[np.uint64]
    # The largest distance between codes of these lengths.
    farthest: int
    # Similarity of a pair with an unknown user or item.
    unknown_similarity: float = 0.5

    @classmethod
    def of(cls, fitted: Mapping[str, Any], users: NDArray[np.uint64], **parts: Any) -> Self:
        """Return the model of fitted attributes and of users' codes, whose planes are given."""
        low, high = fitted["rating_scale_"]
        return cls(
            n_items=fitted["n_items_"],
            response=lambda scores: low + (high - low) * scores,
            users=users,
            items=fitted["item_codes_"],
            farthest=fitted["n_bits_"] * (2 ** users.shape[1] - 1),
            **parts,
        )

    def score_pairs(self, users: Integers, items: Integers) -> Floats:
        distances = np.empty(len(users), dtype=np.int64)
        for batch in batches(len(users), 1):
            codes = self.users, self.items
            score_kernels.pairs_by_codes(users[batch], items[batch], *codes, distances[batch])
        return np.where(distances < 0, self.unknown_similarity, 1 - distances / self.farthest)

    def score_all(self, users: Integers) -> Floats:
        board = np.empty((len(users), self.n_items))
        near = np.empty(self.n_items, dtype=np.int32)
        codes = self.users, np.ascontiguousarray(self.items.T)
        score_kernels.all_by_codes(users, *codes, float(self.farthest), near, board)
        board[users < 0] = self.unknown_similarity
        return board

    def best(
        self, users: Integers, n: int, eligible: Integers | None, barred: Integers
    ) -> tuple[Integers, Floats]:
        codes = self.items if eligible is None else self.items[eligible]
        # The search finds the top of a list, for users that have codes.
        if (users < 0).any() or 16 * n > len(codes):
            return super().best(users, n, eligible, barred)
        rows, items = barred
        if eligible is not None:
            places = np.minimum(np.searchsorted(eligible, items), len(eligible) - 1)
            inside = eligible[places] == items
            rows, items = rows[inside], places[inside]
        order = np.lexsort((items, rows))
        indptr = np.searchsorted(rows[order], np.arange(len(users) + 1))
        best = np.zeros((len(users), n), dtype=np.int64)
        distances = np.full(best.shape, -1)
        near = np.empty(score_kernels.BLOCK, dtype=np.int32)
        hidden = indptr, items[order].astype(np.int64)
        codes = self.users, np.ascontiguousarray(codes.T)
        score_kernels.nearest_of_users(users, *codes, *hidden, near, best, distances)
        best = best if eligible is None else eligible[best]
        return best, np.where(distances < 0, -np.inf, 1 - distances / self.farthest)
