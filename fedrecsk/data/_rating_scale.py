"""The scale on which users rate, and its checks."""

from numbers import Real

import numpy as np


def check_scale(scale):
    """Raise unless `scale` is (low, high) with finite low < high."""
    numbers = len(scale) == 2 and all(isinstance(end, Real) for end in scale)
    if not (numbers and np.isfinite(scale).all() and scale[0] < scale[1]):
        raise ValueError(f"rating_scale must be (low, high) with low < high, got {scale!r}.")


def check_ratings(values, scale):
    """Raise if a rating lies outside the scale."""
    low, high = scale
    outside = (values < low) | (values > high)
    if outside.any():
        raise ValueError(
            f"y has the rating {values[outside][0]:g}, outside rating_scale=({low:g}, {high:g}); "
            "set rating_scale to the ends of the scale on which users rate."
        )


def scale_of(rating_scale, rating_range):
    """Return the given scale, or the range of the ratings, which only a simulation knows."""
    scale = rating_scale or rating_range
    if scale is None:
        raise ValueError(
            "The server does not know on which scale users rate; set rating_scale=(low, high), "
            "for example (1, 5)."
        )
    low, high = scale
    return float(low), float(high)
