"""DDL: binary codes of items from ratings and content (Zhang, Yin et al., WSDM 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral

import numpy as np
from scipy.special import expit
from sklearn.neural_network import BernoulliRBM

from fedrecsk._utils.constraints import NotNegative
from fedrecsk._utils.docs import documented
from fedrecsk._utils.integers import fixed
from fedrecsk.base._item_prior import ItemContent
from fedrecsk.centralized.dcf import DCF, signs_of
from fedrecsk.data.item_features import aligned
from fedrecsk.models._codes import pack_codes

# Of the network: rows per step, the learning rate of pretraining, and Adam's decays.
BATCH, PRETRAINING_RATE = 100, 0.05
DECAYS, EPSILON = (0.9, 0.999), 1e-8


@documented
@dataclass(eq=False, repr=False)
class DDL(ItemContent, DCF):
    """Discrete deep learning: DCF with item codes close to those predicted from item features.

    A deep belief network f maps an item's features to [-1, 1]^n_bits. Items' codes are fitted to
    ratings and to the network's outputs, and the network is trained on the codes in turn. An
    item without ratings is given the signs of its output, so new items can be recommended. Without
    `item_features` this is :class:`DCF`.

    Parameters
    ----------
    {n_bits}
    item_features : DataFrame, array or sparse matrix of shape (n_items, n_features), default=None
        Numbers in [0, 1], a row for each item. The index of a pandas DataFrame, or the first
        column of a polars one, holds the item ids, and is the catalogue unless `items` is given.
        The rows of an array or a sparse matrix are in the order of `items`. Features are a
        parameter, like `items`, because cross-validation splits the arguments of `fit` by rows of
        X, and features have rows for items.
    content_weight : float, default=1e-3
        Weight of the squared distances between codes and the network's outputs (lambda), in units
        in which a rating's error counts in bits.
    hidden_layers : sequence of int, default=(200,)
        Units of the network's layers between the features and the codes.
    learning_rate : float, default=1e-3
        Step of Adam in the network's training on the codes.
    n_epochs : int, default=15
        Number of iterations. Without features they end when no bit changes.
    {codes parameters}
    random_state : int, RandomState instance or None, default=None
        Seed of the start and of the network.
    {items}

    Attributes
    ----------
    {codes attributes}
    coefs_ : list of ndarray of shape (n_in, n_out), dtype float64
        The network's weights, layer by layer; only with `item_features`.
    intercepts_ : list of ndarray of shape (n_out,), dtype float64
        The units' intercepts; only with `item_features`.
    content_loss_curve_ : list of float
        Share of the bits of rated items that differ from the sign of the network's output after
        each iteration; only with `item_features`.
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

        1  codes as DCF begins; the network pretrained on all items     _DeepBeliefNet.pretrained
        each iteration
          2  DCF's iteration, with lambda f(c_i) added to beta Y         _iterate
          3  Adam on |d_i - f(c_i)|^2 over rated items                  _DeepBeliefNet.tune
          4  d_i = sign f(c_i) for items without ratings                _ask_network

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
    content_weight: NotNegative = 1e-3
    hidden_layers: Sequence[int] = (200,)
    N_PRETRAINING_EPOCHS = 10
    learning_rate: NotNegative = 1e-3
    N_TUNING_EPOCHS = 3

    _bounds_features = True

    # ------------------------------------------------------------------------- the network

    def _start(self, problem, key):
        state = super()._start(problem, key)
        if self.item_features is not None:
            features = aligned(self.item_features, self.items, bounded=True)
            sizes, n_epochs = [*self.hidden_layers, self.n_bits], self.N_PRETRAINING_EPOCHS
            seed = int(key.hashed("network") >> np.uint64(33))
            network = _DeepBeliefNet.pretrained(features, sizes, n_epochs, seed)
            state |= {"features": features, "network": network, "content_losses": []}
            self._ask_network(problem, state)
        return state

    def _ask_network(self, problem, state):
        """Compute the network's outputs, whose signs are the codes of items without ratings."""
        state["outputs"] = outputs = state["network"].outputs(state["features"])
        state["items"][~problem.rated] = signs_of(outputs[~problem.rated])

    def _iterate(self, problem, state, key):
        if self.item_features is None:
            return super()._iterate(problem, state, key)
        rated, network = np.flatnonzero(problem.rated), state["network"]
        pull = np.zeros(state["outputs"].shape, dtype=np.int64)
        pull[rated] = fixed(self.content_weight * state["outputs"][rated])
        super()._iterate(problem, state, key, pull)
        codes, generator = state["items"][rated].astype(np.float64), key.generator("network")
        for _ in range(self.N_TUNING_EPOCHS):
            network.tune(state["features"][rated], codes, self.learning_rate, generator)
        self._ask_network(problem, state)
        state["content_losses"].append(np.mean((state["outputs"][rated] > 0) != (codes > 0)))
        # The network is still learning though no bit has changed.
        return 1

    def _finished(self, problem, state):
        attributes = super()._finished(problem, state)
        if self.item_features is None:
            return attributes
        return attributes | {
            "coefs_": [W.copy() for W in state["network"].coefs],
            "intercepts_": [c.copy() for c in state["network"].intercepts],
            "content_loss_curve_": list(map(float, state["content_losses"])),
        }

    def _knows_content(self):
        return hasattr(self, "coefs_")

    def _with_items(self, rows):
        outputs = _DeepBeliefNet(self.coefs_, self.intercepts_).outputs(rows)
        return {"item_codes_": np.concatenate([self.item_codes_, pack_codes(outputs)])}

    # -------------------------------------------------------------------------- the checks

    def _check_before_fit(self):
        super()._check_before_fit()
        sizes = list(self.hidden_layers)
        if not all(isinstance(size, Integral) and size > 0 for size in sizes):
            raise ValueError(
                f"hidden_layers must hold numbers of units of at least 1, got {sizes!r}; () is "
                "no hidden layer."
            )

    def _largest_pull(self, n_rows):
        return super()._largest_pull(n_rows) + self.content_weight


# ------------------------------------------------------------------------- the network


class _DeepBeliefNet:
    """A stack of Boltzmann machines, fine-tuned: logistic units, the last moved to (-1, 1)."""

    def __init__(self, coefs, intercepts):
        self.coefs, self.intercepts = coefs, intercepts
        parameters = coefs + intercepts
        self._moments = [[np.zeros(p.shape) for p in parameters] for _ in DECAYS]
        self._n_steps = 0

    @classmethod
    def pretrained(cls, features, sizes, n_epochs, seed):
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

    def outputs(self, features):
        """Return codes of rows of features, shape (n_rows, sizes[-1])."""
        return 2 * self._layers(features)[-1] - 1

    def tune(self, features, targets, rate, generator):
        """Run one pass of Adam over the rows, on the mean squared distance to `targets`."""
        order = generator.permutation(len(targets))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            self._step(self.gradients(features[rows], targets[rows]), rate)

    def gradients(self, features, targets):
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
