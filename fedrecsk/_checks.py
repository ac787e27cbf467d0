"""Checks of the input and the result of a fit: numbers that are too large, and divergence."""

from __future__ import annotations

import inspect
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._warnings import warn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

# Squares of larger numbers, summed over many rows, do not fit into single precision.
LARGEST = 1e15
# Parameters that are only compared with something, or whose large values mean "not at all".
HARMLESS = {"tol", "epsilon", "rank_exponent"}
# Scores of training rows beyond this multiple of what they estimate come of an explosion.
ABSURD = 1e4
# Parameters to lower when nothing stands out.
PACES = ("learning_rate", "item_learning_rate", "init_std")
# So many training rows are scored at most, and so many at once, to save memory.
SAMPLE = 4000
AT_ONCE = 64
# A parameter this many times its default is a suspect, and so are larger weights and ratings.
FAR = 10
HEAVY = 1e4
LARGE = 100


class Diverged(ValueError):
    """Uploads that are all infinite or NaN.

    Parameters
    ----------
    what : str
        A sentence that describes the error.
    cure : str
        What to do, as far as the caller knows.
    """

    def __init__(
        self, what: str, cure: str = "Lower the learning rate, or scale down y and sample_weight."
    ) -> None:
        super().__init__(f"{what} {cure}")
        self.what = what


def check_numbers(name: str, values: NDArray | None, cure: str) -> None:
    """Raise for numbers that single precision cannot work with.

    Parameters
    ----------
    name : str
        Name of the argument, for the error.
    values : ndarray or None
    cure : str
        What the user can do about it.

    Raises
    ------
    ValueError
        If one of them is larger than LARGEST.
    """
    if values is None:
        return
    if largest(values) > LARGEST:
        row = int(np.abs(values).argmax())
        raise ValueError(
            f"{name} is {values[row]:.3g} in row {row}, and numbers beyond {LARGEST:g} overflow in "
            f"single precision; {cure}."
        )


def largest(values: NDArray) -> float:
    """Largest absolute value, without a copy of what may be many rows; 0 of none."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


def check_rows(y: NDArray | None, sample_weight: NDArray | None) -> None:
    """Raise for ratings or weights that are too large.

    Parameters
    ----------
    y, sample_weight : ndarray of shape (n_samples,) or None

    Raises
    ------
    ValueError
        If one of them is larger than LARGEST.
    """
    check_numbers("y", y, "correct that row, or divide y by a constant")
    check_numbers("sample_weight", sample_weight, "divide sample_weight by its mean")


def check_parameters(estimator: Any) -> None:
    """Raise for parameters that are too large.

    Parameters
    ----------
    estimator : Recommender

    Raises
    ------
    ValueError
        If a number among them is larger than LARGEST.
    """
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, Real) and name not in HARMLESS and abs(value) > LARGEST:
            raise ValueError(
                f"{name}={value:g} of {type(estimator).__name__} is too large: numbers beyond "
                f"{LARGEST:g} overflow in single precision. Lower {name}."
            )


def check_fitted(estimator: Any, data: Any, attributes: Mapping) -> None:
    """Raise if a fitted model is not finite, and warn if its scores are absurdly large.

    Parameters
    ----------
    estimator : Recommender
    data : Interactions
        What it was fitted to.
    attributes : dict
        The fitted attributes.

    Raises
    ------
    ValueError
        If factors or biases are infinite or NaN.

    Warns
    -----
    UserWarning
        If the score of a training row is more than ABSURD times as large as what it estimates, or
        the training loss more than ABSURD times the square of that.
    """
    arrays = {
        name: values
        for name, values in attributes.items()
        if name.startswith(("user_", "item_"))
        and isinstance(values, np.ndarray)
        and values.dtype.kind == "f"
    }
    for name, values in arrays.items():
        finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if not finite.all():
            ids = data.user_ids if name.startswith("user_") else data.item_ids
            who = f"{name[:4]} {ids.values[finite.argmin()]!s}"
            raise ValueError(
                f"{type(estimator).__name__} diverged: {name} of {who} is infinite or NaN. "
                f"{cure(estimator, data)}"
            )
    largest, scale = _largest_score(data, arrays), _scale(estimator, data)
    if largest > ABSURD * scale:
        warn(
            f"{type(estimator).__name__} has exploded: scores of training rows reach "
            f"{largest:.3g}, but about {scale:.3g} is expected. {cure(estimator, data)}",
        )
        return
    losses = attributes.get("loss_curve_") or [0.0]
    loss = losses[attributes.get("best_round_", -1)]
    # Not scale**2, which raises an error where this is infinite.
    if loss > ABSURD * scale * scale:
        warn(
            f"{type(estimator).__name__} has exploded: its training loss is {loss:.3g}. "
            f"{cure(estimator, data)}",
        )


def cure(estimator: Any, data: Any = None) -> str:
    """What to do about a fit that has diverged, the likely culprit first.

    Parameters
    ----------
    estimator : Recommender
    data : Interactions or None
        What it was fitted to, if that is known.

    Returns
    -------
    cure : str
        A sentence.
    """
    federation = getattr(estimator, "federation", None)
    suspect = None if federation is None else federation._suspect()
    clues = [] if suspect is None else [suspect]
    if data is not None:
        clues += _large_numbers(estimator, data)
    clues += [f"Bring {one} closer to the default." for one in _suspects(estimator)]
    if clues:
        return " ".join(clues)
    names = [name for name in PACES if name in estimator.get_params(deep=False)]
    if names:
        return f"Lower {' or '.join(names)}, or scale down y and sample_weight."
    return "Scale down y and sample_weight."


def _large_numbers(estimator, data):
    """Sentences about weights and ratings that are far larger than is usual."""
    weight, size = float(data.weights.max()), largest(data.values)
    if weight > HEAVY:
        yield f"sample_weight reaches {weight:.3g}; divide it by its mean."
    if size > LARGE and estimates_y(estimator):
        yield f"y reaches {size:.3g}; divide it by a constant."


def _suspects(estimator):
    """Parameters that are far above their defaults, or penalties far below; the worst first."""
    found = []
    for name, parameter in inspect.signature(type(estimator)).parameters.items():
        value, usual = getattr(estimator, name, None), parameter.default
        if name in HARMLESS or not isinstance(value, float) or isinstance(usual, bool):
            continue
        if not isinstance(usual, Real):
            # "auto" and the like.
            if abs(value) > LARGE:
                found.append((abs(value), f"{name}={value:g} (default {usual!r})"))
            continue
        ratio = abs(value) / max(abs(usual), 1e-3)
        if name.startswith("reg") and 0 <= ratio < 1 / HEAVY and usual > 0:
            ratio = 1 / max(ratio, 1e-300)
        if ratio > FAR:
            found.append((ratio, f"{name}={value:g} (default {usual:g})"))
    return [text for _, text in sorted(found, reverse=True)]


def _largest_score(data, arrays):
    """The largest score of a training row, computed from biases and factors."""
    users, items = arrays.get("user_factors_"), arrays.get("item_factors_")
    if users is None or items is None or users.ndim != 2 or users.shape[1:] != items.shape[1:]:
        return 0.0
    rows = np.arange(0, len(data.items), 1 + len(data.items) // SAMPLE)
    owners = np.searchsorted(data.indptr, rows, side="right") - 1
    largest = 0.0
    for start in range(0, len(rows), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        who, what = owners[part], data.items[rows[part]]
        # In double precision, where products of float32 do not overflow.
        scores = np.einsum("kd,kd->k", users[who], items[what], dtype=float)
        for bias, codes in (("user_bias_", who), ("item_bias_", what)):
            if bias in arrays:
                scores += arrays[bias][codes]
        largest = max(largest, float(np.abs(scores).max()))
    return largest


def _scale(estimator, data):
    """The size of what scores estimate: that of the ratings, or 1 for preferences."""
    if not estimates_y(estimator):
        return 1.0
    return max(1.0, largest(data.values))


def estimates_y(estimator):
    """Whether scores are estimates of y: federated methods say so, other models if they rate."""
    required = estimator.__sklearn_tags__().target_tags.required
    return getattr(estimator, "_sees_ratings", required)
