"""Recommend from a history with NumPy alone: the public half of a fitted model, in one file.

``export`` of a fitted model writes the file, and :func:`load` reads it. This module needs nothing
but NumPy and the standard library, also if it is copied to where the package is not installed.
fedrecsk.js is the same in JavaScript; change both.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

__all__ = ["PortableModel", "javascript_path", "load"]

# Version of the file. Older ones can be read, newer ones cannot.
FORMAT = 3
# What numbers of a rule, by their types, may be.
IS_SETTING = {
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and value > 0,
    "float": lambda value: type(value) in (int, float) and math.isfinite(value),
}
# The penalty of a user with one like, in terms of |Q'Q|. From validation rows
# (benchmarks.few_rows choices).
CAUTION = 30.0
# Bytes of what a file says about itself.
MOST_HEADER = 2**16


@dataclass(frozen=True)
class History:
    """A user's rows, each item once: codes, ratings or preferences, and weights, all (n,).

    `fades` is what time has left of each like, all of it by default.
    """

    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    fades: np.ndarray | float = 1.0

    @property
    def likes(self) -> np.ndarray:
        """Return what is left of the weight of each like, 0 for other rows."""
        return np.where(self.values > 0, self.fades * self.weights, 0.0)


@dataclass(frozen=True)
class ItemWeights:
    """Scores that add up rows of a matrix: EASE."""

    matrix: np.ndarray  # a user who likes item j with weight w has w times row j in its scores
    rates: ClassVar[bool] = False

    def scores(self, history: History) -> np.ndarray | None:
        """Return the scores of all items, (n_items,); None if no row says anything."""
        weights = history.likes
        if not weights.any():
            return None
        return weights.astype(self.matrix.dtype) @ self.matrix[history.items]

    def contributions(self, history: History, item: int) -> tuple[float, np.ndarray]:
        """Return the part of a score that all users share, and each row's addition, (n,)."""
        return 0.0, history.likes * self.matrix[history.items, item]


@dataclass(frozen=True)
class Ridge:
    """Scores ``offset_i + x_i . p`` whose p solves a ridge regression of the user's rows on x.

    For rows j with value y_j and weight w_j::

        (penalty + sum_j e_j (x_j x_j' + diag(v_j))) p = sum_j (t_j x_j + n^-1/2 z_j)

    with e = confidence w and t = e (y - offset) for ratings. For likes only rows with y > 0 count,
    with e = f c - shift, c = confidence w or confidence w y, and t = f (1 + c - shift), where f is
    what time has left of the row. p is linear in t and z, so each row has its own part of the
    score. With `is_cautious`, penalty and p change as `short_histories` says.

    Products are by einsum and not by @, whose threads wait for each other where other processes
    need the cores too.
    """

    vectors: np.ndarray  # (n_items, k): x
    offset: np.ndarray  # (n_items,)
    penalty: np.ndarray  # (k, k); column f counts times the sum of the weights to the power[f]
    power: np.ndarray  # (k,)
    variance: np.ndarray  # (n_items, k): v; (0, k) for 0
    prior: np.ndarray  # (n_items, k): z; (0, k) for 0
    rates: bool  # whether y are ratings; likes otherwise
    confidence: float
    shift: float = 0.0
    counts_values: bool = False  # whether y multiplies the weight of a like
    # reg (1 + sum_j e_j / n_items)^reg_exponent is added to the diagonal; LocALS may put another
    # number in the place of that of the items.
    reg: float = 0.0
    reg_exponent: float = 0.0
    n_items: int = 1
    # Whether histories with few likes lean on popular items; the penalty is then Q'Q.
    is_cautious: bool = False

    @classmethod
    def of(cls, vectors: np.ndarray, penalty: np.ndarray, **others: Any) -> Ridge:
        """Return it with zeros in place of the arrays that are not given."""
        n_items, k = vectors.shape
        none = {"offset": np.zeros(n_items, vectors.dtype), "power": np.zeros(k)}
        none |= {"variance": np.zeros((0, k)), "prior": np.zeros((0, k))}
        return cls(vectors=vectors, penalty=penalty, **none | others)

    def scores(self, history: History) -> np.ndarray | None:
        """Return the scores of all items, (n_items,); None if no row says anything."""
        equations = self._equations(history)
        if equations is None:
            return None
        _, rows, matrix, lean = equations
        user = lean @ np.linalg.solve(matrix, rows.sum(axis=0))
        scores = np.einsum("ij,j->i", self.vectors, user.astype(self.vectors.dtype))
        return scores + self.offset

    def contributions(self, history: History, item: int) -> tuple[float, np.ndarray]:
        """Return the part of a score that all users share, and each row's addition, (n,)."""
        parts, equations = np.zeros(len(history.items)), self._equations(history)
        if equations is not None:
            counting, rows, matrix, lean = equations
            parts[counting] = rows @ np.linalg.solve(matrix, lean @ self.vectors[item])
        return float(self.offset[item]), parts

    def _equations(self, history):
        """Return which rows count, their right sides (n, k), the matrix, and what p is turned by.

        None if no row counts.
        """
        counting = np.ones(len(history.items), bool) if self.rates else history.values > 0
        if not counting.any():
            return None
        fades = np.broadcast_to(history.fades, counting.shape)
        items, values, weights, fades = (
            column[counting] for column in (history.items, history.values, history.weights, fades)
        )
        vectors = self.vectors[items].astype(float)
        if self.rates:
            extra = self.confidence * weights
            pull = extra * (values - self.offset[items])
        else:
            sure = self.confidence * weights * (values if self.counts_values else 1)
            extra, pull = fades * sure - self.shift, fades * (1 + sure - self.shift)
        matrix = self.penalty * weights.sum() ** self.power
        matrix += np.einsum("ji,jk->ik", extra[:, None] * vectors, vectors)
        rows = pull[:, None] * vectors
        confidence = 1 + extra.sum() / self.n_items
        matrix[np.diag_indices_from(matrix)] += self.reg * confidence**self.reg_exponent
        if len(self.variance):
            matrix[np.diag_indices_from(matrix)] += extra @ self.variance[items]
        if len(self.prior):
            rows += self.prior[items] / np.sqrt(len(items))
        lean = np.eye(len(matrix))
        if self.is_cautious:
            penalty, share = short_histories(self.penalty, weights.sum())
            matrix[np.diag_indices_from(matrix)] += penalty
            lean += share * self.penalty
        return counting, rows, matrix, lean


def short_histories(gram: np.ndarray, n_likes: Any) -> tuple[Any, Any]:
    """Return what is added to penalties, and how many times Q'Q p is added to p.

    Without it the items that a user does not have, all with r = 0, outweigh a few likes.
    """
    rarity = np.maximum(n_likes, 1.0) ** -3
    size = max(float(np.linalg.norm(gram)), float(np.finfo(np.float32).tiny))
    return CAUTION * size * rarity, rarity / size


RULES = {rule.__name__: rule for rule in (ItemWeights, Ridge)}


class PortableModel:
    """The public half of a fitted model, which recommends to any user with a history.

    It knows the items and no user. :func:`load` reads it from a file.

    Parameters
    ----------
    rule : ItemWeights or Ridge
        From a history to scores.
    item_ids : ndarray of shape (n_items,)
    unknown : ndarray of shape (n_items,)
        Scores for users without a history.
    about : dict
        `method`, `rating_scale` (low, high) or None, `half_life` (a, b) or None, and `versions`:
        the weights of a history of n positives halve every a n^b positives.

    Attributes
    ----------
    item_ids : ndarray of shape (n_items,)
        Ids of the items.
    method : str
        Name of the method that was fitted.
    rates : bool
        Whether it is a rating model, which needs ratings, or a ranking model.
    versions : dict of str to str
        Versions of Python, fedrecsk, NumPy and scikit-learn that wrote the file.

    Examples
    --------
    >>> import tempfile
    >>> from fedrecsk import EASE
    >>> from fedrecsk.portable import load
    >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
    ...      ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     EASE(reg=1.0).fit(X).export(f"{folder}/model.fedrecsk")
    ...     model = load(f"{folder}/model.fedrecsk")
    >>> items, scores = model.recommend(["alien", "aliens"], n=1)
    >>> items.tolist()
    ['predator']
    """

    def __init__(
        self,
        rule: ItemWeights | Ridge,
        item_ids: np.ndarray,
        unknown: np.ndarray,
        about: dict[str, Any],
    ) -> None:
        self.item_ids: np.ndarray = item_ids
        self.rates: bool = rule.rates
        self.method: str = about["method"]
        self.versions: dict[str, str] = about["versions"]
        self._rule, self._unknown, self._about = rule, unknown, about
        self._scale: tuple[float, float] | None = about["rating_scale"]
        self._half_life: tuple[float, float] | None = about.get("half_life")
        self._codes = {one: code for code, one in enumerate(item_ids.tolist())}

    def recommend(
        self,
        items: Sequence[Any],
        ratings: Sequence[float] | None = None,
        n: int = 10,
        *,
        weights: Sequence[float] | None = None,
        exclude: Sequence[Any] = (),
        exclude_seen: bool = True,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Recommend items to a user with this history, best first.

        Parameters
        ----------
        items : sequence of shape (n_rows,)
            Ids of the user's items, oldest first, which matters to models with a
            `history_half_life` only. Unknown ones are ignored, and if none is known, the list is
            that for unknown users.
        ratings : sequence of shape (n_rows,), default=None
            Ratings of the items, which a rating model needs. For a ranking model None means that
            all items are liked; otherwise those with a number above 0 are.
        n : int, default=10
            Number of recommendations; fewer if fewer items are left.
        weights : sequence of shape (n_rows,), default=None
            Sample weights, as in fit. If None, 1. Repeated items are merged as in fit.
        exclude : sequence
            Ids of further items that must not be recommended.
        exclude_seen : bool, default=True
            Whether to leave out `items`.

        Returns
        -------
        items : ndarray of shape (n,)
            Ids; ties are resolved by the order of `item_ids`.
        scores : ndarray of shape (n,), dtype float64
            As `recommend` of the fitted model gives them, up to rounding.

        Raises
        ------
        ValueError
            If ids are of another type than `item_ids`, if ratings or weights are missing, of
            another length, not finite, or outside the rating scale, or if n is below 1.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n should be a whole number of at least 1, got {n!r}.")
        history = self._history(items, ratings, weights)
        scores = self._scores(history)
        barred = self._known(exclude, "exclude")
        scores[barred[barred >= 0]] = -np.inf
        if exclude_seen:
            scores[history.items] = -np.inf
        best = largest(scores, min(int(n), len(scores)))
        return self.item_ids[best], self._clipped(scores[best].astype(float))

    def predict(
        self,
        items: Sequence[Any],
        ratings: Sequence[float] | None = None,
        *,
        weights: Sequence[float] | None = None,
    ) -> np.ndarray:
        """Return the scores of all items for a user with this history, shape (n_items,).

        Parameters
        ----------
        items, ratings, weights
            As in `recommend`.

        Returns
        -------
        scores : ndarray of shape (n_items,), dtype float64
            In the order of `item_ids`.

        Raises
        ------
        ValueError
            As `recommend` does.
        """
        return self._clipped(self._scores(self._history(items, ratings, weights)).astype(float))

    def _scores(self, history):
        """Return a new array of scores before they are clipped."""
        scores = self._rule.scores(history)
        return self._unknown.copy() if scores is None else scores

    def _clipped(self, scores):
        return scores if self._scale is None else np.clip(scores, *self._scale)

    def _history(self, items, ratings, weights):
        """Check a history, and return it with each known item once."""
        codes = self._known(items, "items")
        if ratings is None and self.rates and len(codes):
            raise ValueError(
                f"{self.method} is a model of ratings; give ratings, a number for each of items."
            )
        values, weights = _numbers(ratings, "ratings", codes), _numbers(weights, "weights", codes)
        if (weights < 0).any():
            raise ValueError("weights should not be negative.")
        if self.rates and self._scale is not None:
            outside = (values < self._scale[0]) | (values > self._scale[1])
            if outside.any():
                low, high = self._scale
                raise ValueError(
                    f"The rating {values[outside][0]:g} is outside the scale, {low:g} to {high:g}."
                )
        known = (codes >= 0) & (weights > 0)
        codes, places = np.unique(codes[known], return_inverse=True)
        total = np.bincount(places, weights[known], len(codes))
        values = np.bincount(places, (weights * values)[known], len(codes)) / total
        last = np.zeros(len(codes), dtype=np.int64)
        np.maximum.at(last, places, np.arange(len(places)))
        return History(codes, values, total, self._fades(last, values > 0))

    def _fades(self, last, likes):
        """Return what time has left of each like, given the places of rows in time."""
        fades = np.ones(len(last))
        if self._half_life is not None and likes.any():
            n_likes = np.count_nonzero(likes)
            ages = n_likes - 1 - np.argsort(np.argsort(last[likes]))
            fades[likes] = 2.0 ** (-ages / (self._half_life[0] * n_likes ** self._half_life[1]))
        return fades

    def _known(self, ids, name):
        """Return the code of each id, -1 for unknown."""
        strings, bools = (self.item_ids.dtype.kind == kind for kind in "Ub")
        # Short floats stay what they are: they hold fewer integers one by one.
        ids = ids.tolist() if isinstance(ids, np.ndarray) and ids.dtype.kind != "f" else ids
        if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
            raise ValueError(f"{name} should be a list of item ids, got {str(ids)[:40]!r}.")
        ids = list(ids)
        for one in ids:
            is_number = isinstance(one, int | float | np.number)
            # True would be the number 1.
            if not (
                isinstance(one, str) if strings else is_number and isinstance(one, bool) <= bools
            ):
                kind = "strings" if strings else "numbers"
                raise ValueError(f"Item ids are {kind}; {name} has {str(one)[:40]!r}.")
            if isinstance(one, float | np.floating) and abs(one) >= 2 / np.finfo(type(one)).eps:
                raise ValueError(
                    f"{name} has {one!s}, and a float of this size stands for several ids; give "
                    "ids as integers."
                )
        return np.array([self._codes.get(one, -1) for one in ids], dtype=np.int64)


def _numbers(numbers, name, codes):
    """Return a number for each row, 1 by default, or raise."""
    if numbers is None:
        return np.ones(len(codes))
    try:
        array = np.asarray(numbers, dtype=float)
    except (TypeError, ValueError, OverflowError):
        array = np.full(1, np.nan)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} should be finite numbers.")
    if array.shape != codes.shape:
        raise ValueError(f"{name} should be one number for each of the {len(codes)} items.")
    return array


def largest(numbers: np.ndarray, n: int) -> np.ndarray:
    """Return the places of the n largest numbers above -inf, largest first, ties by place."""
    if n == 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(numbers, len(numbers) - n)[len(numbers) - n]
    found = np.flatnonzero((numbers >= least) & (numbers > -np.inf))
    return found[np.argsort(-numbers[found], kind="stable")][:n]


# ------------------------------------------------------------------------------------ files


def save(path: str | PathLike[str], model: PortableModel) -> None:
    """Write a model to a file: numbers and ids, nothing that could run."""
    rule, settings = type(model._rule).__name__, vars(model._rule).copy()
    own = [name for name, value in settings.items() if isinstance(value, np.ndarray)]
    # Arrays lie row by row, as fedrecsk.js reads them.
    arrays = {f"rule_{name}": np.ascontiguousarray(settings.pop(name)) for name in own}
    arrays |= {"item_ids": model.item_ids, "unknown": model._unknown}
    header = {"format": FORMAT, "rule": rule, "settings": settings, **model._about}
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    with open(os.path.expanduser(path), "wb") as file:
        np.savez(file, header=text, **arrays)


def is_portable(path: str | PathLike[str]) -> bool:
    """Return whether a file looks like one of `export`."""
    # is_zipfile is False for a file that is not there.
    with open(os.path.expanduser(path), "rb") as file:
        return zipfile.is_zipfile(file) and "header.npy" in zipfile.ZipFile(file).namelist()


def load(path: str | PathLike[str]) -> PortableModel:
    """Read the public half of a fitted model from a file that `export` has written.

    Nothing in the file can run code. Needs NumPy only.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    model : PortableModel

    Raises
    ------
    ValueError
        If the file is damaged, or is none of `export`, or was written by a later version of
        fedrecsk in a format that this one does not know.
    OSError
        If the file cannot be opened.
    """
    with open(os.path.expanduser(path), "rb") as file:
        try:
            with zipfile.ZipFile(file) as content:
                header = json.loads(bytes(_arrays(content, ["header"], MOST_HEADER)["header"]))
                newer = header["format"] > FORMAT
                model = None if newer else _read(header, content, os.fstat(file.fileno()).st_size)
        # A damaged file may raise nearly anything.
        except Exception as error:
            raise ValueError(
                f"{path} is damaged, or was not written by export ({type(error).__name__}: "
                f"{error})."
            ) from error
    if model is None:
        raise ValueError(
            f"{path} has format {header['format']}, written by fedrecsk "
            f"{header.get('versions', {}).get('fedrecsk')}; this version reads up to {FORMAT}. "
            "Install a later version."
        )
    return model


def javascript_path() -> Path:
    """Return the path of fedrecsk.js, which reads the same files in a browser or in Node.

    It is one ES module without dependencies. ``export(path, web=True)`` writes it beside the file.

    Returns
    -------
    path : Path

    Examples
    --------
    >>> from fedrecsk.portable import javascript_path
    >>> javascript_path().name
    'fedrecsk.js'
    """
    return Path(__file__).with_name("fedrecsk.js")


def _declared(content, name):
    """Return what an array declares: shape, kind and bytes; raise if its member is not of it."""
    member = content.getinfo(f"{name}.npy")
    with content.open(member) as opened:
        if np.lib.format.read_magic(opened) != (1, 0):
            raise ValueError(f"{name} is not an array in the format of export")
        shape, _, dtype = np.lib.format.read_array_header_1_0(opened)
        size = math.prod(shape) * dtype.itemsize
        # Nothing is compressed.
        if not member.compress_size == member.file_size == opened.tell() + size:
            raise ValueError(f"{name} does not have its declared size")
    return shape, dtype.kind, size


def _arrays(content, names, most):
    """Return arrays by their names; raise if they declare more bytes than they may have."""
    if sum(_declared(content, name)[2] for name in names) > most:
        raise ValueError(f"{', '.join(names)} declare more than {most} bytes")
    arrays = {}
    for name in names:
        with content.open(f"{name}.npy") as member:
            arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays


def _read(header, content, n_bytes):
    """Return the model of a file of `n_bytes`, or raise before its arrays are read."""
    rule, settings = RULES[header["rule"]], header["settings"]
    types = {field.name: field.type for field in fields(rule)}
    for name, value in settings.items():
        if not IS_SETTING[types[name]](value):
            raise ValueError(f"{name} is {value!r}")
    own = [name for name, type in types.items() if type == "np.ndarray"]
    names = {"unknown": "unknown"} | {name: f"rule_{name}" for name in own}
    declared = {name: _declared(content, member) for name, member in names.items()}
    (m,), kind, _ = _declared(content, "item_ids")
    k = declared["power"][0][0] if "power" in own else 0
    shapes = {"unknown": (m,), "matrix": (m, m), "vectors": (m, k), "offset": (m,), "power": (k,)}
    shapes |= {"penalty": (k, k), "variance": (m, k), "prior": (m, k)}
    for name, (shape, its_kind, _) in declared.items():
        is_left_out = name in ("variance", "prior") and shape == (0, k)
        if its_kind != "f" or not (shape == shapes[name] or is_left_out):
            raise ValueError(f"{name} should hold floats of shape {shapes[name]}")
    if kind not in "biufU":
        raise ValueError("item_ids should hold strings or numbers")
    arrays = _arrays(content, ["item_ids", *names.values()], n_bytes)
    item_ids = arrays.pop("item_ids")
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} should hold finite numbers")
    if len(np.unique(item_ids)) < m or (kind == "f" and not np.isfinite(item_ids).all()):
        raise ValueError("item_ids should be distinct and finite")
    made = rule(**{name: arrays[names[name]] for name in own}, **settings)
    about = {name: header[name] for name in ("method", "rating_scale", "versions")}
    # Format 1 has none.
    about["half_life"] = header.get("half_life")
    scale, half_life = about["rating_scale"], about["half_life"]
    if scale is not None and not -math.inf < scale[0] <= scale[1] < math.inf:
        raise ValueError(f"{scale} is not a rating scale")
    if half_life is not None and not (0 < half_life[0] < math.inf and 0 <= half_life[1] < math.inf):
        raise ValueError(f"{half_life} is not a half-life")
    return PortableModel(made, item_ids, arrays["unknown"], about)
