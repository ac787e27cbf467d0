"""Check that a federated method of your own keeps the contract of the package's methods."""

from __future__ import annotations

import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from fedrecsk.aggregation import NormClipping, TrimmedMean
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import Quantization
from fedrecsk.deployment import Device, DeviceServer
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.privacy import CentralDP
from fedrecsk.protocol import Algorithm, Federation, blocks
from fedrecsk.protocol.keys import Key
from fedrecsk.simulation.run import watch

# How far two fits may differ that add up the same numbers in another order.
_TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
_SEED = 0


def check_federated_estimator(estimator: FederatedRecommender) -> None:
    """Check a federated method, which need not be part of this package.

    The checks run small fits on random data, one after the other, in some seconds: scikit-learn's
    own checks, then those of ``CHECKS``. A check that fails says what is wrong.

    Parameters
    ----------
    estimator : federated estimator
        An instance with parameters that suit 20 users and 12 items. The checks set `n_rounds`,
        `random_state`, `items`, `client_fraction`, `federation`, `n_jobs`, `warm_start` and
        `early_stopping` themselves.

    Raises
    ------
    TypeError
        If it is not an instance of a FederatedRecommender.
    AssertionError
        If the estimator breaks the contract. Other errors of a check are raised as they are, with
        the name of the check as a note.

    Warns
    -----
    SkipTestWarning
        If scikit-learn leaves a check out.

    Examples
    --------
    >>> from fedrecsk import FCF
    >>> from fedrecsk.testing import CHECKS, check_federated_estimator
    >>> check_federated_estimator(FCF(n_factors=2))  # doctest: +SKIP

    One case for each check, with pytest:

    >>> import pytest
    >>> @pytest.mark.parametrize("check", CHECKS)
    ... def test_my_method(check):
    ...     check(FCF(n_factors=2))
    """
    if not isinstance(estimator, FederatedRecommender):
        raise TypeError(
            f"check_federated_estimator needs an instance of a federated method, got {estimator!r};"
            " derive it from fedrecsk.federated.base.FederatedRecommender."
        )
    with warnings.catch_warnings():
        # scikit-learn's checks take random numbers for ids.
        warnings.filterwarnings("ignore", ".* ids .* have fractions", UserWarning)
        for found in check_estimator(_quick(estimator), on_fail=None):
            if found["status"] == "failed":
                _note(found["exception"], f"In scikit-learn's {found['check_name']}.")
                raise found["exception"]
    for check in CHECKS:
        try:
            check(estimator)
        except Exception as error:
            _note(error, f"In fedrecsk.testing.{check.__name__}, which checks: {check.__doc__}")
            raise


def _note(error, where):
    """Add notes to an error: where it was raised, and in which function of the algorithm."""
    error.add_note(where)
    function = _function_of_the_algorithm(error)
    if function is not None:
        error.add_note(f"It was raised in {function}(...) of the algorithm.")


def _function_of_the_algorithm(error):
    """Return the name of the algorithm's function in which an error was raised, or None."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = type(frame.f_locals.get("self"))
        for name in vars(Algorithm) if issubclass(owner, Algorithm) else ():
            if getattr(getattr(owner, name), "__code__", None) is frame.f_code:
                return name
    return None


def check_equal_seeds_give_equal_models(estimator: FederatedRecommender) -> None:
    """Check that fits with the same random_state are equal bit for bit for any n_jobs."""
    X, y = _rows(estimator)
    with _clients_per_block(20):
        one, again, parallel = (_fit(estimator, X, y, n_jobs=n) for n in (None, None, 2))
    np.testing.assert_array_equal(one.predict(X), again.predict(X))
    np.testing.assert_array_equal(one.predict(X), parallel.predict(X))
    assert one.communication_ == parallel.communication_, "n_jobs changes communication_"


def check_blocks_do_not_matter(estimator: FederatedRecommender) -> None:
    """Check that clients simulated one by one give the model of clients simulated together."""
    X, y = _rows(estimator)
    for clients in (None, X[:, 0] % 5):
        together = _fit(estimator, X, y, clients=clients)
        with _clients_per_block(1):
            single = _fit(estimator, X, y, clients=clients)
        np.testing.assert_allclose(single.predict(X), together.predict(X), **_TOLERANCE)
        assert single.communication_ == together.communication_, "blocks change communication_"


def check_rows_have_no_order(estimator: FederatedRecommender) -> None:
    """Check that the order of the rows does not matter."""
    X, y = _rows(estimator)
    model, other = _fit(estimator, X, y), _fit(estimator, X[::-1], y[::-1])
    np.testing.assert_allclose(other.predict(X), model.predict(X), **_TOLERANCE)


def check_predictions_and_recommendations(estimator: FederatedRecommender) -> None:
    """Check that predictions are finite for any ids, and that lists have the best unseen items."""
    X, y = _rows(estimator)
    model = _fit(estimator, X, y)
    items = model.item_ids_
    for user in (*model.user_ids_[:3], -1):
        predicted = model.predict([[user, item] for item in items])
        assert np.isfinite(predicted).all(), f"predictions of user {user} are not finite"
        found, scores = model.recommend([user], 4)
        unseen = ~np.isin(items, X[X[:, 0] == user, 1])
        best = np.sort(predicted[unseen])[::-1][:4]
        np.testing.assert_allclose(scores[0][: len(best)], best, **_TOLERANCE)
        assert np.isin(found[0][: len(best)], items[unseen]).all(), "a seen item is recommended"
    assert np.isfinite(model.predict([[X[0, 0], -1], [-1, -1]])).all()


def check_new_users_are_folded_in(estimator: FederatedRecommender) -> None:
    """Check that a new user's rows give it its own predictions, and change no other user's."""
    X, y = _rows(estimator)
    model = _fit(estimator, X, y)
    before, mine = model.predict(X), X[:, 0] == X[0, 0]
    model.fold_in(X[mine] * [0, 1] - [7, 0], y[mine])
    np.testing.assert_array_equal(model.predict(X), before)
    assert np.isfinite(model.predict([[-7, item] for item in model.item_ids_])).all()


def check_pickles_predict_the_same(estimator: FederatedRecommender) -> None:
    """Check that a pickled model predicts as before."""
    X, y = _rows(estimator)
    model = _fit(estimator, X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


def check_a_warm_start_goes_on(estimator: FederatedRecommender) -> None:
    """Check that a fit of two rounds continued to four equals one of four rounds."""
    X, y = _rows(estimator)
    warm = _fit(estimator, X, y, n_rounds=2, warm_start=True)
    warm._set(n_rounds=4).fit(X, y)
    np.testing.assert_array_equal(warm.predict(X), _fit(estimator, X, y).predict(X))


def check_any_participation(estimator: FederatedRecommender) -> None:
    """Cohorts, lost uploads and clients that are offline give a finite model and full ledgers."""
    X, y = _rows(estimator)
    for mode in ("upload", "stale", "offline"):
        federation = Federation(dropout=0.5, dropout_mode=mode)
        model = _fit(estimator, X, y, client_fraction=0.5, federation=federation)
        assert np.isfinite(model.predict(X)).all(), f"not finite with dropout_mode={mode!r}"
        assert model.n_rounds_ == len(model.history_) == 4
        ledger = model.communication_
        for way in ("up", "down"):
            by_step = sum(entry[f"bytes_{way}"] for entry in ledger.entries)
            by_client = getattr(ledger, f"client_bytes_{way}").sum()
            assert by_step == by_client, f"bytes_{way} of steps and of clients differ"


def check_uploads_change_the_model(estimator: FederatedRecommender) -> None:
    """Check that the final model is another one if nearly all uploads of rounds are lost."""
    X, y = _rows(estimator)
    sent = []
    for dropout in (0.0, 0.999):
        with warnings.catch_warnings(action="ignore"):
            try:
                model = _fit(estimator, X, y, federation=Federation(dropout=dropout))
            except ValueError:
                # A method may be unable to go on without uploads.
                return
        sent.append({name: field.values for name, field in model._final_message.items()})
    equal = [np.array_equal(values, sent[1].get(name)) for name, values in sent[0].items()]
    assert not all(equal), "the final model is the same without uploads; step(...) ignores them"


def check_parts_of_a_federation_work_or_are_refused(estimator: FederatedRecommender) -> None:
    """Attacks, robust aggregators and compression give a finite model, or a ValueError."""
    X, y = _rows(estimator)
    parts = {
        "adversary": SignFlip(fraction=0.2),
        "aggregator": NormClipping(1.0),
        "compression": Quantization("int8"),
        "wire_dtype": "float16",
    }
    for name, part in [*parts.items(), ("aggregator", TrimmedMean(0.1))]:
        try:
            model = _fit(estimator, X, y, federation=Federation(**{name: part}))
        except ValueError:
            # A method may refuse what does not suit it.
            continue
        assert np.isfinite(model.predict(X)).all(), f"not finite with {name}={part}"


def check_users_of_a_client_may_be_apart(estimator: FederatedRecommender) -> None:
    """With ``CentralDP(unit="user")`` silos give the model of single users, or a ValueError."""
    X, y = _rows(estimator)
    has, public = estimator.get_params(), {"items": np.unique(X[:, 1]), "rating_scale": (1, 5)}
    mechanism = CentralDP(clip=0.5, noise_multiplier=0.0, unit="user")
    given: Any = {name: value for name, value in public.items() if name in has}
    given |= {"client_fraction": 1.0, "federation": Federation(central_dp=mechanism)}
    try:
        alone = _fit(estimator, X, y, **given)
    except (ImportError, ValueError):
        # A method may refuse central privacy, which needs fedrecsk[privacy].
        return
    together = _fit(estimator, X, y, clients=X[:, 0] % 3, **given)
    why = "a user's upload depends on the other users of the client"
    np.testing.assert_allclose(together.predict(X), alone.predict(X), **_TOLERANCE, err_msg=why)


def check_hooks_keep_to_their_side(estimator: FederatedRecommender) -> None:
    """Check that functions set no attributes, and that messages do not depend on past calls."""
    X, y = _rows(estimator)
    method = _quick(estimator, n_rounds=2)
    data = method._prepared(X, y)
    for server, clients, _ in watch(method, data, 2):
        for one in (server, *clients):
            extra = vars(one.algorithm).keys() - vars(method._algorithm()).keys()
            assert not extra, f"a function has set {sorted(extra)} on self; keep them in states"
        state, first_round = server.state, server.key.at(0)
        function: Any
        for name_of, function, more in (
            ("broadcast", server.algorithm.broadcast, (first_round,)),
            ("final", server.algorithm.final, ()),
        ):
            first, second = (
                {name: np.copy(field.values) for name, field in function(state, *more).items()}
                for _ in range(2)
            )
            for name, values in first.items():
                changed = f"{name_of} sends another {name!r} if it is called again"
                np.testing.assert_array_equal(second[name], values, err_msg=changed)


def check_the_halves_make_the_same_model(estimator: FederatedRecommender) -> None:
    """Check that a DeviceServer and pickled Devices give the simulation's model."""
    X, y = _rows(estimator)
    method = _quick(estimator, items=np.unique(X[:, 1]))
    if getattr(method, "rating_scale", 0) is None:
        method._set(rating_scale=(1, 5))
    seed = Key(int(np.random.RandomState(_SEED).randint(2**31 - 1)))
    try:
        server = DeviceServer.of(method, key=seed)
        rows = [X[:, 0] == user for user in np.unique(X[:, 0])]
        devices = [
            Device(method, X[mine], y[mine], client_id=X[mine][0, 0], private=seed) for mine in rows
        ]
    except ValueError:
        # Only the simulator can run some methods, which say so.
        return
    for device, place in zip(
        devices, server.register([d.register() for d in devices]), strict=True
    ):
        device.place(place)
    if server.has_setup:
        message = server.setup_message()
        server.close_setup([one for device in devices for one in device.setup(message)])
    announcement = server.send_announcement()
    for device in devices:
        device.announce(announcement)
    for _ in range(method._plan().rounds(len(devices))):
        server, devices = pickle.loads(pickle.dumps((server, devices)))
        turn, message = server.open_round()
        uploads = []
        for code in np.flatnonzero(turn.receives | turn.active):
            devices[code].receive(server.round, message if turn.receives[code] else None)
            if turn.active[code]:
                uploads += devices[code].update(server.round)[0]
        server.close_round(uploads)
    final = server.send_final()
    with _clients_per_block(1):
        simulated = method.fit(X, y)
    for device, mine in zip(devices, rows, strict=True):
        deployed = device.fitted(final, server.round)
        np.testing.assert_allclose(deployed.predict(X[mine]), simulated.predict(X[mine]), rtol=1e-3)


CHECKS: tuple[Callable[[FederatedRecommender], None], ...] = (
    check_equal_seeds_give_equal_models,
    check_blocks_do_not_matter,
    check_rows_have_no_order,
    check_predictions_and_recommendations,
    check_new_users_are_folded_in,
    check_pickles_predict_the_same,
    check_a_warm_start_goes_on,
    check_any_participation,
    check_uploads_change_the_model,
    check_parts_of_a_federation_work_or_are_refused,
    check_users_of_a_client_may_be_apart,
    check_hooks_keep_to_their_side,
    check_the_halves_make_the_same_model,
)


def _rows(estimator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return rows of 20 users and 12 items, with ratings 1 to 5 or, for ranking, all ones."""
    rng = np.random.default_rng(1)
    users, items = np.nonzero(rng.random((20, 12)) < 0.5)
    X = np.stack([100 + 7 * users, 1000 + 3 * items], axis=1)
    ratings = rng.integers(1, 6, len(X)).astype(float)
    return X, ratings if estimator._sees_ratings else np.ones(len(X))


def _quick(estimator, **parameters):
    """Return an unfitted copy that fits in four seeded rounds."""
    return clone(estimator)._set(**{"n_rounds": 4, "random_state": _SEED} | parameters)


def _fit(estimator, X, y, *, clients=None, **parameters):
    return _quick(estimator, **parameters).fit(X, y, clients=clients)


def _clients_per_block(n_ratings):
    """Simulate few clients at a time, whatever the machine would choose."""
    return mock.patch.object(blocks, "block_size", return_value=n_ratings)
