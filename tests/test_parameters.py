"""Numbers of any type are parameters, and small types do not overflow."""

import inspect
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone

import fedrecsk
from fedrecsk import (
    BiasOnly,
    Federation,
    FedMF,
    LocALS,
    Popularity,
    aggregation,
    attacks,
    compression,
    model_selection,
    preprocessing,
    privacy,
)
from fedrecsk._utils.constraints import AtLeast1
from fedrecsk._utils.parameters import PlainParameters, check_arguments
from fedrecsk.datasets import make_interactions, make_ratings
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout
from tests.conftest import make_toy

MODULES = [fedrecsk, aggregation, attacks, compression, model_selection, preprocessing, privacy]
NO_NUMBERS = {"IdEncoder"}
CLASSES = [
    getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if inspect.isclass(getattr(module, name))
    and issubclass(getattr(module, name), BaseEstimator)
    and "__init__" in vars(getattr(module, name))
]


def test_all_parameters_are_plain():
    for kind in CLASSES:
        names = list(inspect.signature(kind).parameters)
        assert issubclass(kind, PlainParameters) or not names or kind.__name__ in NO_NUMBERS, kind


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.int8(20), 20),
        (np.float16(0.5), 0.5),
        (np.longdouble(2), 2.0),
        (Fraction(1, 4), 0.25),
        (np.True_, True),
        ((np.int8(1), np.float32(5)), (1, 5.0)),
        (None, None),
    ],
)
def test_numbers_become_plain(given, kept):
    for model in (FedMF(n_factors=given), FedMF().set_params(n_factors=given)):
        assert model.n_factors == kept
        assert type(model.n_factors) is type(kept)
        if type(kept) is tuple:
            assert [*map(type, model.n_factors)] == [*map(type, kept)]
        assert clone(model).n_factors == kept


def test_small_types_of_splitters_and_generators():
    X = make_toy()[0]
    sizes = np.float16(0.25), 0.25
    train, usual = (next(UserHoldout(size, random_state=0).split(X))[0] for size in sizes)
    np.testing.assert_array_equal(train, usual)
    size = np.int8(100)
    np.testing.assert_array_equal(
        make_ratings(size, size, size, random_state=0)[0],
        make_ratings(100, 100, 100, random_state=0)[0],
    )
    np.testing.assert_array_equal(
        make_interactions(size, size, size, random_state=0),
        make_interactions(100, 100, 100, random_state=0),
    )


@pytest.mark.parametrize(
    ("Class", "wrong", "hint"),
    [
        (LocALS, "n_factor", "LocALS has no parameter 'n_factor'; did you mean n_factors"),
        (Federation, "dropot", "Federation has no parameter 'dropot'; did you mean dropout"),
        (BiasOnly, "init", "BiasOnly has no parameter 'init'; it has "),
        (FedMF, "init", "set warm_start=True and fit again"),
    ],
)
def test_an_unknown_parameter_is_named_with_those_like_it(Class, wrong, hint):
    with pytest.raises(TypeError, match=hint):
        Class(**{wrong: 1})
    if wrong != "init":
        with pytest.raises(ValueError, match=f"Invalid parameter '{wrong}' .*; did you mean"):
            Class().set_params(**{wrong: 1})
    # What reads signatures sees those of the constructors.
    seen, own = inspect.signature(Class), inspect.signature(Class.__init__)
    assert list(seen.parameters) == list(own.parameters)[1:]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.recommend([1], k=5), "'k'; did you mean n_recommendations"),
        (lambda model: model.similar_items([1], k=5), r"'k'; did you mean n\?"),
        (lambda model: model.fold_in([[1, 2]], replaces=True), "did you mean replace"),
        (lambda model: model.fit([[1, 2]], sample_weights=[1]), "did you mean sample_weight"),
        (lambda model: evaluate_ranking(model, [[1, 2]], n=5), r"did you mean k\?"),
        (lambda model: model.predict([[1, 2]], zzz=1), "it takes X, return_std"),
    ],
)
def test_an_unknown_argument_is_named_with_those_like_it(call, message):
    with pytest.raises(TypeError, match=message):
        call(LocALS(4))


@pytest.mark.parametrize(
    ("model", "name", "message"),
    [
        (BiasOnly(), "partial_fit", "has no partial_fit; call fit with all rows"),
        (Popularity(), "similar_items", "no vectors of items to compare; use ItemKNN"),
        (LocALS(), "partial_fit", "set warm_start=True before"),
        (LocALS(), "nonsense", "has no attribute 'nonsense'"),
    ],
)
def test_a_method_that_a_model_lacks(model, name, message):
    assert not hasattr(model, name)
    with pytest.raises(AttributeError) as caught:
        getattr(model, name)
    assert message in f"{caught.value} {caught.value.__cause__}"


@check_arguments
def take(n: AtLeast1, *, kind: Literal["a", "b"] | None = None, other: object = 0) -> int:
    """Return n."""
    return n


def test_arguments_of_functions_are_checked_by_their_types():
    assert take(np.int8(3), kind="b", other=print) == 3
    with pytest.raises(ValueError, match=r"'n' parameter of take must be an int in the range \[1"):
        take(0)
    with pytest.raises(
        ValueError, match=r"'kind' parameter of take must be a str among .* or None"
    ):
        take(1, kind="c")
