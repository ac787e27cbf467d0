"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called this package, perhaps by scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_library(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in ("fedrecsk", "sklearn")
