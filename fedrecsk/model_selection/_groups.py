"""Rows by group and by time, as plain functions."""

from numbers import Integral

import numpy as np
from scipy.sparse import csr_array


def by_group(codes, n_groups, order):
    """Bring the rows of each group together.

    Parameters
    ----------
    codes : ndarray of shape (n,)
        Group of each row.
    n_groups : int
    order : ndarray of shape (n,)
        Row numbers in the order in which each group's rows should come.

    Returns
    -------
    rows : ndarray of shape (n,)
        Row numbers, group by group.
    starts, counts : ndarray of shape (n_groups,)
        Group g is ``rows[starts[g]:starts[g] + counts[g]]``.
    """
    # Converting CSR to CSC is a stable counting sort, ten times as fast as argsort.
    one_a_row = np.ones(len(order), dtype=np.int8), codes[order], np.arange(len(order) + 1)
    rows = order[csr_array(one_a_row, shape=(len(order), n_groups)).tocsc().indices]
    counts = np.bincount(codes, minlength=n_groups)
    return rows, np.cumsum(counts) - counts, counts


def n_held_out(size, counts, available=None):
    """How many rows of each group to hold out, so that at least one remains.

    Parameters
    ----------
    size : float or int
        A share, rounded to the nearest number of rows, or a number of rows; groups with no
        more available rows than that give none.
    counts : ndarray of shape (n_groups,)
        Numbers of rows, of which `size` may be a share.
    available : ndarray of shape (n_groups,) or None
        Numbers of rows that can be held out. None: all.

    Returns
    -------
    n : ndarray of shape (n_groups,), dtype int64
    """
    available = counts if available is None else available
    if isinstance(size, Integral):
        return np.where(available > size, int(size), 0)
    return np.minimum(np.floor(size * counts + 0.5).astype(np.int64), available - 1)


def last_of_group(rows, starts, counts, n_last):
    """Mask of the last `n_last[g]` rows of each group g of :func:`by_group`."""
    first_held_out = starts + counts - n_last
    mask = np.empty(len(rows), dtype=bool)
    mask[rows] = np.arange(len(rows)) >= np.repeat(first_held_out, counts)
    return mask


def cut(times, starts, ends, n_late):
    """Cut each group in two where the time changes, as near as possible to the wanted size.

    Parameters
    ----------
    times : ndarray of shape (n,)
        Ascending within each group.
    starts, ends : ndarray of shape (n_groups,)
        Group g is ``times[starts[g]:ends[g]]``; it has at least one row.
    n_late : ndarray of shape (n_groups,)
        How many rows should be late.

    Returns
    -------
    cuts : ndarray of shape (n_groups,)
        The late rows of group g are ``times[cuts[g]:ends[g]]``. There are none if `n_late` is
        0, or if all rows of the group have the same time.
    """
    wish = np.minimum(ends - n_late, ends - 1)
    changes = np.concatenate([[True], times[1:] != times[:-1]])
    moments = np.flatnonzero(changes)
    moment = np.searchsorted(moments, wish, side="right") - 1
    before = moments[moment]
    after = np.append(moments, len(times))[moment + 1]
    near = (before > starts) & ((wish - before < after - wish) | (after >= ends))
    return np.where(n_late > 0, np.where(near, before, np.minimum(after, ends)), ends)
