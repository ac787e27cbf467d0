"""The public half of a fitted model, which `explain` looks into and `export` writes to a file."""

from __future__ import annotations

import platform
import shutil
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import sklearn
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from fedrecsk import portable
from fedrecsk._utils.parameters import checked, suggest
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk._version import __version__
from fedrecsk.base._fading import as_power, life_of
from fedrecsk.base._item_weights import history_of
from fedrecsk.data.frames import library_of, make_frame
from fedrecsk.data.ids import id_array, missing_id

if TYPE_CHECKING:
    from os import PathLike

    from pandas import DataFrame

# Models in which the scores of new users are linear in their rows.
LINEAR = (
    "EASE, FedEASE, FedSpectral, ItemKNN, FedItemKNN, ImplicitALS, LocALS, LocSGD, GlobSGD, FCF "
    "for implicit feedback, and FedEB, PrivFedEB, ExplicitFCF, BiasOnly for ratings"
)
# Largest difference between a score and the sum of its parts, as a share of the sizes of these.
ROUNDING = 1e-3


class PublicHalf:
    """`explain` and `export`, for models that have a rule."""

    def _rule(self, item=None):
        """Return the rule for scores from a history, or one that suffices for an item's scores."""
        rule = self._model().rule(item)
        if rule is None:
            raise ValueError(
                f"{type(self).__name__} has no formula for the scores of new users, whom it trains "
                f"step by step. Use one of {LINEAR}."
            )
        return rule

    def _kept_rows(self, user):
        """Return the History of a user (a code) as far as the model has it; None if it has not."""
        if self.__sklearn_tags__().target_tags.required:
            return None
        # Nearly always likes count alike; `explain` notices if they did not.
        indptr, items = self._seen
        own = items[indptr[user] : indptr[user + 1]]
        return portable.History(own, np.ones(len(own)), np.ones(len(own)))

    if TYPE_CHECKING:

        @overload
        def explain(
            self,
            user: Any,
            item: Any,
            n: int = 5,
            as_frame: Literal[True] = True,
            *,
            interactions: ArrayLike | tuple[Any, ...] | None = None,
        ) -> DataFrame: ...
        @overload
        def explain(
            self,
            user: Any,
            item: Any,
            n: int = 5,
            *,
            as_frame: Literal[False],
            interactions: ArrayLike | tuple[Any, ...] | None = None,
        ) -> tuple[NDArray[Any], NDArray[np.float64], float]: ...

    @suggest
    def explain(
        self,
        user: Any,
        item: Any,
        n: int = 5,
        as_frame: bool = True,
        *,
        interactions: ArrayLike | tuple[Any, ...] | None = None,
    ) -> DataFrame | tuple[NDArray[Any], NDArray[np.float64], float]:
        """Explain an item's score by the user's own rows.

        The score is a sum: each row of the user adds its contribution; the rest, the mean rating
        and the item's bias, is the same for all users. It is computed from the items and the
        user's own rows, as on the user's device.

        Parameters
        ----------
        user : int, float or str
            Id of one user.
        item : int, float or str
            Id of an item of the model.
        n : int, default=5
            Number of rows to return, the largest contributions by size first.
        as_frame : bool, default=True
            Whether to return a DataFrame: of polars if `interactions` are, otherwise of pandas.
        interactions : array-like or tuple (X, y), default=None
            The user's whole history, in the form that `fit` takes, for new and known users; rows of
            other users are ignored. The score is then that of ``recommend(interactions=)``. If
            None, the rows stored in the model are used. These are the items of known users, without
            ratings and weights, which is enough for implicit feedback with equal weights. After a
            fit with ``warm_start=True`` the whole rows are stored.

        Returns
        -------
        frame : DataFrame
            Columns `source`, `item` and `contribution`: up to n rows with source "row", the largest
            first, then "other rows" and "all users", without an item (-1, NaN or ""), and
            "clipped" if the sum lies outside the rating scale. The contributions add up to the
            score.
        items : ndarray of shape (min(n, n_rows),)
            With ``as_frame=False``: items of the rows, largest contribution first.
        contributions : ndarray of the same shape, dtype float64
            With ``as_frame=False``: their contributions.
        rest : float
            With ``as_frame=False``: the score before it is clipped, less these contributions.

        Raises
        ------
        ValueError
            If the method's score is not such a sum, if the item is unknown, or if neither the model
            nor `interactions` contains the user's rows.

        Notes
        -----
        Rows are not independent: without one of them the contributions of the others would change.
        For ratings a row counts by its difference from the expected rating, so that a low rating
        may raise the score of an item that is unlike.

        Examples
        --------
        >>> from fedrecsk import EASE
        >>> X = [["ann", "alien"], ["ann", "aliens"], ["ann", "emma"], ["bob", "alien"],
        ...      ["bob", "aliens"], ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
        >>> model = EASE(reg=1.0).fit(X)
        >>> model.explain("ann", "predator", n=2).round(2)
               source    item  contribution
        0         row   alien          0.24
        1         row  aliens          0.24
        2  other rows                 -0.19
        3   all users                  0.00
        >>> model.explain("dan", "emma", interactions=[["dan", "persuasion"]]).round(2)
               source        item  contribution
        0         row  persuasion           0.5
        1  other rows                       0.0
        2   all users                       0.0
        """
        check_is_fitted(self)
        kinds = {"n": [Interval(Integral, 1, None, closed="left")], "as_frame": ["boolean"]}
        checked("explain", kinds, n=n, as_frame=as_frame)
        (wanted,) = self._items.codes(_one(item, "item"))
        rule = self._rule(int(wanted))
        if wanted < 0:
            raise ValueError(f"Item {item!s} is not an item that the model knows.")
        served, code, rows = self._with_rows(_one(user, "user"), interactions)
        rest, contributions = rule.contributions(rows, int(wanted))
        model = served._model()
        score = model.score_all(np.array([code]))[0, wanted]
        size = max(1e-9, np.abs(contributions).sum() + abs(rest))
        if abs(contributions.sum() + rest - score) > ROUNDING * size:
            raise ValueError(
                f"{type(self).__name__} does not store the ratings or weights of user {user!s}, "
                "and items alone do not explain its scores; pass its rows as interactions=."
            )
        order = np.argsort(-np.abs(contributions), kind="stable")
        items, others = self.item_ids_[rows.items[order[:n]]], contributions[order[n:]].sum()
        contributions = contributions[order[:n]]
        if not as_frame:
            return items, contributions, float(rest + others)
        sums = {"other rows": others, "all users": rest}
        if clipped := model.response(np.array([score]))[0] - score:
            sums["clipped"] = clipped
        none = np.repeat(missing_id(self.item_ids_.dtype), len(sums)).astype(items.dtype)
        columns = {
            "source": ["row"] * len(items) + list(sums),
            "item": np.concatenate([items, none]),
            "contribution": np.concatenate([contributions, list(sums.values())]),
        }
        given = interactions[0] if isinstance(interactions, tuple) else interactions
        return make_frame(columns, library_of(given))

    def _with_rows(self, user, interactions):
        """Return a model that knows the user, the user's code, and its History."""
        name, (code,) = user[0], self._users.codes(user)
        if interactions is None:
            rows = None if code < 0 else self._kept_rows(code)
            if rows is None:
                known = "is unknown, and" if code < 0 else "is known, but"
                raise ValueError(
                    f"User {name!s} {known} this {type(self).__name__} does not store the user's "
                    "rows. Pass them as interactions=X, or (X, y) for a rating model."
                )
            return self, code, rows
        served, pair = self._with_users_of(interactions)
        data = self._read(*pair, reset=False, item_ids=self._items)
        (row,) = data.user_ids.codes(user)
        if row < 0:
            raise ValueError(
                f"interactions has no row of user {name!s} with an item that the model knows."
            )
        history = history_of(data, row, life_of(self, "history_half_life"))
        return served, served._users.codes(user)[0], history

    def export(self, path: str | PathLike[str], *, web: bool = False) -> None:
        """Write the public half of the model to one file, which cannot run code.

        It contains the item ids and parameters, enough to recommend to new users, and nothing about
        any user. Every client of a federation receives the same at the end of a fit, apart from the
        scores for unknown users, which may be the items' popularity. :func:`fedrecsk.portable.load`
        reads it where only NumPy is installed, and ``python -m fedrecsk serve`` answers requests
        with it.

        Parameters
        ----------
        path : str or path-like
            Path of the file, which is replaced if it exists.
        web : bool, default=False
            Whether to write ``fedrecsk.js`` beside it, which reads the file in a browser or Node,
            and is replaced too.

        Raises
        ------
        ValueError
            If the method trains new users step by step, if item ids are integers beyond 64 bits,
            or if ``fedrecsk.js`` would replace the model.
        OSError
            If the file cannot be written.

        Notes
        -----
        With `history_half_life`, histories fade by the order in which the items of a user are
        given.

        The parameters are learned from all users and, without differential privacy, may reveal
        something about them (:func:`fedrecsk.audit.measure_membership`). The file contains the
        catalogue: without `items`, the items of X.

        Examples
        --------
        >>> import tempfile
        >>> from fedrecsk import FedEB, portable
        >>> from fedrecsk.datasets import make_ratings
        >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
        >>> model = FedEB(n_factors=4, n_rounds=20, random_state=0).fit(X, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.export(f"{folder}/model.fedrecsk")
        ...     public = portable.load(f"{folder}/model.fedrecsk")
        >>> items, ratings = public.recommend([3, 7], [5, 1], n=3)
        >>> items.shape
        (3,)
        """
        check_is_fitted(self)
        checked("export", {"web": ["boolean"]}, web=web)
        script = portable.javascript_path()
        # Some file systems do not tell capital letters from small ones.
        if web and Path(path).name.lower() == script.name:
            raise ValueError(
                f"{script.name}, which web=True writes, would replace the model; give path another "
                "name, such as model.fedrecsk."
            )
        portable.save(path, self._portable())
        if web:
            shutil.copy(script, Path(path).expanduser().parent)

    def _portable(self):
        """Return the public half as a PortableModel."""
        rule = self._rule()
        if self.item_ids_.dtype.kind == "O":
            raise ValueError(
                "Item ids are integers beyond 64 bits, which a file cannot hold; convert them to "
                "strings before fit."
            )
        scale = getattr(self, "rating_scale_", None)
        # FedEB reads times for its days, and its histories do not fade.
        fades = hasattr(self, "history_half_life") and self.timestamps is not None
        about = {
            "method": type(self).__name__,
            "rating_scale": None if scale is None else list(scale),
            "half_life": as_power(life_of(self, "history_half_life")) if fades else None,
            "versions": {
                "python": platform.python_version(),
                "fedrecsk": __version__,
                "numpy": np.__version__,
                "scikit-learn": sklearn.__version__,
            },
        }
        unknown = self._model().score_all(np.array([-1]))[0]
        return portable.PortableModel(rule, self.item_ids_, unknown, about)


def _one(one, name):
    """Return an id as an array of one, or raise."""
    if np.ndim(one):
        raise ValueError(f"explain takes one {name} at a time, got {one!r}.")
    return id_array([one], name)
