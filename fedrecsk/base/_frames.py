"""Lists of ids and scores: how much memory they take, and as tidy tables."""

from __future__ import annotations

import numpy as np

from fedrecsk import _memory
from fedrecsk._extras import require
from fedrecsk._sklearn import validate_parameter_constraints

# Lists that take more than this are checked against the memory there is.
UNCHECKED_BYTES = 2**28


def check_frames(as_frame, caller):
    """Raise, before any work, if `as_frame` is no boolean or its DataFrame cannot be made."""
    validate_parameter_constraints(
        {"as_frame": ["boolean"]}, {"as_frame": as_frame}, caller_name=caller
    )
    if as_frame:
        require("pandas", f"{caller}(as_frame=True)")


def require_room(n_rows, n_columns, itemsize, what, cure):
    """Raise if lists of ids of so many bytes, with scores, do not fit into memory."""
    nbytes = n_rows * n_columns * (16 + itemsize)
    if nbytes > UNCHECKED_BYTES:
        _memory.require(nbytes, what, cure)


def tidy(owners, ids, scores, names):
    """One row per place that holds an id, in order: whose list, the id, its score, its rank.

    Parameters
    ----------
    owners : ndarray of shape (n_rows,)
    ids, scores : ndarray of shape (n_rows, n_places)
        Places without an id score -inf.
    names : tuple of str
        Columns of the owners and of the ids.

    Returns
    -------
    frame : DataFrame of four columns
    """
    rows, places = np.nonzero(scores > -np.inf)
    columns = owners[rows], ids[rows, places], scores[rows, places], places + 1
    return require("pandas", "as_frame=True").DataFrame(
        dict(zip((*names, "score", "rank"), columns, strict=True))
    )
