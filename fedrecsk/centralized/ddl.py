"""DDL: binary codes of items from ratings and content (Zhang, Yin et al., WSDM 2018)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.neural_network import BernoulliRBM
from sklearn.utils import check_array

from fedrecsk._utils.docs import documented
from fedrecsk._utils.fixed_point import fixed
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.base._hamming import pack_codes, unpack_codes
from fedrecsk.centralized.dcf import DCF
from fedrecsk.data.interactions import as_table, catalogue_ids, id_array, id_columns, named

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike

    from fedrecsk.data.interactions import Ids

# Of the network: rows per step, the learning rate of pretraining, and Adam's decays.
BATCH, PRETRAINING_RATE = 100, 0.05
DECAYS, EPSILON = (0.9, 0.999), 1e-8


@documented
@dataclass(eq=False, repr=False)
class DDL(DCF):
    """Discrete deep learning: DCF, with items' codes close to what their features predict.

    A deep belief network f maps an item's features to [-1, 1]^n_bits. Items' codes are fitted to
    ratings and to the network's outputs, and the network is trained on the codes in turn. An
    item without ratings gets the signs of its output, so that new items can be recommended.
    Without `item_features` this is :class:`DCF`.

    Parameters
    ----------
    n_bits : int, default=64
        Number of bits of a code (r). Codes are stored in words of 64 bits.
    item_features : DataFrame, array or sparse matrix of shape (n_items, n_features), default=None
        Numbers in [0, 1], a row for each item. A pandas DataFrame has the items' ids as its index,
        which is the catalogue unless `items` is given too. The rows of an array or a sparse
        matrix are in the order of `items`. Features are a parameter like `items` because they have
        rows for items, and cross-validation splits what is passed to `fit` by rows of X.
    content_weight : float, default=1e-3
        Weight of the squared distances between codes and the network's outputs (lambda), in units
        in which a rating's error counts in bits.
    hidden_layers : sequence of int, default=(200,)
        Units of the network's layers between the features and the codes.
    learning_rate : float, default=1e-3
        Step of Adam in the network's training on the codes.
    n_epochs : int, default=15
        Number of iterations. Without features they end when no bit changes.
    balance_user : float, default=2e-5
        Weight of balance and decorrelation of the users' bits (alpha), in the same units.
    balance_item : float, default=1e-4
        Likewise of the items' bits (beta).
    init : {"relaxed", "random"}, default="relaxed"
        First codes, as in :class:`DCF`.
    reg : float, default=0.1
        Weight of the penalty on the vectors of the relaxed start, per rating, where ratings are
        scaled to [-1, 1].
    n_sweeps : int or None, default=5
        Most sweeps over the bits of a code per iteration; fewer if nothing changes. None: until
        nothing changes.
    rating_scale : tuple (low, high) or None, default=None
        Ratings of similarity 0 and 1. None: the range of y.
    random_state : int, RandomState instance or None, default=None
        Seed of the start and of the network.
    {items}

    Attributes
    ----------
    user_codes_ : ndarray of shape (n_users, n_words), dtype uint64
        Packed as by :func:`fedrecsk.federated.pack_codes`; n_words is ceil(n_bits / 64).
    item_codes_ : ndarray of shape (n_items, n_words), dtype uint64
        Likewise.
    user_factors_, item_factors_ : ndarray of shape (n_users, n_bits_) and (n_items, n_bits_)
        The same unpacked (computed on access): +1 and -1, dtype int8.
    coefs_ : list of ndarray of shape (n_in, n_out), dtype float64
        The network's weights, layer by layer; only with `item_features`.
    intercepts_ : list of ndarray of shape (n_out,), dtype float64
        The units' intercepts; only with `item_features`.
    content_loss_curve_ : list of float
        Share of the bits of rated items that differ from the sign of the network's output after
        each iteration; only with `item_features`.
    n_bits_ : int
        Number of bits of a code.
    n_epochs_ : int
        Iterations done.
    mean_rating_ : float
        Weighted mean of y, which is predicted for unknown users and items.
    rating_scale_ : tuple of float
        The ratings of similarity 0 and 1.
    loss_curve_ : list of float
        Weighted mean squared error on the training rows after each iteration, in squared ratings.
    {ids}

    Raises
    ------
    ValueError
        By fit, besides what :class:`DCF` raises: if items have no row of features, rows have no
        item, the number of rows is wrong, an array comes without `items`, or a value is NaN or
        outside [0, 1].

    See Also
    --------
    DCF : The same without features.

    Notes
    -----
    Minimises DCF's objective plus ``lambda sum_i |d_i - f(c_i)|^2`` over codes and network, where
    c_i are the item's features.

    *Algorithm*::

        1  codes as DCF begins; the network pretrained on all items     DeepBeliefNet.pretrained
        each iteration
          2  DCF's iteration, with lambda f(c_i) added to beta Y         _content_pull
          3  Adam on |d_i - f(c_i)|^2 over rated items                  DeepBeliefNet.tune
          4  d_i = sign f(c_i) for items without ratings                _learn_content

    *Constants.* The layers are pretrained as Boltzmann machines in 10 passes over the items
    (``N_PRETRAINING_EPOCHS``), and trained in 3 passes per iteration (``N_TUNING_EPOCHS``).

    *Assumed*, because the paper's text is not freely available and its authors' code pretrains an
    auto-encoder: hidden layers are logistic, the last layer's units are moved from (0, 1) to
    (-1, 1), and Adam trains all layers.

    References
    ----------
    .. [1] Y. Zhang, H. Yin, Z. Huang, X. Du, G. Yang and D. Lian, "Discrete Deep Learning for Fast
       Content-Aware Recommendation", WSDM 2018.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedrecsk import DDL
    >>> genres = pd.DataFrame(
    ...     {"crime": [1, 1, 0, 0, 1], "comedy": [0, 0, 1, 1, 0]},
    ...     index=["heat", "fargo", "clue", "big", "new"],
    ... )
    >>> X = [["ann", "heat"], ["ann", "fargo"], ["ann", "clue"],
    ...      ["bob", "clue"], ["bob", "big"], ["bob", "heat"]]
    >>> model = DDL(8, item_features=genres, learning_rate=0.05, random_state=0)
    >>> model = model.fit(X, [5, 5, 1, 5, 5, 1])
    >>> model.recommend(["ann"], 1)[0].tolist()
    [['new']]
    """

    _: KW_ONLY
    item_features: ArrayLike | None = None
    content_weight: float = 1e-3
    hidden_layers: Sequence[int] = (200,)
    N_PRETRAINING_EPOCHS = 10
    learning_rate: float = 1e-3
    N_TUNING_EPOCHS = 3

    _parameter_constraints: ClassVar[dict] = DCF._parameter_constraints | {
        "item_features": ["array-like", "sparse matrix", None],
        "content_weight": [Interval(Real, 0, None, closed="left")],
        "hidden_layers": ["array-like"],
        "learning_rate": [Interval(Real, 0, None, closed="left")],
    }

    # ------------------------------------------------------------------------- the network

    def _begin_content(self, data, problem, state, key):
        if self.item_features is None:
            return
        state.features = aligned(self.item_features, self.items)
        sizes = [*self.hidden_layers, self.n_bits]
        seed = int(key.hashed("network") >> np.uint64(33))
        state.network = DeepBeliefNet.pretrained(
            state.features, sizes, self.N_PRETRAINING_EPOCHS, seed
        )
        state.outputs, state.content_losses = state.network.outputs(state.features), []
        self._code_unrated(problem, state)

    def _content_pull(self, problem, state):
        if self.item_features is None:
            return 0
        return np.where(problem.rated[:, None], fixed(self.content_weight * state.outputs), 0)

    def _learn_content(self, problem, state, key):
        if self.item_features is None:
            return 0
        rated = np.flatnonzero(problem.rated)
        codes = unpack_codes(state.items[rated], self.n_bits).astype(np.float64)
        generator = key.generator("network")
        for _ in range(self.N_TUNING_EPOCHS):
            state.network.tune(state.features[rated], codes, self.learning_rate, generator)
        state.outputs = state.network.outputs(state.features)
        self._code_unrated(problem, state)
        state.content_losses.append(float(np.mean((state.outputs[rated] > 0) != (codes > 0))))
        # The network is still learning though no bit has changed.
        return 1

    def _code_unrated(self, problem, state):
        """Return the codes of items without ratings: the signs of the network's outputs."""
        new = ~problem.rated
        state.items[new] = pack_codes(state.outputs[new])

    def _content_attributes(self, state):
        if self.item_features is None:
            return {}
        return {
            "coefs_": [W.copy() for W in state.network.coefs],
            "intercepts_": [c.copy() for c in state.network.intercepts],
            "content_loss_curve_": list(state.content_losses),
        }

    # -------------------------------------------------------------------------- the checks

    def _catalogue(self):
        if self.items is None and has_ids(self.item_features):
            return catalogue_of(self.item_features)
        return super()._catalogue()

    def _check_before_fit(self):
        super()._check_before_fit()
        sizes = list(self.hidden_layers)
        if not all(isinstance(size, Integral) and size > 0 for size in sizes):
            raise ValueError(
                f"hidden_layers must hold numbers of units of at least 1, got {sizes!r}; () is "
                "no hidden layer."
            )
        if self.item_features is not None:
            aligned(self.item_features, self.items)

    def _read(
        self, X, y=None, clients=None, sample_weight=None, *, reset=True, item_ids=None, **options
    ):
        if reset and self.items is None and item_ids is not None:
            self._check_items_have_features(X, sample_weight, item_ids)
        options |= {"reset": reset, "item_ids": item_ids}
        return super()._read(X, y, clients, sample_weight, **options)

    def _check_items_have_features(self, X, sample_weight, catalogue):
        """Raise for items of X that the index of `item_features` lacks; X is checked later."""
        X = as_table(X)
        if np.ndim(X) != 2 or np.shape(X)[1] < 2 or not len(X):
            return
        items = id_columns(X)[1]
        if sample_weight is not None and np.shape(sample_weight) == items.shape:
            items = items[np.asarray(sample_weight) > 0]
        check_covered(items, catalogue)

    def _largest_pull(self, n_rows):
        return super()._largest_pull(n_rows) + self.content_weight


# ------------------------------------------------------------------------- the network


class DeepBeliefNet:
    """A stack of Boltzmann machines, fine-tuned: maps features in [0, 1] to codes in (-1, 1).

    All layers have logistic units h = 1 / (1 + exp(-(W h + c))); the last layer's values are moved
    from (0, 1) to (-1, 1). `coefs` has W of each layer, and `intercepts` c.
    """

    def __init__(self, coefs: list[np.ndarray], intercepts: list[np.ndarray]) -> None:
        self.coefs: list[np.ndarray] = coefs
        self.intercepts: list[np.ndarray] = intercepts
        parameters = self.coefs + self.intercepts
        self._moments = [[np.zeros(p.shape) for p in parameters] for _ in DECAYS]
        self._n_steps = 0

    @classmethod
    def pretrained(
        cls, features: Any, sizes: Sequence[int], n_epochs: int, seed: int
    ) -> DeepBeliefNet:
        """Train a Boltzmann machine of each layer's units (`sizes`) given those below."""
        coefs, intercepts, below = [], [], features
        for depth, size in enumerate(sizes):
            machine = BernoulliRBM(
                n_components=size,
                learning_rate=PRETRAINING_RATE,
                batch_size=BATCH,
                n_iter=n_epochs,
                random_state=seed + depth,
            ).fit(below)
            coefs.append(machine.components_.T.astype(np.float64))
            intercepts.append(machine.intercept_hidden_.astype(np.float64))
            below = machine.transform(below)
        return cls(coefs, intercepts)

    def outputs(self, features: Any) -> np.ndarray:
        """Return codes of rows of features, shape (n_rows, sizes[-1])."""
        return 2 * self._layers(features)[-1] - 1

    def tune(
        self, features: Any, targets: np.ndarray, rate: float, generator: np.random.Generator
    ) -> None:
        """Run one pass of Adam over the rows, on the mean squared distance to `targets`."""
        order = generator.permutation(len(targets))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            self._step(self.gradients(features[rows], targets[rows]), rate)

    def gradients(self, features: Any, targets: np.ndarray) -> list[np.ndarray]:
        """Return gradients of half the mean squared distance: of coefs, then of intercepts."""
        layers = self._layers(features)
        slope = 2 * (2 * layers[-1] - 1 - targets) / len(targets)
        coefs, intercepts = [], []
        for depth in reversed(range(len(self.coefs))):
            slope = slope * layers[depth + 1] * (1 - layers[depth + 1])
            coefs.append(np.asarray(layers[depth].T @ slope))
            intercepts.append(slope.sum(axis=0))
            slope = slope @ self.coefs[depth].T
        return coefs[::-1] + intercepts[::-1]

    def _layers(self, features):
        """Return the values of all layers, from the features up."""
        layers = [features]
        for W, c in zip(self.coefs, self.intercepts, strict=True):
            layers.append(expit(layers[-1] @ W + c))
        return layers

    def _step(self, gradients, rate):
        """Take one step of Adam."""
        self._n_steps += 1
        corrections = [1 - decay**self._n_steps for decay in DECAYS]
        parameters = self.coefs + self.intercepts
        for p, g, m, v in zip(parameters, gradients, *self._moments, strict=True):
            m += (1 - DECAYS[0]) * (g - m)
            v += (1 - DECAYS[1]) * (g * g - v)
            p -= rate * (m / corrections[0]) / (np.sqrt(v / corrections[1]) + EPSILON)


# ---------------------------------------------------------------- the parameter item_features


def has_ids(features: Any) -> bool:
    """Return whether the features have ids: a DataFrame whose index has the items' ids."""
    return hasattr(features, "index") and hasattr(features, "columns")


def catalogue_of(features: Any) -> Ids:
    """Return the items of a DataFrame, in ascending order."""
    ids = id_array(np.asarray(features.index), "the index of item_features")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"item_features has {named('item', values[counts > 1])} more than once in its index; "
            "give each item one row."
        )
    return catalogue_ids(ids)


def aligned(features: Any, items: Any) -> Any:
    """Check `features` and return their rows in ascending order of ids, float64, maybe sparse.

    Raise ValueError if rows have no ids, items have no row, rows have no item, or values are not
    in [0, 1].
    """
    if has_ids(features):
        ids = catalogue_of(features)
        order = np.argsort(id_array(np.asarray(features.index), "ids"), kind="stable")
        if items is not None:
            _check_same(ids, catalogue_ids(items))
        features = features.iloc[order]
        kinds = {str(kind) for kind in features.dtypes}
        if kinds and all(kind.startswith("Sparse") for kind in kinds):
            return _checked(features.sparse.to_coo(), ids, features.columns)
        _check_columns(features)
        return _checked(features, ids, features.columns)
    if items is None:
        raise ValueError(
            "item_features has no ids, so its rows cannot be matched with items. Pass items= with "
            "one id per row in the same order, or a pandas DataFrame whose index holds the ids."
        )
    ids, given = catalogue_ids(items), id_array(items, "items")
    n_rows = features.shape[0] if sparse.issparse(features) else len(features)
    if n_rows != len(given):
        raise ValueError(
            f"item_features has {n_rows} rows, but items has {len(given)} ids; give one row per "
            "item, in the order of items."
        )
    rows = _checked(features, None)
    order = np.argsort(given, kind="stable")
    rows = rows[order]
    _check_range(rows, ids)
    return rows


def _checked(features, ids, columns=None):
    """Return a matrix of numbers; `ids` are those of its rows if they are in order."""
    if np.shape(features)[1:] == (0,):
        raise ValueError("item_features has no columns; give each item at least one feature.")
    rows = check_array(
        features,
        accept_sparse="csr",
        dtype=np.float64,
        ensure_all_finite=False,
        input_name="item_features",
    )
    rows = sparse.csr_array(rows) if sparse.issparse(rows) else rows
    if ids is not None:
        _check_range(rows, ids, columns)
    return rows


def _check_columns(frame):
    """Raise for columns of a DataFrame that hold no numbers."""
    for name in frame.select_dtypes(include=["object", "string", "category"]).columns:
        raise ValueError(
            f"The column {name!r} of item_features holds {frame[name].dtype}, not numbers; make "
            "columns of 0 and 1 of it, for example with pandas.get_dummies."
        )


def _check_same(ours, catalogue):
    """Raise unless the features' items are those of `items`."""
    missing = catalogue.values[ours.codes(catalogue.values) < 0]
    if len(missing):
        raise ValueError(
            f"item_features has no row for {named('item', missing)}; add what is missing to its "
            "index (a row of zeros if nothing is known), or leave the item out of items."
        )
    unknown = ours.values[catalogue.codes(ours.values) < 0]
    if len(unknown):
        raise ValueError(
            f"item_features has rows for {named('item', unknown)}, which items does not list; "
            "drop these rows, or use items=None to take the index of item_features."
        )


def _check_range(rows, ids, columns=None):
    """Raise for values that are not in [0, 1], and say whose they are."""
    if sparse.issparse(rows):
        values, places = rows.data, rows.indices
        owners = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    else:
        values, owners = rows.ravel(), np.repeat(np.arange(len(rows)), rows.shape[1])
        places = np.tile(np.arange(rows.shape[1]), len(rows))
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        place = int(bad.argmax())
        column = "" if columns is None else f" in the column {columns[places[place]]!r}"
        raise ValueError(
            f"item_features of item {ids.values[owners[place]]!s} has the value "
            f"{values[place]:g}{column}, but Boltzmann machines need finite numbers in [0, 1]; "
            "scale the features, for example with sklearn.preprocessing.MinMaxScaler (MaxAbsScaler "
            "if they are sparse and non-negative), fill in what is missing, and let ids be the "
            "index of a DataFrame, not a column."
        )


def check_covered(items: Any, catalogue: Ids) -> None:
    """Raise if item ids of X have no row in `item_features`, whose index is the catalogue."""
    if (items.dtype.kind == "U") != (catalogue.values.dtype.kind == "U"):
        kinds = [
            "strings" if ids.dtype.kind == "U" else "numbers" for ids in (items, catalogue.values)
        ]
        raise ValueError(
            f"The item ids of X are {kinds[0]} and those in the index of item_features are "
            f"{kinds[1]}; convert one of them to the type of the other."
        )
    missing = np.unique(items[catalogue.codes(items) < 0])
    if len(missing):
        raise ValueError(
            f"item_features has no row for {named('item', missing)} of X; add what is missing to "
            "its index (a row of zeros if nothing is known), or leave these rows of X out."
        )
