"""Checks of the input and the result of a fit, and the errors of fits that cannot go on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecsk._utils.user_warnings import warn

# Squares of larger numbers, summed over many rows, do not fit into single precision.
LARGEST = 1e15
# Parameters that are only compared with something, or whose large values mean "not at all".
HARMLESS = {"tol", "epsilon"}
# Scores of training rows beyond this multiple of what they estimate come of an explosion.
ABSURD = 1e4
# Parameters to lower when nothing stands out.
PACES = ("learning_rate", "item_learning_rate")
# Number of training rows that are scored, at most.
SAMPLE = 4000
# A parameter this many times its default is a suspect, and so are larger weights and ratings.
FAR = 10
HEAVY = 1e4
LARGE = 100


class Diverged(ValueError):
    """Uploads that are all infinite or NaN; `what` describes the error."""

    def __init__(
        self, what: str, hint: str = "Lower the learning rate, or scale down y and sample_weight."
    ) -> None:
        super().__init__(f"{what} {hint}")
        self.what = what


def largest(values: NDArray) -> float:
    """Return the largest absolute value, 0 of none, without a copy of what may be many rows."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


def check_resolution(values: NDArray, name: str, cure: str) -> None:
    """Raise if floats are so large that neighbouring integers are equal."""
    n_bits = min(np.finfo(values.dtype).nmant, np.finfo(np.float64).nmant) + 1
    if largest(values) >= 2**n_bits:
        raise ValueError(
            f"{name} are floats of 2**{n_bits} or more, which as {values.dtype} stand for several "
            f"integers each; {cure}."
        )


def check_rows(
    y: NDArray | None, sample_weight: NDArray | None, limits: tuple[float, float] | None = None
) -> None:
    """Raise if a rating or a weight is too large for single precision, or a rating off limits."""
    for name, values, hint in (
        ("y", y, "correct that row, or divide y by a constant"),
        ("sample_weight", sample_weight, "divide sample_weight by its mean"),
    ):
        if values is not None and largest(values) > LARGEST:
            row = int(np.abs(values).argmax())
            raise ValueError(
                f"{name} is {values[row]:.3g} in row {row}, and numbers beyond {LARGEST:g} "
                f"overflow in single precision; {hint}."
            )
    if y is not None and limits is not None:
        check_ratings(y if sample_weight is None else y[sample_weight > 0], limits)


def check_parameters(estimator: Any) -> None:
    """Raise if a numeric parameter is too large for single precision."""
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, Real) and name not in HARMLESS and abs(value) > LARGEST:
            raise ValueError(
                f"{name}={value:g} of {type(estimator).__name__} is too large: numbers beyond "
                f"{LARGEST:g} overflow in single precision. Lower {name}."
            )


def check_fitted(estimator: Any, data: Any, attributes: Mapping) -> None:
    """Raise if the model is not finite; warn if a score or the loss is absurdly large."""
    arrays = _finite(estimator, data, attributes)
    score, scale = _largest_score(data, arrays), _scale(estimator, data)
    losses = attributes.get("loss_curve_") or [0.0]
    loss = losses[attributes.get("best_round_", -1)]
    # Not scale**2, which raises an error where this is infinite.
    if score > ABSURD * scale:
        what = f"scores of training rows reach {score:.3g}, but about {scale:.3g} is expected"
    elif loss > ABSURD * scale * scale:
        what = f"its training loss is {loss:.3g}"
    else:
        return
    warn(f"{type(estimator).__name__} diverged: {what}. {hint(estimator, data)}")


def check_items(estimator: Any, data: Any, attributes: Mapping) -> None:
    """Raise or warn as `check_fitted` does, where a deployed fit's server has no users."""
    arrays = _finite(estimator, data, attributes)
    names = [name for name in ("item_factors_", "item_bias_") if name in arrays]
    size = max((largest(arrays[name]) for name in names), default=0)
    scale = max(1.0, *map(abs, getattr(estimator, "rating_scale", None) or (1, 1)))
    if size > ABSURD * scale:
        warn(
            f"{type(estimator).__name__} diverged: item factors or biases reach {size:.3g}, but "
            f"scores of about {scale:.3g} are expected. {hint(estimator)}"
        )


def _finite(estimator, data, attributes):
    """Return the arrays of users and items; raise if one is infinite or NaN."""
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
                f"{hint(estimator, data if len(data.user_ids) else None)}"
            )
    return arrays


def check_users(estimator: Any, block: Any, client_ids: NDArray, attributes: Any) -> None:
    """Raise if an attribute of the users of a block's clients is infinite or NaN."""
    for name, rows in attributes.items():
        if not isinstance(rows, np.ndarray) or rows.dtype.kind != "f":
            continue
        broken = ~np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))
        if broken.any():
            (client, *_) = np.flatnonzero(block.clients_of(broken))
            raise ValueError(
                f"Client {client_ids[client]!s} diverged while fitting its users to the model: its "
                f"{name} are infinite or NaN. {hint(estimator)}"
            )


def hint(estimator: Any, data: Any = None) -> str:
    """Return sentences about the likely causes of divergence, the likeliest first."""
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
    """Yield sentences about weights and ratings that are far larger than usual."""
    weight, size = data.heaviest(), max(map(abs, data.value_range()))
    if weight > HEAVY:
        yield f"sample_weight reaches {weight:.3g}; divide it by its mean."
    if size > LARGE and estimates_y(estimator):
        yield f"y reaches {size:.3g}; divide it by a constant."


def _suspects(estimator):
    """Return parameters far above their defaults, or penalties far below; the worst first."""
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
    """Return the largest score of a training row, computed from biases and factors."""
    users, items = arrays.get("user_factors_"), arrays.get("item_factors_")
    if users is None or items is None or users.ndim != 2 or users.shape[1:] != items.shape[1:]:
        return 0.0
    rows = np.arange(0, len(data.items), 1 + len(data.items) // SAMPLE)
    who, what = np.searchsorted(data.indptr, rows, side="right") - 1, data.items[rows]
    # In double precision, where products of float32 do not overflow.
    scores = np.einsum("kd,kd->k", users[who], items[what], dtype=float)
    for bias, codes in (("user_bias_", who), ("item_bias_", what)):
        if bias in arrays:
            scores += arrays[bias][codes]
    return largest(scores)


def _scale(estimator, data):
    """Return the size of what scores estimate: that of the ratings, or 1 for preferences."""
    if not estimates_y(estimator):
        return 1.0
    return max(1.0, *map(abs, data.value_range()))


def estimates_y(estimator):
    """Return whether scores estimate y: federated methods say so, other models if they rate."""
    required = estimator.__sklearn_tags__().target_tags.required
    return getattr(estimator, "_sees_ratings", required)


def check_scale(scale: Any, name: str = "rating_scale") -> None:
    """Raise unless `scale` is (low, high) with low < high."""
    numbers = len(scale) == 2 and all(isinstance(end, Real) for end in scale)
    # The difference of two huge numbers can be infinite although they are not.
    if not (numbers and 0 < float(scale[1]) - float(scale[0]) < np.inf):
        raise ValueError(f"{name} must be two finite numbers in ascending order, got {scale!r}.")


def check_ratings(values: NDArray, scale: tuple[float, float]) -> None:
    """Raise if a rating lies outside the scale."""
    low, high = scale
    outside = (values < low) | (values > high)
    if outside.any():
        raise ValueError(
            f"y has the rating {values[outside][0]:g}, outside rating_scale=({low:g}, {high:g}); "
            "set rating_scale to the ends of the scale on which users rate."
        )


def scale_of(rating_scale: Any, rating_range: Any) -> tuple[float, float]:
    """Return the given scale, or the range of the ratings, which only a simulation knows."""
    scale = rating_scale or rating_range
    if scale is None:
        raise ValueError(
            "The server does not know on which scale users rate; set rating_scale=(low, high), "
            "for example (1, 5)."
        )
    low, high = scale
    return float(low), float(high)


class ClientFailed(ValueError):
    """Client number `client` of the block cannot go on; `what` says why, and the cure."""

    def __init__(self, client: int, what: str) -> None:
        super().__init__(what)
        self.client = client
