"""NCF: GMF, MLP and NeuMF, neural collaborative filtering (He et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from numbers import Integral
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.special import expit
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits

from fedrecsk._utils.constraints import Above0To1, AtLeast0, AtLeast1, NotNegative, Positive
from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.base import RankingMixin, check_likes
from fedrecsk.centralized._sgd import DTYPE, Epochs
from fedrecsk.models import Scores
from fedrecsk.neural import modules
from fedrecsk.neural._layout import own_settings, seeded
from fedrecsk.neural._training import adam_step
from fedrecsk.protocol.keys import Key

__all__ = ["NCF"]

fedmf_kernels: LazyModule = LazyModule("fedrecsk.federated._fedmf_kernels")

# Steps on a new user's vectors, each on all of its examples, and their learning rate.
STEPS_OF_THE_NEW = 60
RATE_OF_THE_NEW = 0.03
# Examples that are scored at once.
SCORED_AT_ONCE = 2**14
TABLES = ("user.weight", "item.weight")


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
    n_factors : int, default=64
        Length of p_u and q_i; no effect with "mlp".
    layers : sequence of int, default=(64, 32, 16, 8)
        Widths of the MLP: of its input, of which p'_u is the larger half, and of z_1 to z_L. The
        last is the paper's number of predictive factors. No effect with "gmf".
    loss : {"bce", "squared"}, default="bce"
        Cross-entropy with sampled negatives, or half the squared error of ratings, without.
    n_negatives : int, default=8
        Number of sampled negatives per positive, redrawn in each epoch, uniformly and with
        replacement, from the items without a training row of the user.
    n_epochs : int, default=12
        Number of passes over the rows, in total if `warm_start` continues a fit.
    learning_rate : float, default=0.003
        Step size of Adam in the first epoch.
    learning_rate_decay : float, default=0.8
        Factor on the learning rate after each epoch.
    batch_size : int, default=512
        Number of rows of X in a batch. Their negatives come on top.
    reg : float, default=8e-3
        Weight of |p_u|^2 + |p'_u|^2 + |q_i|^2 + |q'_i|^2 in the loss of each example.
    {held-out rows}
        Their negatives count, too.
    {epochs warm_start}
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
        Lowest and highest rating, to which predictions are clipped; only with ``loss="squared"``.
    loss_curve_ : list of float
        Weighted mean loss of each epoch, each example's before its update, without the penalty.
    {epochs attributes}

    Raises
    ------
    {epochs errors}
        If `layers` are not valid widths, or no y is positive.

    See Also
    --------
    fedrecsk.ImplicitALS : Quicker, and usually the better ranking.
    fedrecsk.BiasedMF : Quicker, and usually better at ratings.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    *Algorithm*::

        each epoch, for each batch of rows in random order
          1  draw negatives                                     _Examples.draw
          2  score all examples, and derive the loss            _train_on
          3  Adam moves what the batch has used                 _train_on

    Adam treats a vector as torch's SparseAdam does: a batch without the user or item leaves it, and
    its moments, as they are. All of it runs on one thread and does not touch torch's random
    numbers.

    `sample_weight` multiplies a row's loss and that of its negatives. It is divided by its mean,
    so that its scale does not change step sizes. A user who has rated everything has no negatives.

    `fold_in` takes STEPS_OF_THE_NEW = 60 steps of Adam from the mean user's vectors, each on
    all rows of a new user and fresh negatives, with everything else fixed. The result depends on
    nothing but the user's own rows. An unknown user or item, and with "squared" an item of `items`
    without ratings, has the mean vectors of the others.

    At the start all weights are random, but h of GMF is 1. The paper also starts NeuMF from a
    trained GMF and MLP; this does not.

    *Constants.* Initial vectors have the standard deviation ``INIT_STD = 0.1``.

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
    n_factors: AtLeast1 = 64
    _: KW_ONLY
    layers: Sequence[int] = (64, 32, 16, 8)
    loss: Literal["bce", "squared"] = "bce"
    n_negatives: AtLeast0 = 8
    n_epochs: AtLeast1 = 12
    learning_rate: Positive = 0.003
    learning_rate_decay: Above0To1 = 0.8
    batch_size: AtLeast1 = 512
    reg: NotNegative = 8e-3
    INIT_STD = 0.1

    # ------------------------------------------------------------------- before the epochs

    def _check_before_fit(self):
        widths = list(self.layers)
        are_widths = all(isinstance(width, Integral) and width >= 1 for width in widths)
        if not (are_widths and len(widths) >= 2 and widths[0] >= 2):
            raise ValueError(
                f"layers={self.layers!r} must be whole numbers: the width of the MLP's input, at "
                "least 2, and of each hidden layer, at least one, such as (64, 32, 16, 8)."
            )

    def _least_bytes(self, data):
        d, layers = self._sizes()
        n_numbers = (data.n_users + data.n_items) * (d + (layers[0] // 2 if layers else 0))
        n_numbers += sum(n_inputs * n_outputs for n_inputs, n_outputs in pairwise(layers))
        # Beside them, the two moments of Adam.
        return 3 * np.dtype(DTYPE).itemsize * n_numbers

    def _sizes(self):
        """Return the length of GMF's vectors, 0 without GMF, and the MLP's widths, or ()."""
        return (
            self.n_factors if self.architecture != "mlp" else 0,
            tuple(int(width) for width in self.layers) if self.architecture != "gmf" else (),
        )

    def _fit(self, data, report):
        if self.loss == "bce":
            check_likes(data)
        with own_settings():
            return super()._fit(data, report)

    def _start(self, rows, key):
        seed = int(key.hashed("first parameters"))
        network = _network_of(*self._sizes(), rows.n_users, rows.n_items, self.INIT_STD, seed)
        return _with_moments(network.state_dict())

    def _arranged(self, rows, key):
        return self._examples(rows, rows, self.n_negatives)

    def _examples(self, rows, seen, n_negatives):
        """Return the examples of rows, with negatives that are not in `seen`."""
        implicit = self.loss == "bce"
        targets = (rows.values > 0).astype(DTYPE) if implicit else rows.targets(rows.mean)
        known, weights = (seen.indptr, seen.items, rows.n_items), rows.relative_weights()
        n_negatives = n_negatives if implicit else 0
        return _Examples(rows.users, rows.items, targets, weights, *known, n_negatives)

    # ------------------------------------------------------------------------- each epoch

    def _pass(self, rows, arranged, run):
        network, reg, key = _network_of(*self._sizes()), float(self.reg), run.key.at(run.n_epochs)
        order = key.generator("order of rows").permutation(len(arranged.users))
        generator, rate = key.generator("negatives"), float(self._rate(run))
        batches = range(0, len(order), self.batch_size)
        loss = 0.0
        for k, start in enumerate(batches, run.n_epochs * len(batches) + 1):
            batch = arranged.draw(order[start : start + self.batch_size], generator)
            loss += _train_on(batch, network, run.state, self._losses, reg, rate, k)
        return loss / arranged.total

    def _losses(self, scores, targets, weights):
        """Return the weighted loss of each example."""
        if self.loss == "squared":
            return weights * (scores - targets) ** 2 / 2
        return binary_cross_entropy_with_logits(scores, targets, weights, reduction="none")

    # -------------------------------------------------------------------- early stopping

    def _validation_rows(self, rows, held_out, key):
        pairs = [one.users * np.int64(rows.n_items) + one.items for one in (rows, held_out)]
        users, items = divmod(np.sort(np.concatenate(pairs)), rows.n_items)
        everything = rows._replace(users=users, items=items.astype(np.int32))
        # Cross-entropy has no meaning without negatives.
        examples = self._examples(held_out, everything, max(1, self.n_negatives))
        batch = examples.draw(np.arange(len(examples.users)), key.generator("held-out negatives"))
        return batch, examples.total

    def _validation_loss(self, rows, held_out):
        (users, items, *targets_and_weights), total = held_out
        codes = np.argsort(rows.rank_of_user)[users]
        scores = torch.from_numpy(self._scores(codes, items.numpy()))
        return float(
            self._losses(scores, *(one.double() for one in targets_and_weights)).sum() / total
        )

    # ------------------------------------------------------------------ the fitted model

    def _fitted(self, rows, state):
        weights = {name: moments[0].copy() for name, moments in state.items()}
        users, items = (weights.pop(name) for name in TABLES)
        rated = np.bincount(rows.items, minlength=rows.n_items) > 0
        means = users.mean(axis=0), items[rated].mean(axis=0)
        fitted = {}
        if self.loss == "squared":
            # Nothing has moved the vectors of the others.
            items[~rated] = means[1]
            fitted = {"global_bias_": rows.mean, "rating_range_": rows.range, "_scale": rows.scale}
        return fitted | {
            "user_factors_": users[rows.rank_of_user],
            "item_factors_": items,
            "weights_": weights,
            "_fitted_sizes": self._sizes(),
            "_means": means,
        }

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.loss == "squared"
        return tags

    def _model(self):
        own = {"pairs": self._score_pairs, "board": self._score_all}
        return Scores(n_items=self.n_items_, response=self._response, **own)

    def _response(self, scores):
        if self.loss == "bce":
            return expit(scores)
        return np.clip(self.global_bias_ + self._scale * scores, *self.rating_range_)

    def _score_pairs(self, users, items):
        return self._scores(users, items[:, None])[:, 0]

    def _score_all(self, users):
        everything = np.broadcast_to(np.arange(self.n_items_), (len(users), self.n_items_))
        return self._scores(users, everything)

    def _scores(self, users, items):
        """Return scores of each user (n,) with its items (n, n_each), codes, -1 for unknown."""
        network, scores = _network_of(*self._fitted_sizes), np.empty(items.shape)
        factors = zip(TABLES, (self.user_factors_, self.item_factors_), self._means, strict=True)
        # The last row is that of unknown users or items.
        tables = {name: np.concatenate([rows, mean[None]]) for name, rows, mean in factors}
        parameters = _tensors(tables | self.weights_)
        n_users = max(1, SCORED_AT_ONCE // max(1, items.shape[1]))
        with own_settings(), torch.no_grad():
            for start in range(0, len(users), n_users):
                part = slice(start, start + n_users)
                codes = np.broadcast_arrays(users[part, None], items[part])
                codes = [
                    torch.from_numpy(one % len(table))
                    for one, table in zip(codes, tables.values(), strict=True)
                ]
                scores[part] = functional_call(network, parameters, tuple(codes)).numpy()
        return scores

    def to_module(self) -> torch.nn.Module:
        """Return the fitted network as a torch module, with copies of the parameters.

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
        tables = dict(zip(TABLES, (self.user_factors_, self.item_factors_), strict=True))
        module = _network_of(*self._fitted_sizes, self.n_users_, self.n_items_)
        module.load_state_dict(_tensors(tables | self.weights_))
        return module

    # -------------------------------------------------------------------------- new users

    def _new_user_attributes(self, data):
        rows = [slice(*ends) for ends in zip(data.indptr[:-1], data.indptr[1:], strict=True)]
        with own_settings():
            found = [
                self._newcomer(data.items[own], data.values[own], data.weights[own]) for own in rows
            ]
        return {"user_factors_": np.array(found, DTYPE)}

    def _newcomer(self, items, values, weights):
        """Return the vectors of a user with these rows."""
        implicit, n = self.loss == "bce", len(items)
        targets = values > 0 if implicit else (values - self.global_bias_) / self._scale
        examples = _Examples(
            np.zeros(n, np.int32),
            items,
            targets.astype(DTYPE),
            (weights / weights.mean()).astype(DTYPE),
            np.array([0, n]),
            items,
            self.n_items_,
            self.n_negatives if implicit else 0,
        )
        network, generator = _network_of(*self._fitted_sizes), Key(0).generator("negatives")
        fixed = _tensors(self.weights_ | {"item.weight": self.item_factors_})
        user = torch.tensor(self._means[0][None], requires_grad=True)
        mean, square = torch.zeros_like(user), torch.zeros_like(user)
        for step in range(STEPS_OF_THE_NEW):
            rate = RATE_OF_THE_NEW * (1 - step / STEPS_OF_THE_NEW)
            _, items, targets, weights = examples.draw(np.arange(n), generator)
            parameters, pairs = fixed | {"user.weight": user}, (torch.zeros_like(items), items)
            losses = self._losses(functional_call(network, parameters, pairs), targets, weights)
            penalty = float(self.reg) * weights.sum() * user.square().sum()
            (gradient,) = torch.autograd.grad((losses.sum() + penalty) / weights.numel(), user)
            adam_step([user], [mean], [square], [gradient], step + 1, rate)
        return user[0].detach().numpy()


class _Examples(NamedTuple):
    """Rows of X in the order of their users, and what their negatives are drawn from."""

    users: np.ndarray
    items: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    # Items ``seen[indptr[u]:indptr[u + 1]]``, ascending, are no negatives of user u.
    indptr: np.ndarray
    seen: np.ndarray
    n_items: int
    # Of each row.
    n_negatives: int

    @property
    def total(self):
        """Return the sum of the weights of all examples."""
        n_unseen = self.n_items - np.diff(self.indptr)
        have = (self.targets > 0) & (n_unseen[self.users] > 0)
        return float((1.0 + self.n_negatives * have) @ self.weights)

    def draw(self, rows, generator):
        """Return users (n,) of rows, and (n, 1 + n_negatives) items, targets and weights."""
        # The row itself is first, then come its negatives, of weight 0 if it has none.
        users, shape = self.users[rows], (len(rows), 1 + self.n_negatives)
        items, targets = np.empty(shape, np.int64), np.zeros(shape, self.targets.dtype)
        items[:, 0], targets[:, 0] = self.items[rows], self.targets[rows]
        weights = np.repeat(self.weights[rows, None], shape[1], axis=1)
        if self.n_negatives:
            n_unseen = self.n_items - (self.indptr[users + 1] - self.indptr[users])
            have = (targets[:, 0] > 0) & (n_unseen > 0)
            weights[~have, 1:] = 0
            ranks = generator.integers(np.maximum(n_unseen, 1)[:, None], size=items[:, 1:].shape)
            whose, found = np.repeat(users, self.n_negatives), np.empty(ranks.size, np.int64)
            fedmf_kernels.unseen_items(ranks.ravel(), whose, self.indptr, self.seen, found)
            items[:, 1:] = np.where(have[:, None], found.reshape(ranks.shape), items[:, :1])
        return tuple(
            torch.from_numpy(one) for one in (users.astype(np.int64), items, targets, weights)
        )


def _network_of(n_factors, layers, n_users=1, n_items=1, std=1.0, seed=0):
    """Return the module of these sizes with its first parameters."""
    sizes = {"n_users": n_users, "n_items": n_items, "std": std}
    with seeded(seed):
        if not layers:
            network = modules.GMF(**sizes, n_factors=n_factors)
        elif not n_factors:
            network = modules.MLP(**sizes, layers=layers)
        else:
            network = modules.NeuMF(**sizes, n_factors=n_factors, layers=layers)
        nn.init.xavier_uniform_(network.output.weight)
    nn.init.zeros_(network.output.bias)
    # GMF begins as a plain matrix factorisation.
    network.output.weight.data[:, :n_factors] = 1
    return network


def _tensors(arrays):
    """Return tensors that share the arrays' memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _with_moments(parameters):
    """Return arrays (3, *shape): each parameter, and zeros for the two moments of Adam."""
    return {
        name: np.stack([one.numpy(), *np.zeros((2, *one.shape))]).astype(DTYPE)
        for name, one in parameters.items()
    }


def _train_on(batch, network, state, losses_of, reg, learning_rate, n_steps):
    """Take step `n_steps`, from 1, of Adam on a batch, in place; return its summed loss."""
    # `state` has each parameter and its two moments, and `reg` counts for each example.
    users, items, targets, weights = batch
    # Adam sees only the rows of the tables that the batch uses, as if there were no others.
    parts, used, codes = _tensors(state), {}, {}
    for name, whose in zip(TABLES, (users, items), strict=True):
        used[name], codes[name] = whose.unique(return_inverse=True)
        parts[name] = parts[name].index_select(1, used[name])
    parameters = {name: part[0].requires_grad_() for name, part in parts.items()}
    codes["user.weight"] = codes["user.weight"][:, None].expand(items.shape)
    losses = losses_of(functional_call(network, parameters, (*codes.values(),)), targets, weights)
    penalty = sum(
        torch.bincount(codes[name].ravel(), weights.ravel()) @ parameters[name].square().sum(1)
        for name in TABLES
    )
    goal = (losses.sum() + reg * penalty) / weights.numel()
    gradients = torch.autograd.grad(goal, list(parameters.values()))
    adam_step(*zip(*parts.values(), strict=True), gradients, n_steps, learning_rate)
    for name in TABLES:
        torch.from_numpy(state[name]).index_copy_(1, used[name], parts[name])
    return losses.sum().item()
