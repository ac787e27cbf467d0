"""Descriptions of parameters and attributes that many estimators share, written once.

A class docstring names a shared description in braces, on a line of its own::

    @documented
    @dataclass(eq=False, repr=False)
    class Method(FederatedRecommender):
        \"\"\"One line.

        Parameters
        ----------
        n_factors : int, default=20
            Length of the vectors.
        {early_stopping}
        {tol}
            In squared ratings.

        Attributes
        ----------
        {shared attributes}
        \"\"\"

`documented` replaces such lines by the texts below, with the default value that the class
has. Indented lines after a placeholder continue its text, like "In squared ratings." in the
example. ``{shared parameters}`` and ``{shared attributes}`` stand for everything that all federated
methods share, except `n_rounds`.
"""

from __future__ import annotations

import re
import textwrap
from typing import TypeVar

Class = TypeVar("Class", bound=type)

PLACEHOLDER = re.compile(r"^( *)\{([a-z_ ]+)\}$", re.MULTILINE)

TEXTS = {
    # ------------------------------------------------------------------------- parameters
    "items": """
items : array-like of shape (n_items,), default={default}
    The public catalogue: the ids of all items on offer, in any order, including items
    without ratings. None: the items of X.
""",
    "federated items": """
items : array-like of shape (n_items,), default={default}
    The public catalogue: the ids of all items on offer, in any order, including items
    without ratings. None: the items of X, which is an error under differential privacy,
    because it reveals whose data are in X.
""",
    "client_fraction": """
client_fraction : float in (0, 1], default={default}
    Share of the clients that are chosen for each round, at least one client. If a client was
    never chosen, the vectors of its users are computed when they are first needed, or when you
    read a per-user attribute such as ``user_factors_``.
""",
    "early_stopping": """
early_stopping : bool, default={default}
    Whether to stop once the loss on held-out rows stops improving, and to keep the model of
    the best round. Each client holds out some of its own rows and reports its loss on them.
""",
    "validation_fraction": """
validation_fraction : float in (0, 1), default={default}
    Share of its rows that each client holds out for early stopping.
""",
    "n_iter_no_change": """
n_iter_no_change : int, default={default}
    Number of rounds without improvement after which early stopping ends the fit. If only a
    share of the clients takes part in a round, it is the number of passes over all clients, and
    models are compared by the mean loss of a pass.
""",
    "tol": """
tol : float, default={default}
    Smallest decrease of the validation loss that counts as an improvement.
""",
    "warm_start": """
warm_start : bool, default={default}
    Whether `fit` continues the previous fit, including the clients' private state, up to
    `n_rounds` rounds in total. Otherwise it starts from scratch.
""",
    "n_jobs": """
n_jobs : int or None, default={default}
    Number of threads, at most one per core. None means 1, and -1 means all cores. The fitted
    model does not depend on it.
""",
    "random_state": """
random_state : int, RandomState instance or None, default={default}
    Seed of everything random: initial vectors, negatives, noise, held-out rows, and which
    clients are chosen or drop out. Pass an int to get the same model in every fit.
""",
    "federation": """
federation : Federation or None, default={default}
    Which clients drop out, and how uploads are protected, compressed, aggregated
    or attacked. None means ``Federation()``: no dropout, attacks or protections.
""",
    # ------------------------------------------------------------------------- attributes
    "user_ids_": """
user_ids_ : ndarray of shape (n_users,)
    User ids, in the order of the rows of the users' arrays.
""",
    "item_ids_": """
item_ids_ : ndarray of shape (n_items,)
    Item ids in ascending order, which is that of the rows of the items' arrays: the catalogue
    `items`, or the items of X if there is none.
""",
    "n_users_": """
n_users_ : int
    Number of users.
""",
    "n_items_": """
n_items_ : int
    Number of items.
""",
    "n_rounds_": """
n_rounds_ : int
    Number of rounds run.
""",
    "best_round_": """
best_round_ : int
    The round whose model was kept, counted from 0. Only with ``early_stopping=True``.
""",
    "loss_curve_": """
loss_curve_ : list of float
    Training loss of each round: the mean, by weight, over what the clients that took part train
    on. It is known only in a simulation, because clients never send it.
""",
    "history_": """
history_ : list of dict
    One dict per round: `round`, `loss`, `participants`, `bytes_down`, `bytes_up` and, with
    early stopping, `validation_loss`.
""",
    "communication_": """
communication_ : Ledger
    All bytes that were sent, by phase, by round and by client.
""",
    "privacy_": """
privacy_ : PrivacyReport
    What the server sees of the clients' uploads, and the guarantee of differential privacy.
""",
}

GROUPS = {
    "shared parameters": (
        "client_fraction",
        "early_stopping",
        "validation_fraction",
        "n_iter_no_change",
        "tol",
        "warm_start",
        "n_jobs",
        "random_state",
        "federation",
        "federated items",
    ),
    "shared attributes": (
        "user_ids_",
        "item_ids_",
        "n_users_",
        "n_items_",
        "n_rounds_",
        "best_round_",
        "loss_curve_",
        "history_",
        "communication_",
        "privacy_",
    ),
}


def documented(cls: Class) -> Class:
    """Write out the shared descriptions in the docstring of a class.

    Parameters
    ----------
    cls : type

    Returns
    -------
    cls : type
        The same class.

    Raises
    ------
    KeyError
        If there is no such description.
    AttributeError
        If the class does not have the parameter.
    """

    def written_out(match):
        indentation, name = match.groups()
        texts = [_text(cls, one) for one in GROUPS.get(name, (name,))]
        return textwrap.indent("\n".join(texts), indentation)

    # Without docstrings (python -OO) there is nothing to replace.
    if cls.__doc__:
        cls.__doc__ = PLACEHOLDER.sub(written_out, cls.__doc__)
    return cls


def _text(cls, name):
    text = TEXTS[name].strip()
    if "{default}" in text:
        default = getattr(cls, text.split()[0])
        text = text.replace("{default}", _as_written(default))
    return text


def _as_written(value):
    """A default value as one would write it: 1e-4 rather than 0.0001."""
    if isinstance(value, float) and 0 < value < 1e-3:
        return re.sub(r"e-0*", "e-", f"{value:e}".replace(".000000", ""))
    return repr(value)
