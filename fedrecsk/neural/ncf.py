"""NCF: GMF, MLP and NeuMF, neural collaborative filtering (He et al. 2017)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from scipy.special import expit
from sklearn.utils.validation import check_is_fitted

from fedrecsk import _kernels
from fedrecsk._docs import documented
from fedrecsk._sklearn import Interval, StrOptions, get_threadpool_controller
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.centralized._sgd import DTYPE, Epochs
from fedrecsk.neural import modules
from fedrecsk.neural._ncf_examples import Examples
from fedrecsk.neural._ncf_network import Network, Room
from fedrecsk.neural._ncf_trainer import Trainer
from fedrecsk.simulation.keys import Key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sklearn.utils import Tags

# Steps on a new user's vectors, each on all of its examples, and their learning rate.
STEPS_OF_THE_NEW = 60
RATE_OF_THE_NEW = 0.03
# Examples that are scored at once.
SCORED_AT_ONCE = 2**14


@documented
@dataclass(eq=False, repr=False)
class NCF(RankingMixin, Epochs):
    """Neural collaborative filtering: a score learnt from the vectors of user and item.

    Of user u and item i, GMF has the vectors p_u and q_i, and the MLP others, p'_u and q'_i. The
    score of a pair is that of NeuMF, or of one of its parts::

        GMF     s_ui = b + h . (p_u * q_i)
        MLP     s_ui = b + h' . z_L,    z_l = ReLU(W_l z_(l-1) + b_l),    z_0 = (p'_u, q'_i)
        NeuMF   s_ui = b + h . (p_u * q_i) + h' . z_L

    By default the feedback is implicit: rows of X with y > 0 (all, if y is None) are positives
    with target 1, rows with y <= 0 have target 0, and each positive brings `n_negatives` items that
    its user has not rated, with target 0. The loss is the cross-entropy of the sigmoid of s_ui,
    and `predict` gives that sigmoid, the probability of a positive. With ``loss="squared"`` the
    rows' y are ratings, estimated by ``global_bias_`` plus s_ui in standard deviations; it
    remains a ranking model, whose `score` is NDCG@10.

    Parameters
    ----------
    architecture : {"neumf", "gmf", "mlp"}, default="neumf"
        The score.
    n_factors : int, default=8
        Length of p_u and q_i; no effect with "mlp".
    layers : sequence of int, default=(64, 32, 16, 8)
        Widths of the MLP: of its input, of which p'_u is the larger half, and of z_1 to z_L. The
        last is the paper's number of predictive factors. No effect with "gmf".
    loss : {"bce", "squared"}, default="bce"
        Cross-entropy with sampled negatives, or half the squared error of ratings, without.
    n_negatives : int, default=4
        Number of sampled negatives per positive, redrawn in each epoch, uniformly and with
        replacement, from the items without a training row of the user.
    n_epochs : int, default=12
        Number of passes over the rows, in total if `warm_start` continues a fit.
    learning_rate : float, default=0.003
        Step size of Adam in the first epoch.
    learning_rate_decay : float, default=0.8
        Factor on the learning rate after each epoch.
    batch_size : int, default=256
        Number of rows of X in a batch. Their negatives come on top.
    reg : float, default=3e-4
        Weight of |p_u|^2 + |p'_u|^2 + |q_i|^2 + |q'_i|^2 in the loss of each example.
    init_std : float, default=0.1
        Standard deviation of the first vectors. The paper has .01.
    early_stopping : bool, default=False
        Whether to hold out rows, stop when the loss on them no longer improves, and keep the best
        epoch.
    validation_fraction : float, default=0.1
        Expected share of rows held out.
    n_iter_no_change : int, default=10
        Number of epochs without progress after which to stop.
    tol : float, default=1e-4
        Smallest decrease of the mean loss of held-out rows and negatives that is progress.
    warm_start : bool, default=False
        Whether to continue the last fit to `n_epochs` epochs in total, exactly as if it had never
        stopped.
    random_state : int, RandomState instance or None, default=None
        Seed of the first parameters, the order of rows, negatives and held-out rows.
    {items}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, width), dtype float32
        A row (p_u, p'_u) for each user.
    item_factors_ : ndarray of shape (n_items, width), dtype float32
        A row (q_i, q'_i) for each item.
    weights_ : dict of str to ndarray
        Weights and biases of the layers, under the names of ``fedrecsk.neural.modules``.
    global_bias_ : float
        Weighted mean of the ratings; only with ``loss="squared"``.
    rating_range_ : tuple of float
        Least and greatest rating, to which predictions are clipped; only with ``loss="squared"``.
    loss_curve_ : list of float
        Weighted mean loss of each epoch, each example's before its update, without the penalty.
    n_epochs_ : int
        Epochs run.
    best_epoch_, validation_curve_ : int, list of float
        With early stopping: the epoch after which the model was best, 0 for the start, and
        the held-out loss of the start and after each epoch.
    {user_ids_}
    {item_ids_}
    {n_users_}
    {n_items_}

    Raises
    ------
    ValueError
        By fit: if `layers` are no widths; if no y is positive; if the parameters become infinite
        or NaN; if no row is left to hold out or to train on; if data or parameters have changed
        before a warm start.

    See Also
    --------
    fedrecsk.ImplicitALS : Quicker, and usually the better ranking.
    fedrecsk.BiasedMF : Quicker, and usually better at ratings.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    *Algorithm*::

        each epoch, for each batch of rows in random order
          1  draw negatives                                     Examples.draw
          2  score all examples                                 Network.forward
          3  derive the loss by the scores,                     kernel slopes_of
          4  ... and by the vectors and weights                 Network.backward
          5  Adam moves what the batch has used                 kernel step

    Adam treats a vector as torch's SparseAdam does: a batch without the user or item leaves it, and
    its moments, as they are. All of it runs on one thread and does not touch torch's
    random numbers; torch is needed for :meth:`to_module` only.

    `sample_weight` multiplies a row's loss and that of its negatives. It is divided by its mean,
    so that its scale does not change step sizes. A user who has rated everything has no negatives.

    `fold_in` takes STEPS_OF_THE_NEW = 60 steps of Adam from the mean user's vectors, each on
    all rows of a new user and fresh negatives, with everything else fixed. The result depends on
    nothing but the user's own rows. An unknown user or item, and with "squared" an item of `items`
    without ratings, has the mean vectors of the others.

    At the start all weights are random, but h of GMF is 1. The paper also starts NeuMF from a
    trained GMF and MLP; this does not.

    References
    ----------
    .. [1] X. He, L. Liao, H. Zhang, L. Nie, X. Hu, T.-S. Chua, "Neural collaborative filtering",
       WWW 2017, equations 7 to 12.

    Examples
    --------
    >>> from fedrecsk.neural import NCF
    >>> X = [["ann", "alien"], ["ann", "aliens"], ["bob", "alien"], ["bob", "aliens"],
    ...      ["bob", "predator"], ["cat", "emma"], ["cat", "persuasion"]]
    >>> model = NCF("gmf", learning_rate=0.1, random_state=0).fit(X)
    >>> model.recommend(["ann"], 1)[0].tolist()
    [['predator']]
    >>> model.recommend(["dan"], 1, interactions=[["dan", "emma"]])[0].tolist()
    [['persuasion']]
    """

    architecture: Literal["neumf", "gmf", "mlp"] = "neumf"
    n_factors: int = 8
    _: KW_ONLY
    layers: Sequence[int] = (64, 32, 16, 8)
    loss: Literal["bce", "squared"] = "bce"
    n_negatives: int = 4
    n_epochs: int = 12
    learning_rate: float = 0.003
    learning_rate_decay: float = 0.8
    batch_size: int = 256
    reg: float = 3e-4
    init_std: float = 0.1

    _parameter_constraints: ClassVar[dict] = Epochs._parameter_constraints | {
        "architecture": [StrOptions({"neumf", "gmf", "mlp"})],
        "n_factors": [Interval(Integral, 1, None, closed="left")],
        "layers": ["array-like"],
        "loss": [StrOptions({"bce", "squared"})],
        "n_negatives": [Interval(Integral, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "reg": [Interval(Real, 0, None, closed="left")],
        "init_std": [Interval(Real, 0, None, closed="neither")],
    }

    # ------------------------------------------------------------------- before the epochs

    def _check_before_fit(self):
        widths = list(self.layers)
        sound = all(isinstance(width, Integral) and width >= 1 for width in widths)
        if not (sound and len(widths) >= 2 and widths[0] >= 2):
            raise ValueError(
                f"layers={self.layers!r} must be whole numbers: the width of the MLP's input, at "
                "least 2, and of each hidden layer, at least one, such as (64, 32, 16, 8)."
            )

    def _least_bytes(self, data):
        network = self._made_network()
        n_numbers = data.n_users * network.user_width + data.n_items * network.item_width
        # Beside them, the two moments of Adam.
        return 3 * np.dtype(DTYPE).itemsize * (n_numbers + network.n_weights)

    def _made_network(self):
        return Network(
            self.n_factors if self.architecture != "mlp" else 0,
            tuple(int(width) for width in self.layers) if self.architecture != "gmf" else (),
        )

    def _fit(self, data, report):
        if self.loss == "bce":
            check_likes(data)
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            return super()._fit(data, report)

    def _start(self, rows, key):
        network, generator = self._made_network(), key.generator("first parameters")
        state = {
            "users": self._vectors(rows.n_users, network.user_width, generator),
            "items": self._vectors(rows.n_items, network.item_width, generator),
            "weights": np.zeros((3, 1, network.n_weights), DTYPE),
        }
        weights = network.views(state["weights"][0, 0])
        for name, weight in weights.items():
            if name.endswith("weight"):
                # As Glorot and Bengio have it.
                bound = np.sqrt(6 / sum(weight.shape))
                weight[:] = generator.uniform(-bound, bound, weight.shape)
        # GMF begins as a plain matrix factorisation.
        weights["output.weight"][:, : network.n_factors] = 1
        return state

    def _vectors(self, n, width, generator):
        """Normal vectors, followed by the moments of Adam."""
        stacked = np.zeros((3, n, width), DTYPE)
        stacked[0] = self.init_std * generator.standard_normal((n, width))
        return stacked

    def _arranged(self, rows, key):
        return self._examples(rows, rows, self.n_negatives)

    def _examples(self, rows, seen, n_negatives):
        """Examples of some rows, with negatives that are not in others."""
        implicit = self.loss == "bce"
        targets = (rows.values > 0).astype(DTYPE) if implicit else rows.targets(rows.mean)
        return Examples(
            rows.users,
            rows.items,
            targets,
            rows.relative_weights(),
            seen.indptr,
            seen.items,
            rows.n_items,
            n_negatives if implicit else 0,
        )

    # ------------------------------------------------------------------------- each epoch

    def _pass(self, rows, arranged, run):
        squared, reg = self.loss == "squared", float(self.reg)
        network, n_most = self._made_network(), min(len(rows.users), self.batch_size)
        trainer = Trainer(network, arranged, run.state, n_most, squared=squared, reg=reg)
        key = run.key.at(run.n_epochs)
        order = key.generator("order of rows").permutation(len(arranged.users))
        rate, n_batches = self._rate(run), -(-len(order) // self.batch_size)
        loss = 0.0
        # What diverges is found, and named, after the epoch.
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(n_batches):
                batch = order[k * self.batch_size : (k + 1) * self.batch_size]
                loss += trainer.step(batch, rate, run.n_epochs * n_batches + k + 1, key)
        return loss / arranged.total

    # -------------------------------------------------------------------- early stopping

    def _validation_rows(self, rows, held_out, key):
        everything = rows._replace(
            users=np.concatenate([rows.users, held_out.users]),
            items=np.concatenate([rows.items, held_out.items]),
        )
        order = np.lexsort((everything.items, everything.users))
        everything = everything._replace(
            users=everything.users[order], items=everything.items[order]
        )
        # Cross-entropy has no meaning without negatives.
        examples = self._examples(held_out, everything, max(1, self.n_negatives))
        if self.loss == "squared":
            examples = examples._replace(targets=((held_out.values - rows.mean) / rows.scale))
        return examples, examples.draw(np.arange(len(examples.users)), key)

    def _validation_loss(self, rows, held_out):
        examples, (items, targets, weights) = held_out
        users = np.argsort(rows.rank_of_user)[examples.users]
        scores = self._scores(users, items)
        losses = np.empty(scores.shape)
        squared = self.loss == "squared"
        total = _kernels.ncf.slopes_of(
            scores, targets.astype(float), weights.astype(float), squared, losses
        )
        return float(total / examples.total)

    # ------------------------------------------------------------------ the fitted model

    def _fitted(self, rows, state):
        network = self._made_network()
        users, items = state["users"][0], state["items"][0].copy()
        rated = np.bincount(rows.items, minlength=rows.n_items) > 0
        means = users.mean(axis=0), items[rated].mean(axis=0)
        fitted = {}
        if self.loss == "squared":
            # Nothing has moved the vectors of the others.
            items[~rated] = means[1]
            fitted = {
                "global_bias_": rows.mean,
                "rating_range_": rows.range,
                "_scale": rows.scale,
            }
        return fitted | {
            "user_factors_": users[rows.rank_of_user],
            "item_factors_": items,
            "weights_": network.views(state["weights"][0, 0].copy()),
            "_network": network,
            "_means": means,
        }

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.loss == "squared"
        return tags

    def _response(self, scores):
        if self.loss == "bce":
            return expit(scores)
        return np.clip(self.global_bias_ + self._scale * scores, *self.rating_range_)

    def _score_pairs(self, users, items):
        return self._response(self._scores(users, items[:, None])[:, 0])

    def _score_all(self, users):
        everything = np.broadcast_to(np.arange(self.n_items_), (len(users), self.n_items_))
        return self._scores(users, everything)

    def _scores(self, users, items):
        """Scores of each user (n,) with its items (n, n_each), codes, -1 for unknown."""
        scores, room = np.empty(items.shape), Room(DTYPE)
        P = _with(self._means[0], self.user_factors_)
        Q = _with(self._means[1], self.item_factors_)
        n_users = max(1, SCORED_AT_ONCE // max(1, items.shape[1]))
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            for start in range(0, len(users), n_users):
                part = slice(start, start + n_users)
                rows = P[users[part]], Q[items[part]]
                scores[part], _ = self._network.forward(self.weights_, *rows, room)
        return scores

    def to_module(self) -> torch.nn.Module:
        """The fitted network as a torch module, with copies of the parameters.

        Returns
        -------
        module : GMF, MLP or NeuMF of ``fedrecsk.neural.modules``
            ``module(users, items)`` gives the scores, before the sigmoid, of positions in
            `user_ids_` and `item_ids_`.

        Examples
        --------
        >>> import torch
        >>> from fedrecsk.neural import NCF
        >>> model = NCF(n_epochs=1, random_state=0).fit([["ann", "tea"], ["bob", "jam"]])
        >>> scores = model.to_module()(torch.tensor([0, 1]), torch.tensor([0, 0]))
        >>> probabilities = scores.sigmoid().detach().numpy()
        >>> predicted = model.predict([["ann", "jam"], ["bob", "jam"]])
        >>> bool(abs(probabilities - predicted).max() < 1e-6)
        True
        """
        check_is_fitted(self)
        d, layers = self._network
        sizes = {"n_users": self.n_users_, "n_items": self.n_items_}
        # Its first numbers are drawn, and then replaced.
        with torch.random.fork_rng(devices=[]):
            if not layers:
                module = modules.GMF(**sizes, n_factors=d)
            elif not d:
                module = modules.MLP(**sizes, layers=layers)
            else:
                module = modules.NeuMF(**sizes, n_factors=d, layers=layers)
        tables = {"user.weight": self.user_factors_, "item.weight": self.item_factors_}
        state = {n: torch.from_numpy(a.copy()) for n, a in (tables | self.weights_).items()}
        module.load_state_dict(state)
        return module

    # -------------------------------------------------------------------------- new users

    def _new_user_attributes(self, data):
        rows = [slice(*ends) for ends in zip(data.indptr[:-1], data.indptr[1:], strict=True)]
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            found = [
                self._newcomer(data.items[own], data.values[own], data.weights[own]) for own in rows
            ]
        return {"user_factors_": np.array(found, DTYPE)}

    def _newcomer(self, items, values, weights):
        """The vectors of a user with these rows."""
        implicit = self.loss == "bce"
        targets = values > 0 if implicit else (values - self.global_bias_) / self._scale
        n = len(items)
        examples = Examples(
            np.zeros(n, np.int32),
            items,
            targets.astype(DTYPE),
            (weights / weights.mean()).astype(DTYPE),
            np.array([0, n]),
            items,
            self.n_items_,
            self.n_negatives if implicit else 0,
        )
        weights = np.concatenate([weight.ravel() for weight in self.weights_.values()])
        state = {
            "users": np.zeros((3, 1, self._network.user_width), DTYPE),
            "items": self.item_factors_[None],
            "weights": weights[None, None],
        }
        state["users"][0] = self._means[0]
        reg, squared = float(self.reg), not implicit
        trainer = Trainer(
            self._network, examples, state, n, trained=("users",), squared=squared, reg=reg
        )
        for step in range(STEPS_OF_THE_NEW):
            rate = RATE_OF_THE_NEW * (1 - step / STEPS_OF_THE_NEW)
            trainer.step(np.arange(n), rate, step + 1, Key(0).at(step))
        return state["users"][0, 0]


def _with(unknown, rows):
    """The rows, and one more at -1, the place of unknown users or items."""
    return np.concatenate([rows, unknown[None]])
