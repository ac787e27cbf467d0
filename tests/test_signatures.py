"""Every estimator's constructor, and what scikit-learn makes of estimators that are dataclasses."""

import inspect
import re
import subprocess
import sys
from dataclasses import KW_ONLY, dataclass

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import BiasedMF, BiasOnly
from fedrecsk._docs import TEXTS, documented
from fedrecsk.base import RatingMixin, Recommender
from tests.listed import THINGS

# Keyword-only parameters of every federated method.
SHARED = {
    "client_fraction": 1.0,
    "early_stopping": False,
    "validation_fraction": 0.1,
    "n_iter_no_change": 10,
    "tol": 1e-4,
    "warm_start": False,
    "n_jobs": None,
    "random_state": None,
    "federation": None,
    "items": None,
}

# Positional parameters in their order, and keyword-only ones in any.
CODES = {
    "n_iterations": 15,
    "balance_user": 2e-5,
    "balance_item": 1e-4,
    "init": "relaxed",
    "reg": 0.1,
    "n_sweeps": 5,
    "rating_scale": None,
    "random_state": None,
    "items": None,
}

SIGNATURES = {
    "BayesianSVDpp": (
        {"n_factors": 20},
        {
            "n_samples": 50,
            "n_burn_in": 40,
            "thinning": 4,
            "kernel_rank": 128,
            "noise_df": 10.0,
            "warm_start": False,
            "n_jobs": None,
            "random_state": None,
            "items": None,
        },
    ),
    "BiasOnly": (
        {},
        {
            "reg_user": 15.0,
            "reg_item": 10.0,
            "n_sweeps": 10,
            "items": None,
        },
    ),
    "BiasedMF": (
        {"n_factors": 20},
        {
            "n_epochs": 60,
            "learning_rate": 0.02,
            "learning_rate_decay": 0.96,
            "reg": 0.05,
            "shrinkage": 3.0,
            "reg_bias": 0.01,
            "shrinkage_bias": 5.0,
            "init_std": 0.03,
            "early_stopping": False,
            "validation_fraction": 0.1,
            "n_iter_no_change": 10,
            "tol": 1e-4,
            "warm_start": False,
            "random_state": None,
            "items": None,
        },
    ),
    "CoLR": (
        {"rank": 4},
        SHARED
        | {
            "n_factors": 64,
            "n_rounds": 200,
            "loss": "bce",
            "n_negatives": 4,
            "local_epochs": 2,
            "batch_size": 64,
            "learning_rate": 0.5,
            "rank_exponent": 0.75,
            "weight_decay": 0.002,
            "aggregation": "visits",
            "shrinkage": 0.5,
            "averaging": True,
            "init_std": 0.03,
            "client_fraction": 0.2,
        },
    ),
    "DCF": ({"n_bits": 64}, CODES),
    "DDL": (
        {"n_bits": 64},
        CODES
        | {
            "item_features": None,
            "content_weight": 1e-3,
            "hidden_layers": (200,),
            "n_pretraining_epochs": 10,
            "learning_rate": 1e-3,
            "n_tuning_epochs": 3,
        },
    ),
    "EASE": ({"reg": 1000.0}, {"items": None}),
    "FedEASE": (
        {"reg": 1000.0},
        SHARED | {"n_rounds": 1, "upload": "auto", "download": "auto"},
    ),
    "FedEB": (
        {"n_factors": 20},
        SHARED
        | {
            "n_rounds": "auto",
            "implicit": True,
            "sketch_size": 128,
            "user_noise": True,
            "posterior": "variational",
            "learning_rate": "auto",
            "init_std": 0.1,
            "upload": "own",
            "rating_scale": None,
        },
    ),
    "ExplicitFCF": (
        {"n_factors": 20},
        SHARED
        | {
            "n_rounds": 100,
            "reg_user": 1.3,
            "reg_item": 1.3,
            "reg_bias": 3.0,
            "reg_power": 0.5,
            "learning_rate": 0.03,
            "optimizer": "adam",
            "beta_1": 0.1,
            "beta_2": 0.99,
            "epsilon": 1e-8,
            "biases": True,
            "upload": "own",
            "rating_scale": None,
            "init_std": 0.1,
        },
    ),
    "FCF": (
        {"n_factors": 20},
        SHARED
        | {
            "n_rounds": 60,
            "alpha": 1.0,
            "reg_user": 30.0,
            "reg_item": 10.0,
            "learning_rate": 0.05,
            "optimizer": "adam",
            "beta_1": 0.1,
            "beta_2": 0.99,
            "epsilon": 1e-8,
            "upload": "all",
            "init_std": 0.03,
        },
    ),
    "FedFast": (
        {"n_factors": 64},
        SHARED
        | {
            "n_rounds": 200,
            "loss": "bce",
            "n_negatives": 4,
            "local_epochs": 2,
            "batch_size": 64,
            "learning_rate": 0.5,
            "weight_decay": 0.002,
            "init_std": 0.03,
            "client_fraction": 0.2,
            "sampling": "clusters",
            "aggregation": "active",
            "discount": 0.1,
            "n_clusters": 10,
            "cluster_every": 10,
            "final_epochs": 0,
        },
    ),
    "FedMF": (
        {"n_factors": 64},
        SHARED
        | {
            "n_rounds": 200,
            "loss": "bce",
            "n_negatives": 4,
            "local_epochs": 2,
            "batch_size": 64,
            "learning_rate": 0.5,
            "weight_decay": 0.002,
            "aggregation": "visits",
            "server_learning_rate": "auto",
            "shrinkage": 0.5,
            "averaging": True,
            "init_std": 0.03,
            "client_fraction": 0.2,
        },
    ),
    "PrivRec": (
        {"n_factors": 64},
        SHARED
        | {
            "n_rounds": 50,
            "loss": "bce",
            "n_negatives": 4,
            "local_epochs": 2,
            "batch_size": 64,
            "learning_rate": 0.5,
            "weight_decay": 0.002,
            "aggregation": "reptile",
            "server_learning_rate": "auto",
            "shrinkage": 0.5,
            "averaging": True,
            "init_std": 0.03,
            "client_fraction": 0.6,
        },
    ),
    "FedSpectral": (
        {"n_factors": 128},
        SHARED | {"n_rounds": 1, "alpha": 4.0, "reg_user": 30.0, "upload": "auto"},
    ),
    "FedRec": (
        {"n_factors": 20},
        SHARED
        | {
            "n_rounds": "auto",
            "n_virtual": 3,
            "filling": "hybrid",
            "virtual_items": "fixed",
            "hybrid_start": 10,
            "hybrid_steps": 5,
            "user_steps": 5,
            "learning_rate": 0.8,
            "learning_rate_decay": 0.95,
            "reg": "auto",
            "biases": True,
            "upload": "chosen",
            "rating_scale": None,
            "init_range": 0.05,
            "client_fraction": 0.05,
        },
    ),
    "GlobSGD": (
        {"n_factors": 20},
        SHARED
        | {
            "n_rounds": 30,
            "alpha": 1.0,
            "reg_user": 30.0,
            "reg_item": 10.0,
            "learning_rate": "auto",
            "aggregation": "full",
            "preconditioner": False,
            "upload": "own",
            "init_std": 0.03,
        },
    ),
    "ImplicitALS": (
        {"n_factors": 64},
        {
            "regularization": 10.0,
            "alpha": 1.0,
            "n_iterations": 15,
            "item_bias": True,
            "solver": "cg",
            "n_jobs": None,
            "random_state": None,
            "items": None,
        },
    ),
    "ImplicitBPR": (
        {"n_factors": 64},
        {
            "learning_rate": 0.01,
            "regularization": 0.01,
            "n_iterations": 100,
            "verify_negative_samples": True,
            "n_jobs": None,
            "random_state": None,
            "items": None,
        },
    ),
    "ImplicitLMF": (
        {"n_factors": 30},
        {
            "learning_rate": 1.0,
            "regularization": 0.6,
            "n_iterations": 30,
            "neg_prop": 30,
            "n_jobs": None,
            "random_state": None,
            "items": None,
        },
    ),
    "LightFR": (
        {"n_bits": 64},
        SHARED
        | {
            "n_rounds": 50,
            "aggregation": "full",
            "user_bits": 4,
            "targets": "implicit",
            "positive_target": 0.65,
            "negative_target": 0.5,
            "alpha": 4.0,
            "n_negatives": 4,
            "reg_user": 0.0,
            "reg_item": 0.0,
            "balance": "code",
            "shrinkage": 1000.0,
            "prior": "crowd",
            "sparse_shrinkage": 12000.0,
            "memory": 4,
            "n_sweeps": 3,
            "init": "random",
            "train_items": True,
            "upload": "visited",
            "rating_scale": None,
            "client_fraction": 0.6,
        },
    ),
    "LocALS": (
        {"n_factors": 20},
        SHARED
        | {
            "n_rounds": 10,
            "alpha": 1.0,
            "reg_user": 30.0,
            "reg_item": 10.0,
            "mu": 10.0,
            "local_epochs": 1,
            "solver": "exact",
            "aggregation": "full",
            "preconditioner": "auto",
            "server_learning_rate": "auto",
            "upload": "own",
            "init_std": 0.03,
        },
    ),
    "LocSGD": (
        {"n_factors": 20},
        SHARED
        | {
            "n_rounds": 30,
            "alpha": 1.0,
            "reg_user": 10.0,
            "reg_item": 0.0,
            "mu": 0.0,
            "local_epochs": 1,
            "n_steps": 5,
            "learning_rate": 0.3,
            "aggregation": "all",
            "preconditioner": "auto",
            "server_learning_rate": "auto",
            "upload": "own",
            "init_std": 0.03,
        },
    ),
    "PMF": (
        {"n_factors": 20},
        {
            "n_epochs": 60,
            "learning_rate": 0.02,
            "learning_rate_decay": 0.96,
            "reg": 0.05,
            "shrinkage": 3.0,
            "few_ratings": 15.0,
            "prior_mean": 1.0,
            "center": True,
            "init_std": 0.03,
            "early_stopping": False,
            "validation_fraction": 0.1,
            "n_iter_no_change": 10,
            "tol": 1e-4,
            "warm_start": False,
            "random_state": None,
            "items": None,
        },
    ),
    "Popularity": ({}, {"items": None}),
    "PrivFedEB": (
        {"n_factors": "auto"},
        SHARED | {"n_rounds": "auto", "center": 0.625, "init_std": 0.025, "rating_scale": None},
    ),
    "RFRec": (
        {"n_factors": 19},
        SHARED
        | {
            "n_rounds": 100,
            "coupling": 0.1,
            "reg_user": 0.04,
            "reg_item": 0.04,
            "reg_bias": 0.07,
            "reg_power": 0.5,
            "few_ratings": 15.0,
            "learning_rate": 0.1,
            "optimizer": "adam",
            "beta_1": 0.9,
            "beta_2": 0.9,
            "epsilon": 1e-8,
            "link": "sigmoid",
            "biases": True,
            "aggregation": "all",
            "predict_with": "global",
            "rating_scale": None,
            "init_std": 0.1,
        },
    ),
    "RFRecF": (
        {"n_factors": 19},
        SHARED
        | {
            "n_rounds": 300,
            "aggregation_probability": 0.3,
            "coupling": 5.0,
            "reg_user": 0.04,
            "reg_item": 0.04,
            "reg_bias": 0.07,
            "reg_power": 0.5,
            "few_ratings": 15.0,
            "learning_rate": 0.084,
            "optimizer": "adam",
            "beta_1": 0.5,
            "beta_2": 0.999,
            "epsilon": 0.02,
            "link": "sigmoid",
            "biases": True,
            "aggregation": "holders",
            "predict_with": "global",
            "rating_scale": None,
            "init_std": 0.1,
        },
    ),
    "SCoLR": (
        {"rank": 16},
        SHARED
        | {
            "local_rank": "uniform",
            "n_factors": 64,
            "n_rounds": 200,
            "loss": "bce",
            "n_negatives": 4,
            "local_epochs": 2,
            "batch_size": 64,
            "learning_rate": 0.5,
            "rank_exponent": 0.75,
            "weight_decay": 0.002,
            "aggregation": "visits",
            "shrinkage": 0.5,
            "averaging": True,
            "init_std": 0.03,
            "client_fraction": 0.2,
        },
    ),
    "SemiDFEGL": (
        {"n_factors": 20},
        SHARED
        | {
            "n_layers": 2,
            "n_groups": 10,
            "n_common": 20,
            "fuzziness": 1.2,
            "cluster_every": 10,
            "n_rounds": 150,
            "reg_user": 1.3,
            "reg_item": 1.3,
            "reg_bias": 3.0,
            "reg_power": 0.5,
            "learning_rate": 0.02,
            "user_learning_rate": 0.02,
            "optimizer": "adam",
            "beta_1": 0.9,
            "beta_2": 0.99,
            "epsilon": 1e-8,
            "biases": True,
            "rating_scale": None,
            "init_std": 0.1,
        },
    ),
    "SVDpp": (
        {"n_factors": 20},
        {
            "n_epochs": 40,
            "learning_rate": 0.02,
            "learning_rate_decay": 0.95,
            "reg": 0.04,
            "shrinkage": 5.0,
            "reg_bias": 0.01,
            "shrinkage_bias": 5.0,
            "reg_implicit": 0.003,
            "init_std": 0.03,
            "early_stopping": False,
            "validation_fraction": 0.1,
            "n_iter_no_change": 10,
            "tol": 1e-4,
            "warm_start": False,
            "random_state": None,
            "items": None,
        },
    ),
    "NCF": (
        {"architecture": "neumf", "n_factors": 8},
        {
            "items": None,
            "n_epochs": 12,
            "learning_rate": 0.003,
            "learning_rate_decay": 0.8,
            "early_stopping": False,
            "validation_fraction": 0.1,
            "n_iter_no_change": 10,
            "tol": 0.0001,
            "warm_start": False,
            "random_state": None,
            "layers": (64, 32, 16, 8),
            "loss": "bce",
            "n_negatives": 4,
            "batch_size": 256,
            "reg": 0.0003,
            "init_std": 0.1,
        },
    ),
    "FedNCF": (
        {"n_factors": 12},
        {
            "items": None,
            "n_rounds": 400,
            "client_fraction": 1.0,
            "early_stopping": False,
            "validation_fraction": 0.1,
            "n_iter_no_change": 10,
            "tol": 0.0001,
            "warm_start": False,
            "n_jobs": None,
            "random_state": None,
            "federation": None,
            "loss": "bce",
            "n_negatives": 4,
            "optimizer": "adam",
            "learning_rate": 0.01,
            "local_epochs": 2,
            "batch_size": 256,
            "aggregation": "visits",
            "device": "cpu",
            "layers": (48, 24, 12, 6),
        },
    ),
    "FederatedModule": (
        {"module": None},
        {
            "items": None,
            "n_rounds": 100,
            "client_fraction": 1.0,
            "early_stopping": False,
            "validation_fraction": 0.1,
            "n_iter_no_change": 10,
            "tol": 0.0001,
            "warm_start": False,
            "n_jobs": None,
            "random_state": None,
            "federation": None,
            "loss": "bce",
            "n_negatives": 4,
            "optimizer": "adam",
            "learning_rate": 0.01,
            "local_epochs": 1,
            "batch_size": 256,
            "aggregation": "visits",
            "device": "cpu",
            "private": ("user*",),
        },
    ),
    "MetaMF": (
        {"n_factors": 32},
        {
            "items": None,
            "n_rounds": 750,
            "client_fraction": 0.01,
            "early_stopping": False,
            "validation_fraction": 0.1,
            "n_iter_no_change": 10,
            "tol": 0.0001,
            "warm_start": False,
            "n_jobs": None,
            "random_state": None,
            "federation": None,
            "rank": 8,
            "scorer_size": 8,
            "code_size": 32,
            "memory_size": 128,
            "hidden_size": 128,
            "learning_rate": 0.002,
            "beta_1": 0.9,
            "beta_2": 0.999,
            "epsilon": 1e-08,
            "weight_decay": 0.0,
            "max_norm": 5.0,
            "init_common": 1.0,
            "init_std": 0.03,
            "level": True,
            "rating_scale": None,
        },
    ),
    "PFedRec": (
        {"n_factors": 32},
        {
            "items": None,
            "n_rounds": 100,
            "client_fraction": 1.0,
            "early_stopping": False,
            "validation_fraction": 0.1,
            "n_iter_no_change": 10,
            "tol": 0.0001,
            "warm_start": False,
            "n_jobs": None,
            "random_state": None,
            "federation": None,
            "loss": "bce",
            "n_negatives": 4,
            "optimizer": "sgd",
            "learning_rate": 0.1,
            "local_epochs": 1,
            "batch_size": 256,
            "aggregation": "mean",
            "device": "cpu",
            "item_learning_rate": "auto",
            "personal_items": False,
        },
    ),
}

every_name = pytest.mark.parametrize("name", sorted(SIGNATURES.keys() & THINGS.keys()))


def parameters_of(Estimator):
    return inspect.signature(Estimator).parameters


def defaults(parameters, kind):
    return {p.name: p.default for p in parameters.values() if p.kind == kind}


def test_the_table_is_complete():
    estimators = [e for e in THINGS.values() if isinstance(e, type) and issubclass(e, Recommender)]
    assert {estimator.__name__ for estimator in estimators} == SIGNATURES.keys() & THINGS.keys()


@every_name
def test_the_constructor_is_pinned(name):
    parameters, (positional, keywords) = parameters_of(THINGS[name]), SIGNATURES[name]
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    assert {p.kind for p in parameters.values()} <= set(kinds)
    found = [defaults(parameters, kind) for kind in kinds]
    # As text, because 1 == 1.0 == True.
    assert repr(list(found[0].items())) == repr(list(positional.items()))
    assert {k: repr(v) for k, v in found[1].items()} == {k: repr(v) for k, v in keywords.items()}


@every_name
def test_every_parameter_is_checked(name):
    Estimator = THINGS[name]
    assert Estimator._parameter_constraints.keys() == parameters_of(Estimator).keys()


# ----------------------------------------------------------------- scikit-learn's machinery


@every_name
def test_parameters_are_kept_cloned_and_shown(name):
    Estimator = THINGS[name]
    positional, keywords = SIGNATURES[name]
    estimator = Estimator(*positional.values(), **keywords | {"items": np.arange(3)})
    params = estimator.get_params(deep=False)
    assert params.keys() == (positional | keywords).keys()
    copied = clone(estimator)
    np.testing.assert_array_equal(copied.items, np.arange(3))
    assert copied.items is not estimator.items
    assert estimator.set_params(items=None) is estimator
    assert estimator.items is None
    assert repr(estimator) == f"{name}()"
    assert repr(copied) == f"{name}(items=array([0, 1, 2]))"
    assert "items" in copied._repr_html_()
    assert estimator != clone(estimator)
    assert hash(estimator) == hash(estimator)


@every_name
def test_an_unknown_parameter_is_an_error(name):
    Estimator = THINGS[name]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        Estimator(nonsense=1)
    with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
        Estimator().set_params(nonsense=1)


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


def test_a_base_without_the_decorator_is_named():
    @dataclass(eq=False, repr=False)
    class Heir(Forgotten):
        pass

    with pytest.raises(TypeError, match="Heir annotates 'more', which did not become a parameter"):
        Heir().get_params()


def test_a_private_name_is_no_parameter():
    with pytest.raises(TypeError, match="Private annotates '_dtype', which became a parameter"):
        Private().get_params()


def test_other_subclasses_work():
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
    own = {one for one in inspect.get_annotations(Estimator) if not one.startswith("_")}
    assert own <= found.keys()


@every_name
def test_no_placeholder_is_left(name):
    doc = THINGS[name].__doc__
    assert not re.search(r"^ *\{[a-z_ ]+\}$", doc, re.MULTILINE)
    assert max(map(len, doc.splitlines())) <= 100


def test_shared_texts_are_written_out_in_place():
    @documented
    @dataclass(eq=False, repr=False)
    class Method(RatingMixin, Recommender):
        """One line.

        Parameters
        ----------
        {tol}
            In squared ratings.
        kind : {"a", "b"}, default="a"
            One of
            {"a", "b"}.
        """

        _: KW_ONLY
        tol: float = 1e-4

    assert inspect.cleandoc(Method.__doc__).splitlines()[4:] == [
        "tol : float, default=1e-4",
        "    Smallest decrease of the validation loss that counts as an improvement.",
        "    In squared ratings.",
        'kind : {"a", "b"}, default="a"',
        "    One of",
        '    {"a", "b"}.',
    ]


def test_shared_texts_must_exist():
    class Typo:
        """{itmes}"""

    class Without:
        """{tol}"""

    with pytest.raises(KeyError, match="itmes"):
        documented(Typo)
    with pytest.raises(AttributeError, match="tol"):
        documented(Without)


def test_shared_texts_fit_the_page():
    for name, text in TEXTS.items():
        head, *body = text.strip().splitlines()
        assert head.startswith(f"{name.split()[-1]} : ")
        assert body
        assert all(line.startswith("    ") for line in body)
        assert max(map(len, body)) <= 96


def test_without_docstrings_everything_works():
    code = "from fedrecsk import BiasedMF; print(BiasedMF(3, items=[1, 2]))"
    result = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True)
    assert result.stdout == "BiasedMF(items=[1, 2], n_factors=3)\n", result.stderr
    assert BiasedMF.__doc__
