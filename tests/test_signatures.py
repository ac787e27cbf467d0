"""Every estimator's constructor, and what scikit-learn makes of estimators that are dataclasses."""

import inspect
import re
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks._variants import variant
from fedrecsk import BiasOnly, LightFR, RFRec
from fedrecsk.base import Recommender
from fedrecsk.federated.rfrec import RFRecAlgorithm
from tests.listed import THINGS

ESTIMATORS = {
    name: one
    for name, one in THINGS.items()
    if isinstance(one, type) and issubclass(one, Recommender)
}
# Parameters that federated methods share.
SHARED = {
    "n_factors",
    "items",
    "n_rounds",
    "client_fraction",
    "federation",
    "n_jobs",
    "random_state",
    "early_stopping",
    "scoring",
    "validation_fraction",
    "n_iter_no_change",
    "tol",
    "warm_start",
}
every_name = pytest.mark.parametrize("name", sorted(ESTIMATORS))


def parameters_of(Estimator):
    return inspect.signature(Estimator).parameters


@every_name
def test_parameters_are_checked_and_twelve_at_most_are_a_methods_own(name):
    names = parameters_of(ESTIMATORS[name]).keys()
    assert ESTIMATORS[name]._parameter_constraints.keys() == names
    assert len(names - SHARED) <= 12, sorted(names - SHARED)


# ----------------------------------------------------------------- scikit-learn's machinery


# ------------------------------------------------------------------------------ subclasses


@dataclass(eq=False, repr=False)
class Widened(BiasOnly):
    _: KW_ONLY
    extra: float = 1.0


class Forgotten(Widened):
    more: float = 2.0


class Tweaked(Widened):
    def _check_before_fit(self):
        raise ValueError("tweaked")


class ByHand(BiasOnly):
    alpha: float

    def __init__(self, alpha=1.0, *, items=None):
        super().__init__(items=items)
        self.alpha = alpha


@dataclass(eq=False, repr=False)
class Private(BiasOnly):
    _dtype: type = np.float32


@pytest.mark.parametrize(
    "use",
    [
        lambda estimator: estimator.get_params(),
        lambda estimator: estimator.set_params(more=3.0),
        lambda estimator: estimator.fit([[1, 2]], [3.0]),
        clone,
        repr,
    ],
)
def test_a_subclass_without_the_decorator_is_named(use):
    message = "Forgotten annotates 'more', which did not become a parameter. Decorate Forgotten"
    with pytest.raises(TypeError, match=message):
        use(Forgotten())
    with pytest.raises(TypeError, match="Private annotates '_dtype', which became a parameter"):
        use(Private())


def test_other_subclasses_work():
    assert repr(Widened(extra=3.0)) == "Widened(extra=3.0)"
    assert Widened(extra=3.0).get_params() == BiasOnly().get_params() | {"extra": 3.0}
    assert clone(Tweaked(extra=3.0)).extra == 3.0
    with pytest.raises(ValueError, match="tweaked"):
        Tweaked().fit([[1, 2]], [3.0])
    assert clone(ByHand(2.0)).get_params() == {"alpha": 2.0, "items": None}
    assert ByHand(2.0, items=[2, 5]).fit([[1, 2]], [3.0]).n_items_ == 2


# --------------------------------------------------------------------------- documentation


def described(doc):
    """Defaults by name in a docstring's section of parameters, None where there is none."""
    section = re.search(r"\n *Parameters\n *-+\n(.*?)\n\n *\w+\n *---", doc, re.DOTALL).group(1)
    indentation = re.match(" *", section).group()
    found = {}
    for names, kind in re.findall(rf"^{indentation}(\w[\w, ]*) : (.*)$", section, re.MULTILINE):
        default = re.search(r"default=(.*)$", kind)
        found |= dict.fromkeys(names.split(", "), default and default.group(1))
    return found


@every_name
def test_parameters_are_described_with_their_defaults(name):
    Estimator = THINGS[name]
    found = described(Estimator.__doc__)
    for parameter, text in found.items():
        default = parameters_of(Estimator)[parameter].default
        assert text is not None, parameter
        assert eval(text) == default, parameter
    # Inherited ones may be described by the class that they come from.
    kinds = inspect.get_annotations(Estimator)
    own = {one for one, kind in kinds.items() if one[0] != "_" and "ClassVar" not in str(kind)}
    alike = re.findall(r"^((?:\w+, )+\w+)$", inspect.getdoc(Estimator), re.MULTILINE)
    assert own <= found.keys() | {one for names in alike for one in names.split(", ")}
    assert not re.search(r"^ *\{[a-z_ ]+\}$", Estimator.__doc__, re.MULTILINE), "a placeholder"
    assert max(map(len, Estimator.__doc__.splitlines())) <= 100


@every_name
def test_every_number_has_limits(name):
    """A parameter that is declared again with the type of plain numbers would lose them."""
    for parameter, constraints in ESTIMATORS[name]._parameter_constraints.items():
        assert not any(one in (Integral, Real) for one in constraints), parameter


@dataclass(eq=False, repr=False)
class Plain(RFRec):
    """Declares parameters again with plain types."""

    _: KW_ONLY
    prox: float = 2.0
    n_rounds: int = 3
    name: "KnownToTypeCheckersOnly" = None  # noqa: F821
    something: Any = 3
    INIT_STD: ClassVar[float] = 0.5


def test_parameters_that_are_declared_again_keep_their_limits(toy):
    Plain(4, name=object(), random_state=0).fit(*toy)
    for parameters in ({"prox": -1.0}, {"n_rounds": 0}):
        with pytest.raises(ValueError, match=f"'{next(iter(parameters))}' parameter of Plain"):
            Plain(4, **parameters).fit(*toy)


# ------------------------------------------------------------------------------ algorithms


def test_constants_of_a_subclass_are_its_algorithms():
    assert Plain()._algorithm().INIT_STD == 0.5
    assert RFRec()._algorithm().INIT_STD == 0.1
    # As where items are added.
    model = variant(LightFR, POSITIVE_TARGET=0.9)
    assert model._algorithm(moves_users=False).POSITIVE_TARGET == 0.9


def test_a_field_that_is_no_parameter_is_named():
    @dataclass(kw_only=True, eq=False)
    class Misspelt(RFRecAlgorithm):
        learning_rat: float

    @dataclass(eq=False, repr=False)
    class Misspelling(RFRec):
        _kind = Misspelt

    with pytest.raises(TypeError, match=r"'learning_rat', but Misspelling .* mean learning_rate"):
        Misspelling()._algorithm()


def test_an_algorithm_does_not_change():
    algorithm = RFRec()._algorithm()
    for name in ("prox", "INIT_STD", "new"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(algorithm, name, 1.0)
