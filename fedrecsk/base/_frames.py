"""Lists of ids and scores as tidy tables, and the memory that they need."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedrecsk._utils import memory
from fedrecsk._utils.sklearn_compat import validate_parameter_constraints

# Lists that take more bytes than this are checked against the available memory.
UNCHECKED_BYTES = 2**28


def check_frames(as_frame, caller):
    """Raise if `as_frame` is not a boolean."""
    validate_parameter_constraints(
        {"as_frame": ["boolean"]}, {"as_frame": as_frame}, caller_name=caller
    )


def require_room(n_rows, n_columns, itemsize, what, hint):
    """Raise if lists of ids (of `itemsize` bytes each) and scores do not fit into memory."""
    nbytes = n_rows * n_columns * (16 + itemsize)
    if nbytes > UNCHECKED_BYTES:
        memory.require(nbytes, what, hint)


def tidy(owners, ids, scores, names):
    """A table with one row per id in the lists: owner of the list, id, score and rank.

    Parameters
    ----------
    owners : ndarray of shape (n_rows,)
    ids, scores : ndarray of shape (n_rows, n_places)
        Empty places have score -inf.
    names : tuple of str
        Columns of the owners and of the ids.

    Returns
    -------
    frame : DataFrame of four columns
    """
    rows, places = np.nonzero(scores > -np.inf)
    columns = owners[rows], ids[rows, places], scores[rows, places], places + 1
    return pd.DataFrame(dict(zip((*names, "score", "rank"), columns, strict=True)))
