"""Measure what an honest but curious server can infer from uploads, or from their sums."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from sklearn.base import clone

from fedrecsk._utils import html
from fedrecsk._utils.parameters import checked, suggest
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
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
from fedrecsk.simulation.run import watch
from fedrecsk.updates import Update

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import ArrayLike
    from sklearn.base import BaseEstimator

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
        clients in the sums that were taken apart.
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

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name} {value:.3f} ({'' if value > share else 'no leak shown; '}"
            f"without uploads {share:.3f})"
            for name, value, share in self._compared
        )
        return f"LeakReport({self.method}, {self._setting}: {shares})"

    def _repr_html_(self) -> str:
        rows = [
            [name, f"{value:.3f}", f"{share:.3f}", "yes" if value > share else "no"]
            for name, value, share in self._compared
        ]
        caption = f"{self.method}: what a server infers"
        header = ["", "inferred", "without uploads", "leak shown"]
        return html.table(caption, header, rows, notes=[self._setting])

    @property
    def _compared(self):
        return [(name, getattr(self, name), share) for name, share in self.chance.items()]

    @property
    def _setting(self):
        setting = f"n_clients={self.n_clients}, n_rounds={self.n_rounds}"
        if self.cohort is not None:
            setting += f", cohort={self.cohort}, n_profiles={self.n_profiles}"
        if self.differences is not None:
            setting += f", differences={self.differences!r}"
        return setting


@suggest
def measure_leak(
    estimator: BaseEstimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    n_rounds: int = 1,
    max_clients: int | None = None,
    cohort: int | Literal["all"] | None = None,
    differences: Literal["same round", "next round"] | None = None,
) -> LeakReport:
    """Measure what a server that knows the method can infer from uploads, or from their sums.

    A copy of the estimator is fitted with all clients in every round, and without dropout,
    compression and aggregator; each client has one user. An adversary and ``local_dp`` stay. The
    server knows its own messages and the method's hyperparameters.

    Parameters
    ----------
    estimator : federated estimator
        It is cloned, not changed.
    X, y
        As in `fit`.
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
    """
    name = type(estimator).__name__
    _check_numbers(n_rounds, max_clients, cohort, differences)
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
    data = model._prepared(X, y)
    check_same_data(estimator, data, "measure_leak")
    receipts = _receipts(model, data.n_clients, n_rounds, max_clients, cohort, differences)
    truth = _read_along(model, data, n_rounds, receipts)
    if not (receipts.singles or receipts.sums):
        raise ValueError(
            f"{name} uploaded nothing in n_rounds={n_rounds}, so there is nothing to invert; read "
            "more rounds."
        )
    clients = receipts.clients
    rates = bool(data.values.min() != data.values.max()) and model._sees_ratings
    members = {one for group in receipts.sums for one in group}
    own = {client: own_items(data, client, rates) for client in members.union(clients.tolist())}
    guesses, n_profiles = _infer(receipts, model, inversion, data.n_items, own)
    guesses = [guesses.get(client, NOTHING) for client in clients]
    own, truth = [own[client] for client in clients], truth[clients]
    claims = [(guess.items, guess.values) for guess in guesses]
    found = score_vectors([guess.vector for guess in guesses], truth)
    found |= score_pairs(claims, own, rates)
    return LeakReport(
        method=name,
        n_clients=len(clients),
        n_rounds=n_rounds,
        **found,
        chance=common_vector(truth) | common_items(data, own, rates),
        cohort=receipts.cohort,
        differences=differences,
        n_profiles=n_profiles,
    )


def _check_numbers(n_rounds, max_clients, cohort, differences):
    whole = Interval(Integral, 1, None, closed="left")
    constraints = {
        "n_rounds": [whole],
        "max_clients": [whole, None],
        "cohort": [whole, StrOptions({"all"}), None],
        "differences": [StrOptions({"same round", "next round"}), None],
    }
    values = n_rounds, max_clients, cohort, differences
    checked("measure_leak", constraints, **dict(zip(constraints, values, strict=True)))
    if differences == "next round" and n_rounds < 2:
        raise ValueError(
            'differences="next round" subtracts the sums of two rounds, but n_rounds=1; set '
            "n_rounds=2 or more."
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
    if isinstance(cohort, Integral) and cohort > n_clients:
        raise ValueError(
            f"cohort={cohort} is more than the {n_clients} clients of X; lower it, or set "
            'cohort="all".'
        )
    n_attacked = min(n_clients, max_clients or n_clients)
    is_summed = model._setting().secure_aggregation is not None or differences is not None
    if cohort is None and not is_summed:
        return Singles(np.arange(n_attacked))
    size = cohort if isinstance(cohort, Integral) else n_clients
    if differences is None:
        return Groups(n_clients, int(size), n_attacked)
    if size == 1:
        raise ValueError(
            "With cohorts of one client, the second of the two sums that differ by it is empty; "
            "set cohort to 2 or more."
        )
    last = n_rounds - 1 if differences == "next round" else None
    return Differences(n_clients, int(size), n_attacked, last)


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


def _infer(receipts, model, inversion: Any, n_items, own):
    """Return reconstructions by client, and how many of them were isolated from a sum."""
    guesses: dict[int, Any] = {}
    (invert, separate), n_profiles = inversion, 0
    for members, exchanges in receipts.sums.items():
        means = [
            one._replace(
                upload={n: Update(r, c / len(members)) for n, (r, c) in one.upload.items()}
            )
            for one in exchanges
        ]
        common = invert(model, means, n_items)
        if separate is not None and len(members) > 1:
            profiles = separate(model, exchanges, n_items)
            whose = assign(profiles, [own[client] for client in members], n_items)
            known = [one is not None for one in whose]
            n_profiles += sum(known)
            if any(known):
                common = common._replace(items=NOTHING.items, values=None)
            guesses |= {c: one for c, one in zip(members, whose, strict=True) if one is not None}
        guesses = dict.fromkeys(members, common) | guesses
    for client, exchanges in receipts.singles.items():
        guesses[client] = invert(model, exchanges, n_items)
    return guesses, n_profiles


def _vectors(clients):
    """Return private vectors of clients with one user each, in the order of clients' codes."""
    codes = np.concatenate([one.block.clients for one in clients])
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
    """How to invert a method's uploads, and how to separate a sum of them (None: not at all)."""

    invert: Callable[..., Reconstruction] | None
    separate: Callable[..., list[Reconstruction]] | None = None


# By class or, for this package's own methods, by its name: they import no attacks and, of the
# neural ones, not all can be imported everywhere. Subclasses inherit.
_INVERSIONS: dict[type | str, Inversion] = {
    "ExplicitFCF": Inversion(explicit_fcf, by_lines(explicit_fcf, "gradient")),
    "FCF": Inversion(fcf, by_lines_beside_a_matrix),
    "FedEB": Inversion(fedeb),
    "FedFast": Inversion(fedfast),
    "FedRec": Inversion(fedrec),
    "LightFR": Inversion(lightfr),
    "RFRec": Inversion(rfrec, by_lines(rfrec, "item_vectors", tolerance=1e-3, signed=True)),
    "SemiDFEGL": Inversion(semidfegl),
    **dict.fromkeys(
        ("FedNCF", "FedRAP", "FederatedModule", "GPFedRec", "PFedRec"), Inversion(neural)
    ),
    **dict.fromkeys(("FedEASE", "FedItemKNN", "FedSpectral"), Inversion(gram, by_pairs)),
    **dict.fromkeys(("GlobSGD", "LocALS", "LocSGD"), Inversion(wmf, by_lines(wmf, "rows"))),
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


def assign(profiles, own, n_items):
    """Assign profiles to clients by most items in common; None for clients that get none."""
    if not profiles:
        return [None] * len(own)
    claimed = _incidence([one.items for one in profiles], n_items)
    true = _incidence([items for items, _ in own], n_items)
    shared = (true @ claimed.T).toarray()
    either = true.sum(axis=1)[:, None] + claimed.sum(axis=1)[None] - shared
    alike = shared / np.maximum(either, 1)
    whose = dict(zip(*linear_sum_assignment(-alike), strict=True))
    fits = [c in whose and alike[c, whose[c]] > 0 for c in range(len(own))]
    return [profiles[whose[c]] if fit else None for c, fit in enumerate(fits)]


def _incidence(lists, n_items) -> Any:
    """Return a matrix with a row for each list of items, and ones in their columns."""
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    items = np.concatenate(lists).astype(np.int64)
    return csr_array((np.ones(len(items)), items, indptr), shape=(len(lists), n_items))


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


def common_items(data, own, rates):
    """Return the shares reached by claiming the same items, and ratings, for every client."""
    kept = np.ones(len(data.items), dtype=bool) if rates else data.values > 0
    items, values = data.items[kept], data.values[kept]
    n_holders = np.bincount(items, minlength=data.n_items)
    best = _best_for_all(n_holders, n_holders, data.n_clients)
    shares = score_pairs([(best, None)] * len(own), own, rates=False)
    if not rates:
        return shares
    triples, counts = np.unique(np.column_stack([items, values]), axis=0, return_counts=True)
    # In ascending order, so that the most common rating of an item is written last.
    ascending = np.argsort(counts, kind="stable")
    rated = triples[ascending, 0].astype(np.intp)
    usual, n_usual = np.zeros(data.n_items), np.zeros(data.n_items)
    usual[rated], n_usual[rated] = triples[ascending, 1], counts[ascending]
    best = _best_for_all(n_usual, n_holders, data.n_clients)
    return shares | {
        "values": score_pairs([(best, usual[best])] * len(own), own, rates=True)["values"]
    }


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
