"""Evaluate a fitted model where the data are: each client sends the sums of its own rows."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from fedrecsk._utils.constraints import AtLeast1, Finite, Positive, Seed
from fedrecsk._utils.parameters import checked, limits_of, suggest
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.cluster import _frames
from fedrecsk.data._mistakes import check_order
from fedrecsk.data.interactions import encode
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.metrics import check_rows, unwrap, warn_if_seen, warn_if_unknown
from fedrecsk.privacy import CentralDP, PrivacyReport
from fedrecsk.protocol import refusals
from fedrecsk.protocol.central_noise import CentralNoise, PlannedUploads
from fedrecsk.protocol.evaluation import ERRORS, HeldOut, Scoring
from fedrecsk.protocol.federation import Federation
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.ledger import Ledger
from fedrecsk.protocol.links import Downlink, StepTotal, Uplink
from fedrecsk.protocol.messages import Message
from fedrecsk.protocol.participation import Sampling
from fedrecsk.protocol.protection import added_up_by, measured, protected, stages
from fedrecsk.protocol.secure_accounts import aligned_size
from fedrecsk.selection._report import EvaluationReport
from fedrecsk.updates import ClientUpdates, SparseRows

# With 6,040 clients, CKKS holds numbers up to 1.3.
DIVISOR = 2.0**16


@suggest
def federated_evaluate(
    model: object,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    metrics: str | Sequence[str] | None = None,
    clients: ArrayLike | None = None,
    n_negatives: AtLeast1 | None = None,
    threshold: Finite | None = None,
    largest_error: Positive | None = None,
    epsilon: Annotated[float, Interval(Real, 0, 1e6, closed="right")] | None = None,
    random_state: Seed = None,
) -> EvaluationReport:
    """Evaluate a fitted federated model on rows that stay with the clients.

    Each client evaluates its copy of the model on its own rows and sends sums, which the server
    adds up. The values equal those of :func:`fedrecsk.metrics.evaluate_ranking` and of
    scikit-learn's errors on the rows of all clients together. The federation of the model protects
    the sums as it protects uploads: by masks, by encryption, or by central noise.

    Parameters
    ----------
    model : estimator
        A fitted federated model, or a Pipeline or search that ends in one.
    X : array-like or DataFrame of shape (n_samples, n_features >= 2), default=None
        Test rows of the clients, as in `fit`; repeated pairs are merged. If None, the rows that
        clients held out in a fit with ``early_stopping=True`` and ``warm_start=True``.
    y : array-like of shape (n_samples,), default=None
        Ratings, which "rmse" and "mae" need. For rankings, rows that reach the `threshold` are
        relevant, or all rows without y.
    metrics : str or sequence of str, default=None
        "rmse", "mae", and rankings with a cutoff: "ndcg@10", "hr@10", "precision@10", "recall@10",
        "map@10" and "mrr@10". If None, "ndcg@10", and "rmse" for methods of ratings.
    clients : array-like of shape (n_samples,), default=None
        Client of each row, as in `fit`. If None, each user is a client.
    n_negatives : int, default=None
        Number of items, neither seen in fit nor in the user's test rows, among which these rows are
        ranked. Each client draws them. If None, the whole catalogue is ranked, without items seen
        in fit.
    threshold : float, default=None
        The least y of a relevant row. If None, all y above 0 are relevant.
    largest_error : float, default=None
        Greatest RMSE or MAE of a client in histograms, and under central privacy. If None, the
        width of the model's rating scale.
    epsilon : float, default=None
        Privacy loss of this evaluation, required with ``Federation(central_dp=...)``. All metrics
        share it. Each client then counts once, however many rows it has.
    random_state : int, RandomState instance or None, default=None
        Seed of negatives, of lost uploads and of keys.

    Returns
    -------
    report : EvaluationReport

    Raises
    ------
    NotFittedError
        If `model` is not fitted.
    TypeError
        If `model` is not a federated method.
    ValueError
        If there are no rows; if a metric is unknown or does not suit the method; if the federation
        has `local_dp`, which does not protect these sums, or `central_dp` without an `epsilon`; or
        if fewer clients than a masked sum needs have rows.

    Warns
    -----
    UserWarning
        If the model was fitted to the rows of X or to more than 1% of their pairs, or knows hardly
        any of the users or items.

    Notes
    -----
    Clients of the fit have the model already, so they download nothing. New users' clients receive
    it. An `aggregator` does not change the sums, and an `adversary` does not forge them.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.datasets import make_interactions
    >>> from fedrecsk.model_selection import WarmStartKFold
    >>> from fedrecsk.selection import federated_evaluate
    >>> X = make_interactions(n_users=60, n_items=40, n_interactions=900, random_state=0)
    >>> train, test = next(WarmStartKFold(shuffle=True, random_state=0).split(X))
    >>> model = LocALS(4, n_rounds=5, random_state=0).fit(X[train])
    >>> report = federated_evaluate(model, X[test], metrics=["ndcg@10", "hr@10"])
    >>> sorted(report.values)
    ['hr@10', 'ndcg@10']
    """
    given = {"n_negatives": n_negatives, "threshold": threshold, "epsilon": epsilon}
    given |= {"largest_error": largest_error, "random_state": random_state}
    checked("federated_evaluate", limits_of(federated_evaluate), **given)
    transformers, recommender = unwrap(model)
    if not isinstance(recommender, FederatedRecommender):
        raise TypeError(
            f"{type(recommender).__name__} is not a federated method; use evaluate_ranking for it."
        )
    _frames.check_users_are_here(recommender)
    federation = _federation(recommender, epsilon)
    scale = getattr(recommender, "rating_scale_", None)
    options = largest_error, n_negatives, threshold
    scoring = scoring_of(recommender, metrics, recommender.n_items_, scale, *options)
    divisor = DIVISOR if federation.encrypts else None
    scoring = replace(scoring, bounded=epsilon is not None, divisor=divisor)
    if X is None:
        rows, recommender = _rows_held_out(recommender)
    else:
        scoring.check_y(y)
        X, y, _ = check_rows(X, y)
        for transformer in transformers:
            X = transformer.transform(X)
        rows = rows_of(recommender, X, y, clients)
    scheme: Any = federation.secure_aggregation
    if federation.masks:
        # Raises if they are too few.
        scheme.plan(len(rows.client_ids))
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    model, seen = recommender._model(), recommender._seen
    mechanism = federation.central_dp
    by_user = mechanism is not None and mechanism.unit == "user"
    owners = np.arange(rows.held_out.n_users) if by_user else rows.clients
    found = scoring.measure(model, seen, rows.held_out, owners, rows.codes, Key(seed), rows.places)
    secret = None
    if isinstance(random_state, Integral):
        # Otherwise the noise of two evaluations with the same seed could be subtracted.
        given = sorted(federation.get_params().items())
        identity = repr((seed, scoring, epsilon, given, rows.client_ids.tolist())).encode()
        arrays = *found.values(), rows.codes, rows.clients
        identity += b"".join(np.ascontiguousarray(one).tobytes() for one in arrays)
        secret = Key(int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest()) >> 1)
    return _summed(scoring, federation, recommender, rows, found, Key(seed), secret)


class Rows(NamedTuple):
    """Test rows of users, who have numbers; `places` are their codes in the model, or -1.

    `clients` are the clients of the users, and `codes` their addresses for draws.
    """

    held_out: HeldOut
    client_ids: NDArray[Any]
    clients: NDArray[np.int64]
    places: NDArray[np.int64]
    codes: NDArray[np.int64]


def _federation(model, epsilon):
    """Return the federation of an evaluation, with what of the model's protects sums."""
    federation, name = model._setting(), type(model).__name__
    refusals.check("evaluation", model._plan())
    mechanism = federation.central_dp
    if mechanism is not None and epsilon is None:
        raise ValueError(
            f"The federation of {name} has central_dp, and an evaluation spends more of the "
            "clients' privacy; pass epsilon=, for example 0.5."
        )
    if mechanism is None and epsilon is not None:
        raise ValueError(
            f"The federation of {name} has no central_dp, so nothing would keep epsilon="
            f"{epsilon:g}; leave it out."
        )
    parts = "dropout", "dropout_mode", "wire_dtype", "secure_aggregation"
    kept: dict[str, Any] = {part: getattr(federation, part) for part in parts}
    if mechanism is not None:
        same = {part: getattr(mechanism, part) for part in ("delta", "noise", "unit")}
        kept["central_dp"] = CentralDP(epsilon=epsilon, **same)
    return Federation(**kept)


def scoring_of(
    method: Any,
    metrics: str | Sequence[str] | None,
    n_items: int,
    scale: tuple[float, float] | None,
    largest_error: float | None = None,
    n_negatives: int | None = None,
    threshold: float | None = None,
) -> Scoring:
    """Return what clients report; raise if a metric does not suit the method."""
    if metrics is None:
        metrics = ("rmse", "ndcg@10") if method._sees_ratings else ("ndcg@10",)
    names = (metrics,) if isinstance(metrics, str) else tuple(dict.fromkeys(metrics))
    if not names or "loss" in names:
        raise ValueError('metrics must name at least one metric, such as "ndcg@10", and no loss.')
    scoring = Scoring(names)
    scoring.check(method._plan(), n_items)
    if largest_error is None and scale is not None:
        largest_error = float(scale[1] - scale[0])
    if largest_error is None and not ERRORS.keys().isdisjoint(names):
        raise ValueError(
            f"{type(method).__name__} has no rating scale, so the histogram of errors has no end; "
            "pass largest_error=, for example 4 for ratings from 1 to 5."
        )
    ranges = tuple(largest_error if name in ERRORS else 1.0 for name in names)
    return replace(scoring, ranges=ranges, n_negatives=n_negatives, threshold=threshold)


def rows_of(model: Any, X: Any, y: Any, clients: Any) -> Rows:
    """Return the test rows of some clients."""
    data = encode(X, y, clients=clients)
    users, items = data.user_ids.values, data.item_ids.values
    places, codes = model._users.codes(users), model._items.codes(items)
    known = SimpleNamespace(user_ids=model._users, item_ids=model._items)
    check_order(users, items, (places, codes), (model._users, model._items))
    warn_if_unknown(known, users, places, items, codes)
    warn_if_seen(model, places[data.users], codes[data.items])
    rows = data.users, codes[data.items], data.values, data.weights
    ranks = np.arange(len(data.items)) - data.indptr[data.users]
    held_out = HeldOut(*rows, data.n_users, model.n_items_, ranks, users)
    owners = np.repeat(np.arange(data.n_clients), np.diff(data.client_indptr))
    # New users have the codes after those of the others.
    new = places < 0
    user_codes = np.where(new, model.n_users_ + np.cumsum(new) - 1, places)
    return Rows(held_out, data.client_ids, owners, places, user_codes)


def _rows_held_out(model):
    """Return the rows that clients have held out, and the model without them."""
    run = getattr(model, "_run", None)
    if run is None or run.clients[0].held_out is None:
        raise ValueError(
            "No rows are given, and no client holds rows out; pass X (and y), or fit with "
            "early_stopping=True and warm_start=True."
        )
    blocks = [one.held_out for one in run.clients]
    users, (items, values, weights) = _by_user(blocks, "items", "values", "weights")
    lengths = np.bincount(users, minlength=model.n_users_)
    clients = np.empty(model.n_users_, dtype=np.int64)
    for one in blocks:
        clients[one.users] = np.repeat(one.clients, np.diff(one.client_indptr))
    starts = np.cumsum(lengths) - lengths
    ranks = np.arange(len(users)) - starts[users]
    everyone = np.arange(model.n_users_)
    size = model.n_users_, model.n_items_
    held_out = HeldOut(users, items, values, weights, *size, ranks, model.user_ids_)
    # Items that users have seen are those of their other rows.
    model = copy.copy(model)
    seen_users, (seen,) = _by_user([one.block for one in run.clients], "items")
    counts = np.bincount(seen_users, minlength=model.n_users_)
    model._seen = np.concatenate([[0], np.cumsum(counts)]), seen
    return Rows(held_out, run.data.client_ids, clients, everyone, everyone), model


def _by_user(blocks, *names):
    """Return the user of each row of some blocks, and their arrays of rows, by user."""
    users = np.concatenate([np.repeat(one.users, np.diff(one.indptr)) for one in blocks])
    order = np.argsort(users, kind="stable")
    arrays = [np.concatenate([getattr(one, name) for one in blocks])[order] for name in names]
    return users[order], arrays


def _summed(scoring, federation, model, rows, found, key, secret):
    """Send the clients' sums to the server, and return its report."""
    specs, n_clients, key = scoring.fields(), len(rows.client_ids), key.at(0)
    fields = scoring.packed(found)
    mechanism, sampling = federation.central_dp, Sampling.of(federation, 1.0)
    plan = replace(model._plan(), federation=federation, sampling=sampling)
    part, releases, terms = sampling.draw(n_clients, key), None, None
    if mechanism is not None:
        # Own means and their squares are at most 1, and each client is in one bin.
        federation._set(central_dp__clip=float(np.sqrt(3 * len(scoring.metrics))))
        sizes = {"setup": 1, "round": sum(spec.size for spec in specs.values())}
        # One round of all clients.
        uploads = PlannedUploads(
            *(n_clients, sizes, 0, 1),
            uses=1,
            probability=1.0,
            cohort=n_clients,
            n_users=rows.held_out.n_users,
            by_user=plan.by_user,
        )
        releases = CentralNoise(federation, sampling, uploads, secret)
        terms = releases.terms(key)
    ledger = Ledger(rows.client_ids)
    ledger.open("evaluation", 0)
    # Clients get no rows of their own items.
    downlink = Downlink(federation, ledger, np.zeros(n_clients, dtype=np.int64))
    uplink, channel = Uplink(downlink, n_clients, releases), downlink.channel
    is_new = np.bincount(rows.clients, rows.places >= 0, minlength=n_clients) == 0
    whole = Message(**model._final_message).sizes(
        np.full(n_clients, model.n_items_), federation.wire_dtype
    )[0]
    downlink.count(np.where(is_new, whole, 0), part.receives)
    if terms is not None:
        downlink.add(terms, part.receives)
    total = StepTotal(uplink, specs)
    total.add(_updates(specs, fields, rows.clients, part, plan, secret or key, terms))
    ledger.count(participants=part.active.sum(), dropped=part.dropped.sum())
    upload = uplink.close(total, key)
    if upload is None:
        raise ValueError(
            f"The sums of {n_clients} clients are lost, because too few of them answered; evaluate "
            "on rows of more clients, or lower federation.dropout."
        )
    if channel is not None:
        # Clients decrypt the sum.
        receivers = part.receives.nonzero()[0]
        ledger.more_down(receivers, np.full(len(receivers), channel.nbytes(aligned_size(specs))))
    privacy, secure = uplink.privacy_report(plan.server_sees), channel or uplink.masks
    encryption = secure and secure.report()
    return report_of(scoring, upload, ledger, [model.privacy_, privacy], encryption)


def report_of(
    scoring: Scoring,
    upload: Any,
    ledger: Ledger,
    privacy: list[PrivacyReport],
    encryption: Any = None,
) -> EvaluationReport:
    """Return the report of an evaluation from the sums; `privacy` is of the fit and of this."""
    spread = scoring.spread(upload)
    return EvaluationReport(
        values=scoring.values(upload),
        standard_errors={name: one.standard_error for name, one in spread.items()},
        histograms={name: one.counts for name, one in spread.items()},
        edges={name: one.edges for name, one in spread.items()},
        communication=ledger,
        privacy=privacy[-1],
        total_privacy=PrivacyReport.joined(privacy),
        encryption=encryption,
    )


def _updates(specs, fields, owners, part, plan, key, terms):
    """Return what clients send, after clipping, rounding and noise."""
    federation, uploads, n_clients = plan.federation, plan.uploads(), len(part.active)
    each = uploads == "held" or plan.draws_each
    if plan.by_user:
        given = np.arange(len(owners)), 0, federation.wire_dtype
        of_each = single_updates(specs, fields, *given)
        summed = added_up_by(of_each, federation.central_dp, terms, owners, n_clients)
        fields = {name: rows.whole() for name, rows in summed.fields.items()}
    updates = single_updates(specs, fields, np.arange(n_clients), 0, federation.wire_dtype)
    updates.accepted = updates.arrives = part.active & part.delivers
    through = stages(federation, key, terms, each=each, clips=not plan.by_user)
    return protected(updates.take(part.active), through, uploads)


def single_updates(
    specs: dict[str, Any],
    fields: dict[str, np.ndarray],
    clients: NDArray[np.int64],
    round: int,
    wire_dtype: str,
) -> ClientUpdates:
    """Return what these clients (codes) send in an evaluation, one by one."""
    rows = {name: SparseRows.stacked(one, spec=specs[name]) for name, one in fields.items()}
    sizes = measured(dict.fromkeys(specs), specs, np.zeros_like(clients), wire_dtype)
    return ClientUpdates.of_all(rows, ("evaluation", round), clients, specs, sizes)
