"""The contract of every estimator. A new one joins by being listed in ``__all__``."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone, is_regressor
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import fedrecsk
from fedrecsk.base import Recommender
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol import blocks
from tests.conftest import make_toy
from tests.listed import REPRESENTATIVES, THINGS, is_neural, needs_callbacks

ESTIMATORS = [e for e in THINGS.values() if isinstance(e, type) and issubclass(e, Recommender)]
FEDERATED = [e for e in ESTIMATORS if issubclass(e, FederatedRecommender)]
CENTRAL = [e for e in ESTIMATORS if e not in FEDERATED]

every_estimator = pytest.mark.parametrize("Estimator", ESTIMATORS)
every_federated = pytest.mark.parametrize("Estimator", FEDERATED)
# For what all inherit: whatever a class could break by itself is tested on every one.
SOME = [e for e in ESTIMATORS if e.__name__ in REPRESENTATIVES]
representatives = pytest.mark.parametrize("Estimator", SOME)
federated_representatives = pytest.mark.parametrize(
    "Estimator", [e for e in SOME if e in FEDERATED]
)
# For what no class changes: a model of ratings and one of likes.
KINDS = [fedrecsk.RFRec, fedrecsk.EASE]
one_of_each_kind = pytest.mark.parametrize("Estimator", KINDS)


def make(Estimator, **parameters):
    """A quick and seeded instance."""
    estimator = Estimator()
    n_rounds = 4 if is_neural(Estimator) else 6
    defaults = {"n_rounds": n_rounds, "n_burn_in": 2, "n_samples": 4, "random_state": 0}
    known = estimator.get_params()
    return estimator.set_params(**{k: v for k, v in defaults.items() if k in known} | parameters)


def name_of(estimator):
    return type(estimator).__name__


def fitted_arrays(model):
    """All fitted arrays and numbers, by name."""
    return {
        name: value
        for name, value in vars(model).items()
        if name.endswith("_") and isinstance(value, np.ndarray | float | int | list)
    }


def assert_same_fit(one, other):
    arrays, others = fitted_arrays(one), fitted_arrays(other)
    assert arrays.keys() == others.keys()
    for name, value in arrays.items():
        if isinstance(value, list):
            assert repr(value) == repr(others[name]), name
        else:
            np.testing.assert_array_equal(value, others[name], err_msg=name)


# scikit-learn's checks take random numbers for ids.
@pytest.mark.filterwarnings("ignore:.* ids .* have fractions:UserWarning")
@pytest.mark.parametrize("estimator", [make(Estimator) for Estimator in ESTIMATORS], ids=name_of)
def test_scikit_learn_compatible(estimator):
    check_estimator(estimator)


@pytest.mark.parametrize("Estimator", ESTIMATORS)
def test_mixins_come_before_the_base_class(Estimator):
    """Or else what they replace would be asked first."""
    assert Estimator.__mro__[-len(Recommender.__mro__) :] == Recommender.__mro__


@pytest.fixture
def as_golden(Estimator, monkeypatch):
    """Let estimators compute in the type in which golden predictions have compiled them.

    Representatives do without it, and all estimators in the full lane's tests and examples.
    """
    if hasattr(Estimator, "_dtype") and Estimator not in SOME:
        monkeypatch.setattr(Estimator, "_dtype", np.float64)


@pytest.mark.usefixtures("as_golden")
@every_estimator
def test_every_estimator_in_short(Estimator, toy):
    """What a class could break by itself: the full contract, below, says it of each part."""
    X, y = toy
    # Rated or not, in any order.
    items = np.append(np.unique(X[:, 1])[::-1], [7, 1004, 5000])
    clients = X[:, 0] % 3
    model = make(Estimator, items=items)
    given = X.copy(), y.copy(), np.ones(len(y)), repr(model.get_params())
    model.fit(X, y, sample_weight=given[2], clients=clients)
    assert_same_fit(clone(model).fit(X[::-1], y[::-1], clients=clients[::-1]), model)
    if Estimator in CENTRAL:
        np.testing.assert_allclose(clone(model).fit(X, y).predict(X), model.predict(X), rtol=1e-9)
    assert model.item_ids_.tolist() == sorted(items)
    everybody = [*model.user_ids_, -1]
    found, scores = model.recommend(everybody, len(items), exclude_seen=False)
    assert [sorted(row) for row in found] == [sorted(items)] * len(everybody)
    for user, its, values in zip(everybody, found, scores, strict=True):
        assert np.isfinite(values).all()
        assert (np.diff(values) <= 0).all()
        predicted = model.predict([[user, item] for item in its])
        assert values == pytest.approx(predicted, abs=1e-6)
    before = model.predict(X)
    again = pickle.loads(pickle.dumps(model))
    newcomer = X[:, 0] == X[0, 0]
    again.fold_in(X[newcomer] * [0, 1] - [7, 0], y[newcomer]).fold_in([[-8, 5000]], [3.0])
    np.testing.assert_array_equal(again.predict(X), before)
    assert np.isfinite(again.predict([[user, i] for user in (-7, -8) for i in items])).all()
    assert np.isfinite(model.predict([[-1, X[0, 1]], [X[0, 0], -1], [-1, -1]])).all()
    with pytest.raises(ValueError, match="is already known"):
        again.fold_in(X[newcomer], y[newcomer])
    np.testing.assert_array_equal(X, given[0])
    np.testing.assert_array_equal(y, given[1])
    np.testing.assert_array_equal(given[2], 1)
    assert repr(model.get_params()) == given[3]
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, np.where(y == y[0], np.nan, y))
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.usefixtures("as_golden")
@every_federated
def test_every_federated_method_in_short(Estimator):
    X, y = make_toy(40, 15)
    setting = {
        "client_fraction": 0.5,
        "federation": fedrecsk.Federation(dropout=0.3, dropout_mode="stale"),
    }
    warm = make(Estimator, n_rounds=2, warm_start=True, n_jobs=2, **setting).fit(X, y)
    warm.set_params(n_rounds=4).fit(X, y)
    cold = make(Estimator, n_rounds=4, **setting).fit(X, y)
    assert_same_fit(warm, cold)
    ledger = cold.communication_
    assert warm.communication_ == ledger
    assert phases_of(cold) == ["round"] * 4 + ["final"]
    assert sum(e["bytes_up"] for e in ledger.entries) == ledger.client_bytes_up.sum() > 0
    assert sum(e["bytes_down"] for e in ledger.entries) == ledger.client_bytes_down.sum() > 0
    with pytest.raises(ValueError, match="'n_rounds' parameter"):
        cold.set_params(n_rounds=0).fit(X, y)


# ------------------------------------------------------------------------------ input


@one_of_each_kind
def test_ids_of_any_kind_give_the_same_model(Estimator, toy):
    X, y = toy
    as_strings = np.char.add("id", X.astype(str))
    frame = pd.DataFrame({"u": as_strings[:, 0], "i": X[:, 1], "when": np.arange(len(X)) / 2})
    expected = make(Estimator).fit(X, y).predict(X)
    for table in (X.astype(float), as_strings, frame, X.tolist()):
        model = make(Estimator).fit(table, y)
        assert model.predict(table) == pytest.approx(expected)


@pytest.mark.parametrize("Estimator", [e for e in ESTIMATORS if not is_regressor(e())])
def test_somebody_must_like_something(Estimator, toy):
    with pytest.raises(ValueError, match="No row of X has y > 0"):
        make(Estimator).fit(toy[0], -toy[1])


@every_estimator
def test_a_subclass_may_take_fewer_parameters(Estimator, toy):
    X, y = toy
    known = Estimator().get_params()
    whole = make(Estimator, **({"warm_start": True} if "warm_start" in known else {}))
    given = whole.get_params(deep=False)

    class Fewer(Estimator):
        def __init__(self):
            super().__init__(**given)

    assert not Fewer().get_params()
    fewer = Fewer().fit(X[:-9], y[:-9])
    assert_same_fit(fewer, whole.fit(X[:-9], y[:-9]))
    if hasattr(whole, "partial_fit"):
        assert_same_fit(fewer.partial_fit(X[-9:], y[-9:]), whole.partial_fit(X[-9:], y[-9:]))
    fewer.random_state = 7
    assert getattr(clone(fewer), "random_state", 7) == 7
    with pytest.raises(ValueError, match="Invalid parameter 'items' for estimator Fewer"):
        fewer.set_params(items=[1])


SCALED = [e for e in ESTIMATORS if "rating_scale" in e().get_params()]


@pytest.mark.parametrize("Estimator", SCALED)
def test_bad_scales_and_ratings_off_the_scale_are_named(Estimator, toy):
    rates = {"targets": "ratings"} if "targets" in Estimator().get_params() else {}
    for scale in ((5, 1), ("a", "b"), (1, np.inf)):
        with pytest.raises(ValueError, match="rating_scale must be"):
            make(Estimator, rating_scale=scale).fit(*toy)
    with pytest.raises(ValueError, match=r"the rating 5, outside rating_scale=\(1, 4\)"):
        make(Estimator, rating_scale=(1, 4), **rates).fit(*toy)
    with pytest.raises(ValueError, match=r"the rating 50, outside rating_scale=\(1, 5\)"):
        make(Estimator, **rates).fit(*toy).fold_in([[-1, toy[0][0, 1]]], [50.0])
    # Of rows of one pair, whose mean is on the scale, and of an update of an old row.
    twice = np.r_[toy[0], toy[0][:1]], np.r_[toy[1], 5.5]
    with pytest.raises(ValueError, match=r"the rating 5.5, outside rating_scale=\(1, 5\)"):
        make(Estimator, rating_scale=(1, 5), **rates).fit(*twice)
    make(Estimator, rating_scale=(1, 5), **rates).fit(*twice, sample_weight=twice[1] <= 5)
    model = make(Estimator, rating_scale=(1, 5), **rates)
    if "warm_start" in model.get_params() and model._algorithm().traits.goes_on:
        model.set_params(warm_start=True).fit(*toy)
        with pytest.raises(ValueError, match=r"the rating 9, outside rating_scale=\(1, 5\)"):
            model.partial_fit(toy[0][:1], [9.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (np.where(X[0, 0] == X, np.nan, X), y), "NaN"),
        (lambda X, y: (np.where(X[0, 0] == X, np.inf, X), y), "infinity"),
        (lambda X, y: (X[:, :1], y), r"1 feature\(s\)"),
        (lambda X, y: (X[:0], y[:0]), r"0 sample\(s\)"),
        (lambda X, y: (X, np.where(y == y[0], np.inf, y)), "infinity"),
        (lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
        (
            lambda X, y: (np.where(X[0, 0] == X, str(X[0, 0]), X.astype(object)), y),
            "user ids .column 0 of X. mix strings and numbers",
        ),
        (lambda X, y: (X.astype(object) * np.nan, y), "user ids .column 0 of X. contain NaN"),
        (lambda X, y: (X, np.full(len(y), "good")), "y holds strings"),
        (lambda X, y: (X, y, np.arange(len(y)) % 2), "A user belongs to one client, but user"),
        (lambda X, y: (X, y, y[:-1]), "inconsistent numbers of samples"),
    ],
)
def test_bad_input_is_named(toy, change, message):
    for Estimator in KINDS:
        X, y, *clients = change(*toy)
        with pytest.raises(ValueError, match=message):
            make(Estimator).fit(X, y, clients=clients[0] if clients else None)


@every_estimator
def test_awkward_data_give_finite_predictions(Estimator):
    for X, y in (
        ([[1, 1], [1, 2], [1, 3]], [1.0, 2.0, 3.0]),  # one user
        ([[1, 7], [2, 7], [3, 7]], [1.0, 2.0, 3.0]),  # one item
        ([[1, 7], [2, 8], [1, 8]], [3.0, 3.0, 3.0]),  # constant ratings
        ([[1, 7]], [3.0]),
        ([[2**62, 7], [2**62 + 1, 8]], [1.0, 5.0]),
    ):
        model = make(Estimator).fit(X, y)
        assert np.isfinite(model.predict(X)).all(), X
        assert len(np.unique(model.user_ids_)) == len({row[0] for row in X})


# ---------------------------------------------------------------- predict and recommend


@one_of_each_kind
def test_further_interactions_can_be_left_out(Estimator, toy):
    X, y = toy
    model = make(Estimator).fit(X, y)
    users = [X[0, 0], -5, X[0, 0]]
    pairs = [[X[0, 0], model.item_ids_[2]], [-5, model.item_ids_[0]], [-5, -1], [X[1, 0], 1003]]
    items, _ = model.recommend(users, 8, exclude_seen=False, exclude_interactions=pairs)
    everything = set(model.item_ids_)
    assert [everything - set(row) for row in items] == [
        {model.item_ids_[2]},
        {model.item_ids_[0]},
        {model.item_ids_[2]},
    ]


@one_of_each_kind
def test_bad_requests_are_named(Estimator, toy):
    X, y = toy
    model = make(Estimator).fit(X, y)
    with pytest.raises(ValueError, match="Candidate 5 is not an item"):
        model.recommend(X[:1, 0], 1, candidates=[5])
    with pytest.raises(ValueError, match="'n_recommendations' parameter"):
        model.recommend(X[:1, 0], 0)
    with pytest.raises(ValueError, match="user ids were numbers in fit and are strings here"):
        model.recommend(["ann"], 1)
    with pytest.raises(ValueError, match="candidates is empty"):
        model.recommend(X[:1, 0], 1, candidates=[])
    with pytest.raises(ValueError, match="interactions must be X or"):
        model.recommend(X[:1, 0], 1, interactions=(X, y, y))
    with pytest.raises(ValueError, match="exclude_interactions must have the user's id"):
        model.recommend(X[:1, 0], 1, exclude_interactions=[[X[0, 0]]])
    nothing = model.recommend(X[:1, 0], 2, exclude_interactions=[])
    np.testing.assert_array_equal(nothing[0], model.recommend(X[:1, 0], 2)[0])
    items, scores = model.recommend([], 3)
    assert items.shape == scores.shape == (0, 3)


# ----------------------------------------------------------- scikit-learn's machinery


@representatives
def test_works_in_pipelines_and_searches(Estimator, toy):
    X, y = toy
    cv = KFold(3, shuffle=True, random_state=0)
    scores = cross_validate(make_pipeline(make(Estimator)), X, y, cv=cv, error_score="raise")
    assert np.isfinite(scores["test_score"]).all()
    grid = {name: [value] for name, value in make(Estimator).get_params(deep=False).items()}
    search = GridSearchCV(make(Estimator), grid, cv=cv, error_score="raise").fit(X, y)
    assert search.best_estimator_.predict(X).shape == (len(y),)


@one_of_each_kind
def test_clients_are_routed(Estimator, toy):
    X, y = toy
    clients = X[:, 0] % 3
    with config_context(enable_metadata_routing=True):
        search = GridSearchCV(make(Estimator), {}, cv=3, error_score="raise")
        search.fit(X, y, clients=clients, sample_weight=np.ones(len(y)))
    routed = make(Estimator).fit(X, y, clients=clients)
    np.testing.assert_array_equal(search.predict(X), routed.predict(X))


class Recorder:
    """A callback that keeps what it is told."""

    def __init__(self):
        self.begun, self.ended, self.predictions = [], [], []

    def setup(self, estimator, context):
        self.metadata = []

    def teardown(self, estimator, context):
        self.done = True

    def on_fit_task_begin(self, estimator, context):
        self.begun.append(context.task_name)

    def on_fit_task_end(self, estimator, context, *, X, metadata, fitted_estimator):
        self.ended.append(context.task_name)
        self.metadata.append(metadata)
        self.predictions.append(fitted_estimator.predict(X))


@needs_callbacks
@representatives
def test_callbacks_see_and_do_not_disturb(Estimator, toy):
    X, y = toy
    recorder = Recorder()
    watched = make(Estimator).set_callbacks(recorder)
    watched.fit(X, y, clients=X[:, 0] % 4, sample_weight=np.ones(len(y)))
    alone = make(Estimator).fit(X, y, clients=X[:, 0] % 4, sample_weight=np.ones(len(y)))
    assert_same_fit(watched, alone)
    assert recorder.done
    assert sorted(recorder.begun) == sorted(recorder.ended)
    assert all(metadata.keys() == {"sample_weight"} for metadata in recorder.metadata)
    np.testing.assert_array_equal(recorder.predictions[-1], alone.predict(X))


@needs_callbacks
@one_of_each_kind
def test_scikit_learns_callbacks_work(Estimator, toy, capsys):
    from sklearn.callback import ProgressBar, ScoringMonitor

    X, y = toy
    scoring = "neg_mean_squared_error"
    monitor = ScoringMonitor(scoring=scoring)
    make(Estimator).set_callbacks(monitor, ProgressBar()).fit(X, y)
    assert monitor.get_logs().data
    monitor = ScoringMonitor(scoring=scoring)
    search = GridSearchCV(make(Estimator), {}, cv=2, error_score="raise")
    search.set_params(estimator=make(Estimator).set_callbacks(monitor))
    search.set_callbacks(ProgressBar()).fit(X, y)


STEPS = [
    *((e.__name__, "round", "n_rounds") for e in SOME if e in FEDERATED),
    *((name, "epoch", "n_epochs") for name in ("PMF", "BiasedMF", "SVDpp")),
    *((name, "iteration", "n_epochs") for name in ("ImplicitALS", "ImplicitBPR", "ImplicitLMF")),
]


@needs_callbacks
@pytest.mark.parametrize(("name", "step", "number"), STEPS, ids=[name for name, *_ in STEPS])
def test_every_step_is_a_task_and_a_callback_can_stop_the_fit(name, step, number, toy):
    class Stop(Recorder):
        def on_fit_task_end(self, estimator, context, *, X, fitted_estimator):
            self.ended.append(context.task_name)
            self.predictions.append(fitted_estimator.predict(X))
            if context.task_name == step:
                fitted_estimator.item_factors_[:] = 7
            return context.task_id == 2

    recorder, Estimator = Stop(), getattr(fedrecsk, name)
    model = make(Estimator).set_callbacks(recorder).fit(*toy)
    assert recorder.begun == ["fit"] + [step] * 3
    assert recorder.ended == [step] * 3 + ["fit"]
    assert getattr(model, f"{number}_") == 3
    for n, predicted in enumerate(recorder.predictions[:3], start=1):
        alone = make(Estimator, **{number: n}).fit(*toy)
        np.testing.assert_array_equal(predicted, alone.predict(toy[0]))
    assert_same_fit(model, alone)


# ------------------------------------------------------------------- federated methods


@every_federated
def test_any_n_jobs_gives_the_same_bits(Estimator, monkeypatch):
    monkeypatch.setattr(blocks, "block_size", lambda *_: 20)
    X, y = make_toy(40, 15)
    one, three = (
        make(Estimator, n_rounds=3, n_jobs=n).fit(X, y, clients=X[:, 0] % 9) for n in (None, 3)
    )
    assert_same_fit(one, three)
    assert one.communication_ == three.communication_


@federated_representatives
@pytest.mark.parametrize("setting", [{}, {"client_fraction": 0.5}, {"early_stopping": True}])
def test_a_warm_start_goes_on_where_it_ended(Estimator, toy, setting):
    X, y = toy
    setting |= {"federation": fedrecsk.Federation(dropout=0.3)}
    warm = make(Estimator, n_rounds=3, warm_start=True, **setting).fit(X, y)
    warm.set_params(n_rounds=8).fit(X, y)
    cold = make(Estimator, n_rounds=8, **setting).fit(X, y)
    assert_same_fit(warm, cold)
    assert warm.communication_ == cold.communication_
    with pytest.raises(ValueError, match="n_rounds=2 must be larger"):
        warm.set_params(n_rounds=2).fit(X, y)
    warm.set_params(n_rounds=9).fit(X, y)
    with pytest.raises(ValueError, match="have changed since"):
        warm.fit(X, y + 1)


@pytest.mark.parametrize(
    "change", [{"n_factors": 1}, {"federation__dropout": 0.5}, {"random_state": 1}], ids=str
)
def test_a_warm_start_with_other_parameters_is_refused(toy, change):
    model = make(fedrecsk.RFRec, warm_start=True).fit(*toy)
    before = model.predict(toy[0])
    model.set_params(n_rounds=9, **change)
    (name,) = change
    with pytest.raises(ValueError, match=f"{name} has changed"):
        model.fit(*toy)
    np.testing.assert_array_equal(model.predict(toy[0]), before)
    back = make(fedrecsk.RFRec, federation=fedrecsk.Federation()).get_params()[name]
    model.set_params(**{name: back}).fit(*toy)
    assert_same_fit(model, make(fedrecsk.RFRec, n_rounds=9).fit(*toy))


@needs_callbacks
@every_federated
def test_writing_into_a_model_changes_no_running_fit(Estimator, toy):
    class Vandal(Recorder):
        def on_fit_task_end(self, estimator, context, *, fitted_estimator):
            for value in fitted_arrays(fitted_estimator).values():
                if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                    value[:] = 7

    X, y = toy
    expected = make(Estimator, n_rounds=6).fit(X, y)
    spoiled = make(Estimator, n_rounds=3, warm_start=True).set_callbacks(Vandal()).fit(X, y)
    for name, value in fitted_arrays(spoiled).items():
        if name.startswith("item_") and value.dtype.kind == "f":
            value[:] = 7
    assert_same_fit(spoiled.set_params(n_rounds=6).fit(X, y), expected)


def test_pickles_carry_no_training_state_unless_asked():
    X, y = make_toy(60, 30)
    cold = len(pickle.dumps(make(fedrecsk.LocALS).fit(X, y)))
    warm = len(pickle.dumps(make(fedrecsk.LocALS, warm_start=True).fit(X, y)))
    assert warm > 1.5 * cold


def phases_of(model):
    """The phases of the ledger after the set-up."""
    phases = [entry["phase"] for entry in model.communication_.entries]
    assert phases[0] == "catalogue"
    return [phase for phase in phases[1:] if phase != "setup"]


@federated_representatives
def test_early_stopping_keeps_the_best_round(Estimator):
    X, y = make_toy(60, 20)
    y = np.random.default_rng(0).normal(size=len(y))
    model = make(
        Estimator,
        n_rounds=400,
        client_fraction=1.0,
        early_stopping=True,
        n_iter_no_change=3,
        validation_fraction=0.3,
    ).fit(X, y)
    losses = [row["validation_loss"] for row in model.history_]
    assert model.best_round_ == int(np.nanargmin(losses))
    assert model.n_rounds_ < 400
    assert model.n_rounds_ == len(losses) == len(model.loss_curve_)
    assert phases_of(model) == ["round"] * model.n_rounds_ + ["stop", "best"]
    rounds = clone(model).set_params(n_rounds=model.best_round_ + 1).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), rounds.predict(X))


@federated_representatives
def test_errors_are_measured_on_models_that_clients_have_received(Estimator, toy):
    """One more message goes up for each broadcast after the first, and none down."""
    model = make(Estimator, n_rounds=20, client_fraction=1.0)
    alone = clone(model).fit(*toy).communication_
    watched = model.set_params(early_stopping=True, n_iter_no_change=99).fit(*toy)
    later = [
        [e for e in ledger.entries if e["phase"] in ("round", "final")][1:]
        for ledger in (alone, watched.communication_)
    ]
    for one, other in zip(*later, strict=True):
        received = one["messages_down"] > 0
        assert other["messages_up"] - one["messages_up"] == received * 12
        assert other["messages_down"] == one["messages_down"]
    assert sum(row["bytes_up"] for row in watched.history_) == sum(
        entry["bytes_up"] for entry in watched.communication_.entries if entry["phase"] == "round"
    )


def test_early_stopping_needs_rows_to_spare():
    X = np.stack([np.arange(10), np.arange(10) % 3], axis=1)
    with pytest.raises(ValueError, match="no row to hold out"):
        make(fedrecsk.RFRec, early_stopping=True).fit(X, np.arange(10.0))


# ------------------------------------------------------------------- frames, neighbours


@one_of_each_kind
def test_recommendations_as_a_frame(Estimator, toy):
    X, y = toy
    model = make(Estimator).fit(np.char.add("id", X.astype(str)), y)
    users = [*model.user_ids_[:4], "stranger"]
    items, scores = model.recommend(users, 6)
    frame = model.recommend(users, 6, as_frame=True)
    assert frame.columns.tolist() == ["user", "item", "score", "rank"]
    expected = [
        (user, item, score, rank)
        for user, row, values in zip(users, items, scores, strict=True)
        for rank, (item, score) in enumerate(zip(row, values, strict=True), start=1)
        if score > -np.inf
    ]
    assert list(frame.itertuples(index=False, name=None)) == expected
    assert len(frame) < scores.size
    with pytest.raises(ValueError, match="'as_frame' parameter of recommend"):
        model.recommend(users, as_frame="pandas")


def similarities(model, kind):
    """The similarity of two codes by its definition, or None where there are no vectors."""
    if kind == "item" and hasattr(model, "item_weights_"):
        weights = model.item_weights_.astype(float)
        return lambda i, j: np.sign(weights[i, j]) * np.sqrt(max(weights[i, j] * weights[j, i], 0))
    vectors = getattr(model, f"{kind}_factors_", None)
    if vectors is None:
        return None
    vectors = vectors.astype(float)
    if isinstance(model, fedrecsk.FedEB):
        # Without popularity and biases.
        vectors = vectors[:, : model.n_factors]

    def cosine(i, j):
        lengths = np.linalg.norm(vectors[i]) * np.linalg.norm(vectors[j])
        return vectors[i] @ vectors[j] / lengths if lengths else 0.0

    return cosine


@pytest.mark.parametrize("Estimator", [*SOME, fedrecsk.ItemKNN, fedrecsk.LightFR])
@pytest.mark.parametrize("kind", ["item", "user"])
def test_neighbours_are_those_of_the_definition(Estimator, toy, kind, monkeypatch):
    X, y = toy
    monkeypatch.setattr("fedrecsk._utils.memory.SCORES_PER_BATCH", 20)
    # Item 5 is in the catalogue, and nobody has rated it.
    items = np.append(5, np.unique(X[:, 1]))
    setting = {"client_fraction": 0.4} if Estimator in FEDERATED else {}
    model = make(Estimator, items=items, **setting).fit(X, y)
    similarity = similarities(model, kind)
    assert hasattr(Estimator(), f"similar_{kind}s") == (similarity is not None)
    if similarity is None:
        with pytest.raises(AttributeError, match=f"{Estimator.__name__}.* has no attribute"):
            getattr(model, f"similar_{kind}s")
        return
    ids, n = getattr(model, f"{kind}_ids_"), 3
    ask = getattr(model, f"similar_{kind}s")
    asked = [*ids[::-1], ids[0]]
    similar, scores = ask(asked, n)
    assert similar.shape == scores.shape == (len(asked), n)
    for one, others, values in zip(asked, similar, scores, strict=True):
        i = list(ids).index(one)
        by_code = {j: similarity(i, j) for j in range(len(ids)) if j != i}
        assert values == pytest.approx(sorted(by_code.values())[: -n - 1 : -1], abs=1e-6)
        assert values == pytest.approx([by_code[list(ids).index(o)] for o in others], abs=1e-6)
        assert len(set(others)) == n
    frame = ask(asked, n, as_frame=True)
    assert frame.columns.tolist() == [kind, f"similar_{kind}", "score", "rank"]
    assert frame["rank"].tolist() == [1, 2, 3] * len(asked)
    assert frame[f"similar_{kind}"].tolist() == similar.ravel().tolist()
    assert ask(asked[:2], 10**9)[0].shape == (2, len(ids) - 1)
    assert ask([])[0].shape == (0, min(10, len(ids) - 1))
    with pytest.raises(ValueError, match=f"does not know {kind}s 1, 2; "):
        ask([2, ids[0], 1])
    with pytest.raises(ValueError, match=f"'n' parameter of similar_{kind}s"):
        ask(ids[:1], 0)
    with pytest.raises(ValueError, match="not fitted"):
        getattr(Estimator(), f"similar_{kind}s")(ids[:1])


def test_vectors_of_any_size_can_be_compared(toy):
    model = make(fedrecsk.PMF).fit(*toy)
    expected = model.similar_items(model.item_ids_)
    for size in (1e-30, 1e30):
        model.item_factors_ = model.item_factors_ * np.float32(size)
        again = model.similar_items(model.item_ids_)
        np.testing.assert_array_equal(again[0], expected[0])
        assert again[1] == pytest.approx(expected[1], abs=1e-6)
        model.item_factors_ = model.item_factors_ / np.float32(size)
    model.item_factors_[2, 0] = np.nan
    with pytest.raises(ValueError, match=r"The vector of item 1006 is not finite.*diverge"):
        model.similar_items([1000])
