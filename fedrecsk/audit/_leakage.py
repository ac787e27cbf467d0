"""Measure what an honest but curious server can infer from uploads, or from their sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from sklearn.base import BaseEstimator, clone

from fedrecsk._utils import html
from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.parameters import checked, limits_of, suggest
from fedrecsk.audit._inversion_rfrec import rfrec
from fedrecsk.audit._inversions import (
    explicit_fcf,
    fcf,
    fedeb,
    fedfast,
    fedmf,
    fedrec,
    gram,
    lightfr,
    neural,
    semidfegl,
    wmf,
)
from fedrecsk.audit._server_view import (
    Differences,
    Groups,
    Reconstruction,
    Singles,
    by_lines,
    by_lines_beside_a_matrix,
    by_pairs,
)
from fedrecsk.audit._silos import (
    Silo,
    auc_of_membership,
    gram_silo,
    locals_silo,
    not_tried,
    rfrec_silo,
    silo_of,
    similarities,
)
from fedrecsk.simulation.run import watch

# Largest relative error of a recovered vector, and least cosine of a recovered direction.
CLOSE, ALIGNED = 1e-2, 0.99
NOTHING = Reconstruction(None, np.empty(0, dtype=np.int64))


@dataclass(frozen=True, repr=False)
class LeakReport:
    """Inferences of a server about clients from their uploads, beside those of guessing.

    Attributes
    ----------
    method : str
        Class of the estimator.
    n_clients : int
        Number of clients attacked.
    n_rounds : int
        Number of consecutive uploads of each client that were read.
    vectors : float
        Share of the clients whose private user vector was recovered, with an error of at most
        1% of its length; binary codes exactly.
    directions : float
        Share of the clients whose vector's direction was recovered, with a cosine of at least
        0.99: enough to rank items for them.
    cosine : float
        Median over the clients of the absolute cosine between their vector and the inferred one;
        0 for clients for which no vector was inferred.
    interactions : float
        Of all pairs of client and item that were claimed or true, the share that were both. 1:
        the server knows exactly who has which item.
    values : float
        The same share for triples with the rating, if the method sees ratings; otherwise equal
        to `interactions`.
    chance : dict of {str: float}
        For each of these five numbers, what the best guess reaches without reading an upload, if
        it is the same for every client. Pairs: the set of items with the highest share if it is
        claimed for all clients. Triples: likewise, each item with its most common rating.
        Vectors, directions and cosine: the vector of the attacked client that fits most others.
        A number that is not larger is not evidence of a leak.
    cohort : int or None
        Number of clients in a sum, the largest if they differ; None if the server receives single
        uploads.
    differences : {"same round", "next round"} or None
        Which two sums the server subtracts.
    n_profiles : int
        With a cohort, the number of clients whose part of a sum the server has isolated, of all
        clients in the sums that were taken apart. Of silos, the number of users isolated.
    n_users : int or None
        Number of users of the clients attacked, if clients have several (silos); otherwise None.
        The numbers above are then about users, not clients.
    items : float or None
        With silos, of all pairs of silo and item that were claimed or true, the share that were
        both. 1: the server knows exactly what each silo holds.
    membership : float or None
        With silos, the AUC with which the server decides whether a person whose items it knows is a
        user of a silo or not: 0.5 by guessing, 1 without errors. The mean over silos. With sums,
        whether the person is a user of any silo of a sum: 0.5 if all users are.
    not_tried : tuple of str
        With silos, what the attack has left out. Numbers are what these attacks find, and no bound.
    """

    method: str
    n_clients: int
    n_rounds: int
    vectors: float
    directions: float
    cosine: float
    interactions: float
    values: float
    chance: dict[str, float]
    cohort: int | None = None
    differences: str | None = None
    n_profiles: int = 0
    n_users: int | None = None
    items: float | None = None
    membership: float | None = None
    not_tried: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name} {value:.3f} ({'' if value > share else 'no leak shown; '}"
            f"without uploads {share:.3f})"
            for name, value, share in self._compared
        )
        left = f"; not tried: {'; '.join(self.not_tried)}" if self.not_tried else ""
        return f"LeakReport({self.method}, {self._setting}: {shares}{left})"

    def _repr_html_(self) -> str:
        rows = [
            [name, f"{value:.3f}", f"{share:.3f}", "yes" if value > share else "no"]
            for name, value, share in self._compared
        ]
        caption = f"{self.method}: what a server infers"
        header = ["", "inferred", "without uploads", "leak shown"]
        left = [f"Not tried: {one}." for one in self.not_tried]
        return html.table(caption, header, rows, notes=[self._setting, *left])

    @property
    def _compared(self):
        return [(name, getattr(self, name), share) for name, share in self.chance.items()]

    @property
    def _setting(self):
        names = ["n_clients", "n_rounds", "n_users", "cohort", "n_profiles", "differences"]
        if self.n_users is None and self.cohort is None:
            names.remove("n_profiles")
        given = {name: getattr(self, name) for name in names}
        return ", ".join(f"{name}={one!r}" for name, one in given.items() if one is not None)


@suggest
def measure_leak(
    estimator: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    clients: ArrayLike | None = None,
    n_rounds: AtLeast1 = 1,
    max_clients: AtLeast1 | None = None,
    cohort: AtLeast1 | Literal["all"] | None = None,
    differences: Literal["same round", "next round"] | None = None,
) -> LeakReport:
    """Measure what a server that knows the method can infer from uploads, or from their sums.

    A copy of the estimator is fitted with all clients in every round, and without dropout,
    compression and aggregator. An adversary and ``local_dp`` stay. The server knows its own
    messages and the method's hyperparameters. Without `clients`, each client has one user.

    Parameters
    ----------
    estimator : federated estimator
        It is cloned, not changed.
    X, y
        As in `fit`.
    clients : array-like of shape (n_samples,), default=None
        The client of each row, as in `fit`. Where clients have several users (silos), the report
        says what is found about users from the uploads of their silos; see Notes. `max_clients` and
        `cohort` count silos.
    n_rounds : int, default=1
        Number of consecutive uploads to read of each client, from the first round on. RFRec's,
        CoLR's and FedMF's are inverted together; of other methods, items that are not in all of
        them are taken for sampled negatives.
    max_clients : int or None, default=None
        Largest number of clients to measure, to save time. None: all. With a cohort, whole sums are
        taken apart, and these clients of them are measured. All uploads of these clients are kept
        in memory.
    cohort : int, "all" or None, default=None
        Number of clients in a secure sum. The clients are divided at random into cohorts of at
        least this size, the same in every round, and the server receives only the sum of each.
        None: single uploads or, with ``secure_aggregation``, "all".
    differences : {"same round", "next round"} or None, default=None
        Which two sums that differ by one client the server subtracts, for each client. "same
        round": two sums of one round; the result is the client's upload. "next round": the sum of
        the last round but one, less the sum of the last round without the client; changes of the
        other clients in between hide part of it. Needs two rounds. With ``cohort=None`` the sums
        are over all clients. See :doc:`/user_guide/leaks`.

    Returns
    -------
    LeakReport

    Raises
    ------
    ValueError
        If no inversion is known for the method, if it uploads nothing in these rounds, if the
        estimator was fitted on other data, if `cohort` is more than the clients or `differences`
        leaves no client in the second sum, or if a parameter is out of range.
    TypeError
        If `estimator` is a class.

    Notes
    -----
    How uploads are inverted:

    - LocALS, LocSGD, GlobSGD: all rows are multiples of p_u, whose length and sign are those that
      explain the rows best. FCF: rows of items that the user does not have are (p . q) p.
    - ExplicitFCF, FedRec: rows are errors times (1, p). The user's ridge regression gives its bias;
      virtual ratings are all equal or linear in the items, and real ones are not.
    - LightFR: one residual per item explains all bits of its integer gradients. With ratings, a
      code and its opposite fit equally well; that of the higher ratings is taken.
    - FedMF, CoLR, SCoLR: positives move along p_u (along B p_u), sampled negatives the other way.
      The server trains a vector on them as the client does, and corrects it by what each upload
      shows (a Kalman filter).
    - FedNCF, FedRAP, GPFedRec, PFedRec, FederatedModule: positives pull the items' rows one way,
      sampled negatives the other; private parameters and ratings are not inverted.
    - FedFast, SemiDFEGL: the vector itself is uploaded.
    - RFRec, RFRecF: a client changes the vectors of the items that it has rated, and no others. A
      copy of it is replayed from guesses of its vector and ratings, until the first two uploads are
      the same. From a single step of Adam, and from noisy uploads, the whole ratings are taken
      whose replay comes closest.
    - FedEB: the client's equations have as many known numbers as unknown ones.
    - FedEASE, FedSpectral: the entry of an item with itself is the square of the user's entry for
      it; the user's row is the private vector here.

    Sums of LocALS, LocSGD, GlobSGD, FCF, ExplicitFCF, FedMF, CoLR, SCoLR and the first uploads of
    RFRec are taken apart by the lines along which a client's rows lie (:doc:`/user_guide/leaks`),
    and those of FedEASE by items that one client alone has, whose pairs are all its items. About
    clients that it has not isolated the server claims nothing or, if it has isolated none, that
    they have all items of the sum. Sums of other methods may be taken apart in other ways.

    A silo trains its items for all its users at once, and what it sends is not always a sum over
    them. The server then tries to isolate its users, and claims that others have nothing or, if it
    has isolated none, all items of the silo:

    - LocALS with ``aggregation="full"`` and ``prox`` above 0: the upload contains the matrix that
      the silo's users share. Once it is undone, rows are sums of multiples of p_u, and are taken
      apart by lines. The users of at least three items that no other user of the silo has are
      isolated, if their rows weigh 1.
    - FedEASE, FedItemKNN, FedSpectral: sums over users, taken apart by pairs as those over clients.
    - RFRec: all items that the silo has rated; the first upload is taken apart by lines.
    - Others: the inversion for one user, as it is.

    A known list of items is taken for that of a user of the silo by the share of its items (of its
    pairs of items, with FedEASE, FedItemKNN and FedSpectral) that the silo holds, and by its
    similarity to the isolated user that is most like it. `not_tried` names what is left out.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.audit import measure_leak
    >>> from fedrecsk.datasets import make_interactions
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> model = LocALS(n_factors=4, reg_user=1.0, upload="all", random_state=0)
    >>> report = measure_leak(model, X)
    >>> report.vectors, report.interactions
    (1.0, 1.0)
    >>> round(report.chance["interactions"], 2)
    0.44

    The sum over all clients reveals no vector, but two sums that differ by one client do:

    >>> measure_leak(model, X, cohort="all").vectors
    0.0
    >>> measure_leak(model, X, cohort="all", differences="same round").vectors
    1.0

    Three hospitals with 20 patients each:

    >>> report = measure_leak(model, X, clients=X[:, 0] % 3)
    >>> report.n_users, report.items
    (60, 1.0)
    """
    name = type(estimator).__name__
    given = {"n_rounds": n_rounds, "max_clients": max_clients}
    given |= {"cohort": cohort, "differences": differences}
    limits = limits_of(measure_leak)
    n_rounds, max_clients, cohort, differences = checked("measure_leak", limits, **given)
    if differences == "next round" and n_rounds < 2:
        raise ValueError(
            'differences="next round" subtracts the sums of two rounds, but n_rounds=1; set '
            "n_rounds=2 or more."
        )
    check_is_instance(estimator, "measure_leak")
    inversion = inversion_of(type(estimator))
    if inversion.invert is None:
        if not hasattr(estimator, "federation"):
            raise ValueError(
                f"{name} is not federated: its data are in one place, and no client sends anything."
            )
        raise ValueError(
            f"measure_leak has no attack on uploads of {name}, which does not mean that they "
            "reveal nothing; see the page of the method, or pass your attack to register_inversion."
        )
    model = _watch_all(estimator, n_rounds)
    model._validate_params()
    data = model._prepared(X, y, clients)
    check_same_data(estimator, data, "measure_leak")
    receipts = _receipts(model, data.n_clients, n_rounds, max_clients, cohort, differences)
    truth = _read_along(model, data, n_rounds, receipts)
    if not (receipts.singles or receipts.sums):
        raise ValueError(
            f"{name} uploaded nothing in n_rounds={n_rounds}, so there is nothing to invert; read "
            "more rounds."
        )
    rates = bool(data.values.min() != data.values.max()) and model._sees_ratings
    own = [own_items(data, user, rates) for user in range(data.n_users)]
    inferred = _infer(receipts, model, inversion, data, [items for items, _ in own])
    users = _users_of(data, receipts.clients)
    guesses = [inferred.guesses.get(user, NOTHING) for user in users]
    lists = [own[user] for user in users]
    claims = [(guess.items, guess.values) for guess in guesses]
    found = score_vectors([guess.vector for guess in guesses], truth[users])
    found |= score_pairs(claims, lists, rates)
    chance = common_vector(truth[users]) | common_items(own, lists, data.n_items, rates)
    silos: dict[str, Any] = {}
    if data.n_users > data.n_clients:
        held = [_held(data, own, client) for client in range(data.n_clients)]
        attacked = [held[client] for client in receipts.clients]
        claims = [(inferred.held.get(c, NOTHING.items), None) for c in receipts.clients.tolist()]
        silos = {
            "n_users": len(users),
            "items": score_pairs(claims, attacked, rates=False)["interactions"],
            "membership": float(np.mean(inferred.membership)),
            "not_tried": not_tried(name, inversion, bool(receipts.sums), inferred.is_isolating),
        }
        chance["items"] = common_items(held, attacked, data.n_items, False)["interactions"]
        chance["membership"] = 0.5
    return LeakReport(
        method=name,
        n_clients=len(receipts.clients),
        n_rounds=n_rounds,
        **found,
        chance=chance,
        cohort=receipts.cohort,
        differences=differences,
        n_profiles=inferred.n_profiles,
        **silos,
    )


def _watch_all(estimator, n_rounds):
    """Return a copy of the estimator in which all clients upload in every round."""
    federation = clone(estimator._setting())._set(dropout=0.0, schedule=None)
    if federation.secure_aggregation is None:
        federation._set(aggregator=None, compression=None)
    return clone(estimator)._set(
        n_rounds=n_rounds,
        client_fraction=1.0,
        early_stopping=False,
        warm_start=False,
        federation=federation,
    )


def _receipts(model, n_clients, n_rounds, max_clients, cohort, differences):
    """Return an empty record of what the server will receive."""
    size = n_clients if cohort in ("all", None) else cohort
    if size > n_clients:
        raise ValueError(
            f"cohort={cohort} is more than the {n_clients} clients of X; lower it, or set "
            'cohort="all".'
        )
    n_attacked = min(n_clients, max_clients or n_clients)
    is_summed = model._setting().secure_aggregation is not None or differences is not None
    if cohort is None and not is_summed:
        return Singles(np.arange(n_attacked))
    if differences is None:
        return Groups(n_clients, size, n_attacked)
    if size == 1:
        raise ValueError(
            "With cohorts of one client, the second of the two sums that differ by it is empty; "
            "set cohort to 2 or more."
        )
    last = n_rounds - 1 if differences == "next round" else None
    return Differences(n_clients, size, n_attacked, last)


def _read_along(model, data, n_rounds, receipts):
    """Run the rounds, record what the server receives, and return all true vectors."""
    received, truth = None, np.empty((0, 0))
    for round, (server, clients, seen) in enumerate(watch(model, data, n_rounds)):
        # In a round without a message, clients continue with the last one.
        if seen.message is not None:
            received = seen.message
        if seen.upload is not None:
            message = server.announcement() | received
            receipts.take(server.key.at(round), message, list(seen.tiles()))
        truth = _vectors(clients)
    return truth


class Inferred(NamedTuple):
    """What the server has inferred from all that it received."""

    guesses: dict[int, Reconstruction]  # by user
    n_profiles: int  # users isolated
    held: dict[int, np.ndarray]  # items claimed of each client
    membership: list[float]  # AUC of each client or sum
    is_isolating: bool  # whether isolating users was tried each time


def _infer(receipts, model, inversion: Any, data, lists):
    """Return what the server infers; `lists` has each user's items."""
    guesses, n_profiles, held, membership, is_isolating = {}, 0, {}, [], True
    singles = {(client,): exchanges for client, exchanges in receipts.singles.items()}
    for clients, exchanges in (receipts.sums | singles).items():
        users = _users_of(data, clients)
        sizes = len(clients), len(users), data.n_items
        silo = silo_of(inversion, model, exchanges, *sizes)
        common, profiles = silo.common, silo.profiles
        whose = assign(profiles, [lists[user] for user in users], data.n_items)
        known = [one is not None for one in whose]
        held |= dict.fromkeys(clients, common.items)
        if data.n_users > data.n_clients:
            is_member = np.isin(np.arange(data.n_users), users)
            membership.append(auc_of_membership(silo, lists, is_member, data.n_items))
        n_profiles += sum(known)
        is_isolating &= profiles is not None
        if any(known):
            common = common._replace(items=NOTHING.items, values=None)
        guesses |= {u: one or common for u, one in zip(users.tolist(), whose, strict=True)}
    return Inferred(guesses, n_profiles, held, membership, is_isolating)


def _users_of(data, clients):
    return np.concatenate([np.arange(*data.client_indptr[one : one + 2]) for one in clients])


def _held(data, own, client):
    """Return the items of a client's users, each once."""
    lists = [own[user][0] for user in _users_of(data, [client])]
    return np.unique(np.concatenate(lists)), None


def _vectors(clients):
    """Return private vectors of users, in the order of their codes."""
    codes = np.concatenate([one.block.users for one in clients])
    vectors = [one.algorithm.private_vectors(one.state) for one in clients]
    return np.concatenate(vectors)[np.argsort(codes)].astype(np.float64)


def check_is_instance(estimator, what):
    """Raise if this is a class; `what` is the name of the function that measures."""
    if isinstance(estimator, type):
        raise TypeError(f"{what} takes an estimator, but got a class; pass {estimator.__name__}().")


def check_same_data(estimator, data, what):
    """Raise if the estimator has been fitted on other users or items than these."""
    for kind, ids in (("user", data.user_ids.values), ("item", data.item_ids.values)):
        fitted = getattr(estimator, f"{kind}_ids_", None)
        if fitted is None or (len(fitted) == len(ids) and np.isin(ids, fitted).all()):
            continue
        which, where = np.setdiff1d(ids, fitted), "X, but not in the data of fit"
        if len(which) == 0:
            which, where = np.setdiff1d(fitted, ids), "the data of fit, but not in X"
        raise ValueError(
            f"{what} fits copies of the estimator on X, but this {type(estimator).__name__} was "
            f"fitted on other data: {kind} {which[0]!s} is in {where}. Pass the data of fit to "
            f"measure what that fit has revealed, or clone(estimator) to measure a fit on X."
        )


# --------------------------------------------------------- which inversion is used


class Inversion(NamedTuple):
    """How to invert uploads, separate sums (None: not at all) and attack silos (None: by both).

    A silo is a client with several users.
    """

    invert: Callable[..., Reconstruction] | None
    separate: Callable[..., list[Reconstruction]] | None = None
    silo: Callable[..., Silo] | None = None


# By class or, for this package's own methods, by its name: they import no attacks and, of the
# neural ones, not all can be imported everywhere. Subclasses inherit.
_INVERSIONS: dict[type | str, Inversion] = {
    "ExplicitFCF": Inversion(explicit_fcf, by_lines(explicit_fcf, "gradient")),
    "FCF": Inversion(fcf, by_lines_beside_a_matrix),
    "FedEB": Inversion(fedeb),
    "FedFast": Inversion(fedfast),
    "FedRec": Inversion(fedrec),
    "LightFR": Inversion(lightfr),
    "RFRec": Inversion(
        rfrec, by_lines(rfrec, "item_vectors", tolerance=1e-3, signed=True), rfrec_silo
    ),
    "SemiDFEGL": Inversion(semidfegl),
    **dict.fromkeys(
        ("FedNCF", "FedRAP", "FederatedModule", "GPFedRec", "PFedRec"), Inversion(neural)
    ),
    **dict.fromkeys(("FedEASE", "FedItemKNN", "FedSpectral"), Inversion(gram, by_pairs, gram_silo)),
    "LocALS": Inversion(wmf, by_lines(wmf, "rows"), locals_silo),
    **dict.fromkeys(("GlobSGD", "LocSGD"), Inversion(wmf, by_lines(wmf, "rows"))),
    **dict.fromkeys(
        ("CoLR", "FedMF"), Inversion(fedmf, by_lines(fedmf, "updates", tolerance=1e-3))
    ),
}


def inversion_of(method: type) -> Inversion:
    """Return the inversion of the class, or of its first base class that has one."""
    for one in method.__mro__:
        for key in (one, one.__name__ if one.__module__.startswith("fedrecsk.") else None):
            if key in _INVERSIONS:
                return _INVERSIONS[key]
    return Inversion(None)


def register_inversion(
    method: type,
    invert: Callable[..., Reconstruction] | None,
    separate: Callable[..., list[Reconstruction]] | None = None,
) -> None:
    """Tell `measure_leak` how a curious server attacks a method.

    Parameters
    ----------
    method : type
        Class of the method. Its subclasses inherit the inversion.
    invert : callable or None
        A function ``(model, exchanges, n_items)`` that returns the `Reconstruction` of a client.
        `model` is not fitted. `exchanges` are the client's uploads in the order of rounds; each
        has the `message` that it answers, a dict of fields, and the `upload`, a dict of
        :class:`~fedrecsk.aggregation.Update`. None: there is no inversion.
    separate : callable or None, default=None
        A function ``(model, exchanges, n_items)`` of the sums of a few clients' uploads that
        returns a list of `Reconstruction`, one for each client that it finds in them. None: sums
        are not taken apart.

    Examples
    --------
    A method whose clients send the rows of their own items, and nothing else, reveals them:

    >>> import numpy as np
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.audit import Reconstruction, measure_leak, register_inversion
    >>> from fedrecsk.datasets import make_interactions
    >>> class Mine(LocALS):
    ...     pass
    >>> def invert(model, exchanges, n_items):
    ...     rows = exchanges[-1].upload["rows"].rows
    ...     return Reconstruction(vector=None, items=np.arange(n_items)[rows])
    >>> register_inversion(Mine, invert)
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> measure_leak(Mine(4), X).interactions
    1.0
    """
    _INVERSIONS[method] = Inversion(invert, separate)


# ------------------------------------------------------------------ how much has been inferred


def own_items(data, client, rates):
    """Return the client's items and ratings; with implicit feedback, the items that it likes."""
    rows = slice(data.indptr[client], data.indptr[client + 1])
    items, values = data.items[rows], data.values[rows]
    return (items, values) if rates else (items[values > 0], None)


def score_vectors(guesses, truth):
    """Return shares of clients whose vector, or its direction, was inferred, and the cosine."""
    pairs = list(zip(guesses, truth, strict=True))
    close = [one is not None and _close(one, true) for one, true in pairs]
    cosines = np.array([0.0 if one is None else _cosines(one, true) for one, true in pairs])
    return {
        "vectors": float(np.mean(close)),
        "directions": float(np.mean(cosines >= ALIGNED)),
        "cosine": float(np.median(np.abs(cosines))),
    }


def score_pairs(claims, own, rates):
    """Return the share of the pairs (or triples with a rating) claimed or true that are both."""
    both = equal = either = 0
    for (items, values), (true_items, true_values) in zip(claims, own, strict=True):
        _, at, true_at = np.intersect1d(items, true_items, return_indices=True)
        both += len(at)
        either += len(items) + len(true_items) - len(at)
        if rates and values is not None:
            equal += (np.abs(values[at] - true_values[true_at]) < CLOSE).sum()
    either = max(either, 1)
    return {
        "interactions": float(both / either),
        "values": float((equal if rates else both) / either),
    }


def assign(profiles, lists, n_items):
    """Assign profiles to users by most items in common; None for users that get none."""
    if not profiles:
        return [None] * len(lists)
    alike = similarities(lists, [one.items for one in profiles], n_items)
    whose = dict(zip(*linear_sum_assignment(-alike), strict=True))
    fits = [c in whose and alike[c, whose[c]] > 0 for c in range(len(lists))]
    return [profiles[whose[c]] if fit else None for c, fit in enumerate(fits)]


def common_vector(truth):
    """Return the largest share of the other clients whose vector equals that of one client."""
    best = np.zeros(3)
    for place, one in enumerate(truth):
        others = np.delete(truth, place, axis=0)
        if len(others):
            cosines = _cosines(one, others)
            shares = _close(one, others).mean(), (cosines >= ALIGNED).mean()
            best = np.maximum(best, [*shares, np.median(np.abs(cosines))])
    return dict(zip(("vectors", "directions", "cosine"), best.tolist(), strict=True))


def common_items(own, attacked, n_items, rates):
    """Return the shares reached by claiming the same items, and ratings, for every owner.

    `own` has the items and ratings of all owners, users or clients, `attacked` those of some.
    """
    items = np.concatenate([items for items, _ in own])
    n_holders = np.bincount(items, minlength=n_items)
    best = _best_for_all(n_holders, n_holders, len(own))
    shares = score_pairs([(best, None)] * len(attacked), attacked, rates=False)
    if not rates:
        return shares
    values = np.concatenate([values for _, values in own])
    triples, counts = np.unique(np.column_stack([items, values]), axis=0, return_counts=True)
    # In ascending order, so that the most common rating of an item is written last.
    ascending = np.argsort(counts, kind="stable")
    rated = triples[ascending, 0].astype(np.intp)
    usual, n_usual = np.zeros(n_items), np.zeros(n_items)
    usual[rated], n_usual[rated] = triples[ascending, 1], counts[ascending]
    best = _best_for_all(n_usual, n_holders, len(own))
    claims = [(best, usual[best])] * len(attacked)
    return shares | {"values": score_pairs(claims, attacked, rates=True)["values"]}


def _best_for_all(n_right, n_holders, n_clients):
    """Return the items to claim for all clients, for the largest share of correct claims."""
    # A ratio of sums is largest for the items whose own ratio exceeds some bound.
    n_wrong = n_clients - n_holders
    order = np.argsort(-n_right / np.maximum(n_wrong, 1e-9), kind="stable")
    shares = np.cumsum(n_right[order]) / (n_holders.sum() + np.cumsum(n_wrong[order]))
    return order[: shares.argmax() + 1]


def _close(guess, truth):
    return np.linalg.norm(guess - truth, axis=-1) <= CLOSE * np.linalg.norm(truth, axis=-1)


def _cosines(guess, truth):
    lengths = np.linalg.norm(guess) * np.linalg.norm(truth, axis=-1)
    return truth @ guess / np.maximum(lengths, 1e-300)
