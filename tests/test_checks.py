"""Numbers that are too large, and models that have diverged: refused or reported."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import with_constants
from fedrecsk import FCF, ExplicitFCF, FedRec, ImplicitLMF, LightFR
from fedrecsk.datasets import make_interactions, make_ratings
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.preprocessing import RatingScaler
from tests.listed import REPRESENTATIVES, THINGS

FAST = {"n_rounds": 10, "n_epochs": 10, "n_samples": 10, "n_burn_in": 5}
# Not the ensembles, which hand on what they are given.
NAMES = [name for name, thing in THINGS.items() if hasattr(thing, "_fit")]
SINGLE = [name for name in NAMES if "estimators" not in THINGS[name]().get_params()]

every_estimator = pytest.mark.parametrize("name", SINGLE)


@pytest.fixture(scope="module")
def ratings():
    return make_ratings(60, 40, 900, random_state=0)


def make(name, **parameters):
    """An estimator that is fitted quickly."""
    model = THINGS[name]()
    known = model.get_params(deep=False)
    few = {key: n for key, n in FAST.items() if isinstance(known.get(key), int)}
    seed = {"random_state": 0} if "random_state" in known else {}
    return model.set_params(**few | seed | parameters)


def with_one(values, number):
    """A copy with this number in row 3."""
    changed = np.array(values, dtype=float)
    changed[3] = number
    return changed


@pytest.mark.parametrize("name", ["BiasOnly", "Popularity"])
def test_huge_ratings_are_named_without_a_warning_before(name, ratings):
    X, y = ratings
    huge = 1e308 * (-1.0) ** np.arange(len(y))
    model = make(name).fit(X, y)
    calls = [clone(model).fit]
    if name == "BiasOnly":
        weights = with_one(np.ones(len(y)), 1e16)
        calls += [
            lambda X, huge: model.fold_in(X + np.array([1000, 0, 0]), huge),
            model.score,
            lambda X, _: model.score(X, y, weights),
        ]
    with warnings.catch_warnings(action="error"):
        for call in calls:
            with pytest.raises(ValueError, match=r"in row \d, and numbers beyond 1e\+15 overflow"):
                call(X, huge)
        scores = evaluate_ranking(make("Popularity").fit(X[9:]), X[:9], huge[:9], k=1)
        assert np.isfinite(list(scores.values())).all()
        with pytest.raises(ValueError, match=r"from -1e\+308 to 1e\+308, too far"):
            RatingScaler().fit(huge.reshape(-1, 1))


@pytest.mark.parametrize("name", ["RFRec", "EASE"])
def test_ratings_and_weights_that_overflow_are_named(name, ratings):
    X, y = ratings
    with pytest.raises(ValueError, match=r"y is .* in row 3.* divide y by a constant"):
        make(name).fit(X, with_one(y, -1e16))
    with pytest.raises(ValueError, match=r"sample_weight is .* divide sample_weight by its mean"):
        make(name).fit(X, y, sample_weight=with_one(np.ones(len(y)), 1e20))
    with pytest.raises(ValueError, match="Input sample_weight contains"):
        make(name).fit(X, y, sample_weight=with_one(y, np.nan))
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        make(name).fit(X, y, sample_weight=with_one(y, -1.0))


@every_estimator
def test_parameters_that_overflow_are_named(name, ratings):
    for parameter, value in THINGS[name]().get_params(deep=False).items():
        bounds = [c for c in THINGS[name]._parameter_constraints[parameter] if hasattr(c, "right")]
        if not isinstance(value, float) or all(c.right is not None for c in bounds):
            continue
        for number in (np.inf, np.nan):
            with pytest.raises(ValueError, match=f"'{parameter}' parameter"):
                make(name, **{parameter: number}).fit(*ratings)
        model = make(name, **{parameter: 1e20})
        if parameter in ("tol", "epsilon"):
            assert np.isfinite(model.fit(*ratings).predict(ratings[0])).all()
        else:
            with pytest.raises(ValueError, match=rf"{parameter}=1e\+20 of {name} is too large"):
                model.fit(*ratings)


CULPRITS = [
    (FCF(alpha=1e12), {}, r"FCF diverged: user_factors_ of user \d+ .* Bring alpha=1e\+12"),
    (ExplicitFCF(learning_rate=1e9), {}, r"diverged.* Bring learning_rate=1e\+09 \(default 0.03\)"),
    (FedRec(reg=1e10), {}, r"clients diverged: all \d+ uploads .* Bring reg=1e\+10"),
    (FCF(), {"sample_weight": 1e10}, r"diverged.* sample_weight reaches 1e\+10; divide it"),
    (LightFR(alpha=1e14), {}, r"exact sums of LightFR .* Bring alpha=1e\+14"),
]


@pytest.mark.parametrize(("model", "fit", "message"), CULPRITS)
def test_a_fit_that_diverges_names_the_culprit(model, fit, message, ratings):
    X, y = ratings
    fit = {name: np.full(len(y), number) for name, number in fit.items()}
    with pytest.raises(ValueError, match=message):
        clone(model).set_params(random_state=0, n_rounds=20).fit(X, y, **fit)


@pytest.mark.parametrize(
    "model", [with_constants(FedRec, INIT_RANGE=1e9)(), ImplicitLMF(learning_rate=1e5, n_epochs=5)]
)
def test_scores_that_diverge_are_reported(model, ratings):
    with pytest.warns(
        UserWarning, match=r"diverged: .* (closer to the default|Lower learning_rate)"
    ):
        clone(model).set_params(random_state=0).fit(*ratings)


# On few rows, and representatives on more.
SHAPES = [(name, (40, 30, 100)) for name in SINGLE]
SHAPES += [(name, (150, 120, 5000)) for name in SINGLE if name in REPRESENTATIVES]


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_defaults_neither_diverge_nor_fail(name, shape):
    X, y = make_ratings(*shape, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("default", message="y looks like ratings")
        model = make(name).fit(X, y)
        assert np.isfinite(model.predict(X)).all()
        if not model.__sklearn_tags__().target_tags.required:
            make(name).fit(make_interactions(*shape, random_state=1))
