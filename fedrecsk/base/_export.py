"""`export`: the public half of a fitted model, in a file that cannot run code."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import numpy as np
import sklearn
from sklearn.utils.validation import check_is_fitted

from fedrecsk import portable
from fedrecsk._version import __version__
from fedrecsk.base._fading import as_power

if TYPE_CHECKING:
    from os import PathLike


class Exports:
    """`export`, for models that have `_public_half`."""

    def export(self, path: str | PathLike[str]) -> None:
        """Write the public half of the model to one file, which cannot run code.

        It has the items' ids and numbers, all that recommending to a newcomer needs, and nothing
        of any user: what every client of a federation receives at the end of a fit.
        :func:`fedrecsk.portable.load` reads it where only NumPy is installed, and
        ``python -m fedrecsk serve`` answers requests with it.

        Parameters
        ----------
        path : str or path-like
            Of the file, which is replaced if it exists.

        Raises
        ------
        ValueError
            If newcomers of the method are trained step by step, or if item ids are integers beyond
            64 bits.
        OSError
            If the file cannot be written.

        Notes
        -----
        A history that fades (`history_half_life`) does so by the order in which the items of a
        newcomer are given.

        The numbers are learned from all users, and a centralised model, or one without
        differential privacy, may show something about them
        (:func:`fedrecsk.attacks.measure_membership`). The catalogue is in the file: without
        `items` it is the items of X.

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
        portable.save(path, self._portable())

    def _portable(self):
        """Return the public half as a PortableModel."""
        rule = self._public_half()
        if self.item_ids_.dtype.kind == "O":
            raise ValueError(
                "Item ids are integers beyond 64 bits, which a file cannot hold; convert them to "
                "strings before fit."
            )
        scale = getattr(self, "rating_scale_", None)
        fades = getattr(self, "timestamps", None) is not None
        about = {
            "method": type(self).__name__,
            "rating_scale": None if scale is None else list(scale),
            "half_life": as_power(self.history_half_life) if fades else None,
            "versions": {
                "python": platform.python_version(),
                "fedrecsk": __version__,
                "numpy": np.__version__,
                "scikit-learn": sklearn.__version__,
            },
        }
        unknown = self._score_all(np.array([-1]))[0]
        return portable.PortableModel(rule, self.item_ids_, unknown, about)
