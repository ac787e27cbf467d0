"""How modules are built, and their parts: private or sent, with a row per user or item or none."""

from __future__ import annotations

import fnmatch
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

# "user": private, a row per user. "private": private, as a whole. "private item": private, a row
# per item. "item": sent, a row per item. "shared": sent as a whole. "fixed item" and "fixed":
# neither trained nor sent, because every machine that builds the module has them.
Kind = Literal["user", "private", "private item", "item", "shared", "fixed item", "fixed"]
Make = Callable[..., nn.Module]

# Kinds of parameters with a row per item.
TABLES: tuple[Kind, ...] = ("item", "private item", "fixed item")

# Numbers of users and of items for which a module is built to find its tables.
SMALL, LARGE = (2, 3), (5, 7)


class Recipe(NamedTuple):
    """How a module is built, and which of its parameters are private."""

    # Called with `n_users` and `n_items`.
    make: Make
    # A pattern of names, or several.
    private: str | Sequence[str]
    # All that determines the module.
    arguments: tuple[Any, ...]

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of the names of private parameters."""
        return (self.private,) if isinstance(self.private, str) else tuple(self.private)

    @property
    def origin(self) -> list[Any]:
        """All that determines the module, as objects to be compared by identity."""
        return list(_flat((self.arguments, self.patterns)))


class Part(NamedTuple):
    """One parameter of a module."""

    kind: Kind
    # Of a row, or of a parameter without rows.
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def width(self) -> int:
        """Numbers in a row, or in a parameter without rows."""
        return prod(self.shape)

    @property
    def numpy_dtype(self) -> np.dtype:
        return torch.empty((), dtype=self.dtype, device="cpu").numpy().dtype


@dataclass(frozen=True, eq=False)
class Layout:
    """The parts of a module, by the names of its parameters."""

    parts: dict[str, Part]

    @classmethod
    def of(cls, make: Make, private: Sequence[str]) -> Layout:
        """Read the layout off two small modules of different sizes; raise if it has none."""
        with seeded(0):
            small, large = (built(make, *sizes) for sizes in (SMALL, LARGE))
        larger = dict(large.named_parameters())
        parts = {}
        for name, parameter in small.named_parameters():
            if name not in larger:
                raise ValueError(
                    f"The module has the parameter {name} for {_sizes(SMALL)}, but not for "
                    f"{_sizes(LARGE)}; build the same layers for all sizes."
                )
            is_private = any(fnmatch.fnmatchcase(name, pattern) for pattern in private)
            parts[name] = _part(name, parameter, larger[name], is_private)
        if not parts:
            raise ValueError("The module has no parameters, so there is nothing to train.")
        check_patterns("private", private, parts)
        return cls(parts)

    def named(self, *kinds: Kind) -> list[str]:
        """Return the names of the parameters of these kinds, in the module's order."""
        return [name for name, part in self.parts.items() if part.kind in kinds]

    @property
    def sent(self) -> list[str]:
        """Names of the parameters that the server sends and clients update."""
        return self.named("item", "shared")

    @property
    def fixed(self) -> list[str]:
        """Names of the parameters that are part of the module and do not change."""
        return self.named("fixed item", "fixed")

    @property
    def trained(self) -> list[str]:
        """Names of the parameters that clients train."""
        return [name for name in self.parts if name not in self.fixed]

    @property
    def dtype(self) -> np.dtype:
        """Type of the module's numbers."""
        return np.result_type(*(part.numpy_dtype for part in self.parts.values()))

    def columns(self, n_items: int) -> dict[str, slice]:
        """Place of each private parameter in a user's row of private numbers."""
        columns, start = {}, 0
        for name in self.named("user", "private", "private item"):
            part = self.parts[name]
            width = part.width * (n_items if part.kind == "private item" else 1)
            columns[name] = slice(start, start + width)
            start += width
        return columns

    def n_private(self, n_items: int) -> int:
        """Return how many numbers a user's row has."""
        return max((place.stop for place in self.columns(n_items).values()), default=0)

    def matrix_shape(self, name: str, n_items: int) -> tuple[int, int]:
        """Shape as a matrix, in which a parameter is sent."""
        part = self.parts[name]
        if part.kind == "item":
            return n_items, part.width
        rows = part.shape[0] if len(part.shape) > 1 else 1
        return rows, part.width // max(1, rows)


@contextmanager
def explained(what: str, cure: str) -> Iterator[None]:
    """Turn any error of a user's code in the block into one that says what to do."""
    try:
        yield
    except Exception as error:
        text = str(error).rstrip(".")
        raise ValueError(f"{what}: {type(error).__name__}: {text}. {cure}") from error


def built(make: Make, n_users: int, n_items: int) -> nn.Module:
    """Build a module; the caller has seeded torch's generator."""
    with explained(
        f"The module could not be built with n_users={n_users} and n_items={n_items}",
        "Its constructor must accept these two names, for any sizes, and the arguments given to "
        "Net.",
    ):
        module = make(n_users=n_users, n_items=n_items)
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must return a torch.nn.Module, got {type(module).__name__}.")
    return module


def matching(name: str, patterns: Iterable[str]) -> str | None:
    """Return the first of the patterns that a name matches."""
    return next((one for one in patterns if fnmatch.fnmatchcase(name, one)), None)


def _part(name, small, large, is_private):
    """Return the Part of a parameter in modules of two sizes."""
    if small.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{name} has dtype {small.dtype}; parameters must be float32 or float64. Convert them "
            "in the module's constructor, for example by self.float()."
        )
    if 0 in small.shape:
        raise ValueError(
            f"{name} is empty: its shape is {tuple(small.shape)}. Give its layer a width above 0."
        )
    rows = tuple(small.shape[:1]), tuple(large.shape[:1])
    per_user, per_item = (rows == ((a,), (b,)) for a, b in zip(SMALL, LARGE, strict=True))
    first = int(per_user or per_item)
    rest = small.shape[first:], large.shape[first:]
    if rest[0] != rest[1]:
        raise ValueError(
            f"The shape of {name} is {tuple(small.shape)} for {_sizes(SMALL)} and "
            f"{tuple(large.shape)} for {_sizes(LARGE)}. Users or items may only be the first "
            "dimension of a parameter, such as an Embedding's, with exactly n_users or n_items "
            "rows."
        )
    if per_user and not small.requires_grad:
        raise ValueError(
            f"{name} has a row per user and requires_grad=False. What clients know of their users "
            "cannot be part of the module, which is the same for all; let them train it, or leave "
            "it out."
        )
    if per_user and not is_private:
        raise ValueError(
            f"{name} has a row per user, but matches no pattern in private; the server would see "
            f'it. Add "{name}" to private.'
        )
    kind: Kind
    if per_user:
        kind = "user"
    elif not small.requires_grad:
        kind = "fixed item" if per_item else "fixed"
    elif is_private:
        kind = "private item" if per_item else "private"
    else:
        kind = "item" if per_item else "shared"
    return Part(kind, tuple(rest[0]), small.dtype)


def check_patterns(parameter: str, patterns: Iterable[str], parts: dict[str, Part]) -> None:
    """Raise if one of the patterns of an estimator's parameter matches no name."""
    for pattern in patterns:
        if not fnmatch.filter(parts, pattern):
            raise ValueError(
                f"{parameter} has the pattern {pattern!r}, but no parameter of the module matches "
                f"it; its parameters are {', '.join(parts)}."
            )


def _sizes(sizes):
    return f"{sizes[0]} users and {sizes[1]} items"


# --------------------------------------------------------------------- modules that are kept

# Building a module takes milliseconds, and the functions of a round need it many times.
_KEPT: deque[Blueprint] = deque(maxlen=16)


class Blueprint:
    """A small module, whose parameters are replaced when it is called, and its layout."""

    def __init__(self, recipe: Recipe) -> None:
        self.origin: list[Any] = recipe.origin
        self.make = recipe.make
        self.layout: Layout = Layout.of(recipe.make, recipe.patterns)
        self._own = threading.local()
        self._fixed: tuple[int, dict[str, Tensor]] = -1, {}

    @property
    def module(self) -> nn.Module:
        """This thread's own module: while it is called, it holds the caller's parameters."""
        if not hasattr(self._own, "module"):
            with seeded(0):
                self._own.module = built(self.make, 1, 1).train()
        return self._own.module

    def fixed(self, n_items: int) -> dict[str, Tensor]:
        """Return the parameters that do not change, for so many items, or raise."""
        if self._fixed[0] == n_items:
            return self._fixed[1]
        fixed = {}
        if self.layout.fixed:
            with seeded(0):
                parameters = dict(built(self.make, 1, n_items).named_parameters())
            fixed = {name: parameters[name].detach() for name in self.layout.fixed}
        for name, value in fixed.items():
            if self.layout.parts[name].kind == "fixed item" and len(value) != n_items:
                raise ValueError(
                    f"{name} has {len(value)} rows for {n_items} items; it needs a row for each of "
                    "the first n_items items, in the order of item_ids_."
                )
            if not torch.isfinite(value).all():
                raise ValueError(f"{name} has infinite or NaN values.")
        self._fixed = n_items, fixed
        return fixed


def blueprint(recipe: Recipe) -> Blueprint:
    """Return the Blueprint of a recipe's module."""
    origin = recipe.origin
    for kept in list(_KEPT):
        if list(map(id, kept.origin)) == list(map(id, origin)):
            return kept
    made = Blueprint(recipe)
    _KEPT.append(made)
    return made


def _flat(value: Any) -> Iterator[Any]:
    """Yield a value, or the type, the length and the elements of a list or tuple."""
    if not isinstance(value, list | tuple):
        yield value
        return
    yield from (type(value), len(value))
    for one in value:
        yield from _flat(one)


# ------------------------------------------------------------------------- the state of torch

_SEEDING = threading.Lock()
_COUNTING = threading.Lock()
# What torch's number of threads and default type were before the first block of those open now.
_BEFORE: list[tuple[int, torch.dtype]] = []


@contextmanager
def own_settings() -> Iterator[None]:
    """Let torch compute in the block as if nothing were set, and with one thread.

    Sums must not depend on the number of threads, nor a fit on the default type and device, or on
    whether the caller trains.
    """
    # The number belongs to the calling thread, but threads that begin later take the last one that
    # was set, and the type belongs to all. Therefore the last to leave restores the first state.
    own = torch.get_num_threads()
    with _COUNTING:
        _BEFORE.append(_BEFORE[0] if _BEFORE else (own, torch.get_default_dtype()))
        torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    is_plain = torch.get_default_device().type == "cpu"
    device = nullcontext() if is_plain else torch.device("cpu")
    try:
        with torch.inference_mode(False), torch.enable_grad(), device:
            yield
    finally:
        with _COUNTING:
            n_threads, dtype = _BEFORE.pop()
            torch.set_num_threads(own if _BEFORE else n_threads)
            if not _BEFORE:
                torch.set_default_dtype(dtype)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator for the block, with `own_settings`; restore it afterwards."""
    with _SEEDING, own_settings(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
