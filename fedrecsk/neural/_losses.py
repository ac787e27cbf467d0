"""Losses by name."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def _cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")


def _squared(scores: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (scores - targets) ** 2


LOSSES = {"bce": _cross_entropy, "squared": _squared}
