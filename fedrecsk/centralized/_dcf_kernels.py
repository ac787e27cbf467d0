"""Discrete collaborative filtering: the two alternating steps, and those of its real-valued start.

A step takes one side's rows, users or items, with the other side fixed. Codes are packed as
:mod:`hamming` says. Weights and targets of the step on codes are in fixed point: its sums are
exact and do not depend on their order.

Indices that begin in the middle of an array are unsigned, as in :mod:`lightfr`.
"""

from typing import NamedTuple

import numpy as np

from fedrecsk._utils.jit import inline, kernel
from fedrecsk.base._hamming_kernels import popcount


class Side(NamedTuple):
    """The ratings of one side, users or items.

    Attributes
    ----------
    indptr : (n_rows + 1,), ratings of each row
    others : (n_ratings,), the other side's row of each
    weights, pulls : (n_ratings,), w and w t, both int64 in fixed point or both float64
    """

    indptr: np.ndarray
    others: np.ndarray
    weights: np.ndarray
    pulls: np.ndarray


class Scratch(NamedTuple):
    """Of one row with m ratings: its residuals, the others' codes or vectors, and its signs.

    `left` is (m,) int64 or float64, `words` (n_words, m) uint64 or (n_bits, m) float64, and
    `signs` (n_bits,) int64.
    """

    left: np.ndarray
    words: np.ndarray
    signs: np.ndarray


@inline
def open_row(row, side, others, codes, scratch, n_bits):
    """Gather a row's signs, the codes that it is compared with, and its residuals."""
    first = side.indptr[row]
    n = side.indptr[row + 1] - first
    for k in range(n_bits):
        bit = np.int64((codes[row, k >> 6] >> np.uint64(k & 63)) & np.uint64(1))
        scratch.signs[k] = 2 * bit - 1
    for q in range(n):
        scratch.left[q] = n_bits
        other = side.others[np.uint64(first + q)]
        for w in range(codes.shape[1]):
            scratch.words[w, q] = others[other, w]
    for w in range(codes.shape[1]):
        for q in range(n):
            scratch.left[q] -= np.int64(popcount(codes[row, w] ^ scratch.words[w, q])) << 1
    for q in range(n):
        place = np.uint64(first + q)
        scratch.left[q] = side.pulls[place] - side.weights[place] * scratch.left[q]
    return first, n


@inline
def close_row(row, codes, signs):
    """Pack a row's signs."""
    for w in range(codes.shape[1]):
        codes[row, w] = 0
    for k in range(len(signs)):
        codes[row, k >> 6] |= np.uint64(signs[k] > 0) << np.uint64(k & 63)


@kernel
def descend(side, others, linear, codes, n_sweeps, scratch, loss):
    """Coordinate descent on the codes of all rows, bit by bit.

    Minimises ``sum w (t - b.d)^2 - 2 linear.b`` over the signs b of each row: a bit becomes the
    sign of ``sum w (t - b.d + b_k d_k) d_k + linear_k``, and stays where this is 0.

    Parameters
    ----------
    side : Side, of int64
    others : (n_others, n_words) uint64
        The other side's codes.
    linear : (n_rows, n_bits) int64
        In fixed point.
    codes : (n_rows, n_words) uint64, in and out
    n_sweeps : int
        Most sweeps over the bits of a row; 0 for as many as it takes.
    scratch : Scratch
    loss : (2,) float64
        Receives the sum of ``w (t - b.d)^2`` in fixed point, and the number of changed bits; both
        are added.
    """
    signs, n_bits = scratch.signs, linear.shape[1]
    for row in range(len(linear)):
        first, n = open_row(row, side, others, codes, scratch, n_bits)
        weight = np.int64(0)
        for q in range(n):
            weight += side.weights[np.uint64(first + q)]
        sweep = 0
        while True:
            changed = 0
            for k in range(n_bits):
                word, shift = k >> 6, np.uint64(k & 63)
                pull = linear[row, k] + weight * signs[k]
                for q in range(n):
                    mask = np.int64((scratch.words[word, q] >> shift) & np.uint64(1)) - 1
                    pull += (scratch.left[q] ^ mask) - mask
                if pull == 0 or (pull > 0) == (signs[k] > 0):
                    continue
                step = -2 * signs[k]
                for q in range(n):
                    mask = np.int64((scratch.words[word, q] >> shift) & np.uint64(1)) - 1
                    change = (step ^ mask) - mask
                    scratch.left[q] -= side.weights[np.uint64(first + q)] * change
                signs[k] = -signs[k]
                changed += 1
            loss[1] += changed
            sweep += 1
            if changed == 0 or sweep == n_sweeps:
                break
        close_row(row, codes, signs)
        total = 0.0
        for q in range(n):
            rest = float(scratch.left[q])
            total += rest * rest / max(side.weights[np.uint64(first + q)], 1)
        loss[0] += total


@kernel
def relax(side, others, linear, ridge, vectors, scratch):
    """Sweep once over the real-valued vectors of all rows by coordinate descent.

    Minimises ``sum w (t - p.q)^2 + ridge (sum w) |p|^2 - 2 linear.p`` in one entry after the other.

    Parameters
    ----------
    side : Side, of float64
        Rows without ratings are left as they are.
    others : (n_others, n_bits) float64
        The other side's vectors.
    linear : (n_rows, n_bits) float64
    ridge : float
    vectors : (n_rows, n_bits) float64, in and out
    scratch : Scratch
    """
    n_bits = vectors.shape[1]
    left, columns = scratch.left, scratch.words
    for row in range(len(linear)):
        first = side.indptr[row]
        n = side.indptr[row + 1] - first
        weight = 0.0
        for q in range(n):
            weight += side.weights[np.uint64(first + q)]
        for q in range(n):
            place = np.uint64(first + q)
            other, dot = side.others[place], 0.0
            for k in range(n_bits):
                columns[k, np.uint64(q)] = others[other, k]
            for k in range(n_bits):
                dot += others[other, k] * vectors[row, k]
            left[q] = side.pulls[place] - side.weights[place] * dot
        for k in range(n_bits):
            curvature, pull = ridge * weight, linear[row, k] - ridge * weight * vectors[row, k]
            for q in range(n):
                curvature += side.weights[np.uint64(first + q)] * columns[k, q] * columns[k, q]
                pull += left[q] * columns[k, q]
            if curvature <= 0.0 or n == 0:
                continue
            step = pull / curvature
            for q in range(n):
                left[q] -= side.weights[np.uint64(first + q)] * columns[k, q] * step
            vectors[row, k] += step
