"""LocALS: alternating least squares on every client (Duriakova et al., EuroMLSys 2024)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, DataFrame, NotNegative
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk.federated._features import UserFeatures, UserRegression
from fedrecsk.federated._wmf import (
    Aggregation,
    ClientItemsAlgorithm,
    ImplicitMF,
    ImplicitParameters,
    n_likes,
    wmf_kernels,
)
from fedrecsk.protocol.messages import Message
from fedrecsk.protocol.participation import RoundMasks

__all__ = ["LocALS"]

CG_STEPS = 3
# Number of positives at which a user's vector takes half of what features predict.
PULL_OF_FEATURES = 1.0


@dataclass(eq=False, repr=False)
class LocALSParameters(ImplicitParameters):
    """Parameters of LocALS."""

    n_factors: AtLeast1 = 64
    _: KW_ONLY
    reg_exponent: NotNegative = 0.0
    prox: NotNegative = 10.0
    local_epochs: AtLeast1 = 1
    aggregation: Aggregation = "full"
    # With more factors users are found by conjugate gradients.
    EXACT_UP_TO: int = constant(128)


@dataclass(kw_only=True, eq=False)
class LocALSAlgorithm(LocALSParameters, ClientItemsAlgorithm):
    """Every client solves for its users, and then for its own version of the items."""

    regression: UserRegression

    @property
    def traits(self):
        traits = super().traits
        return replace(traits, refuses=traits.refuses | self.regression.refuses)

    def downloads(self, n_items):
        return super().downloads(n_items) | self.regression.downloads(self.n_factors)

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        return super().setup_fields(n_items) | self.regression.setup_fields()

    def answer(self, block, message, key):
        updates = super().answer(block, message, key)
        return updates.with_fields(**self.regression.answer(block, n_likes(block)))

    def begin(self, catalogue, sums, key):
        server = super().begin(catalogue, sums, key)
        return replace(server, user_sums=self.regression.begin(sums, self.n_factors))

    # ------------------------------------------------------------------ on the clients

    def enter(self, block, message, key):
        clients = super().enter(block, message, key)
        if block.n_users == block.n_clients:
            return clients
        order = np.argsort(block.rows, kind="stable")
        users = np.repeat(np.arange(block.n_users, dtype=np.int32), np.diff(block.indptr))
        raters = wmf_kernels.Ratings(users[order], clients.extra[order], clients.pull[order])
        starts = np.searchsorted(block.rows[order], np.arange(len(block.row_items) + 1))
        return replace(clients, raters=raters, starts=starts)

    def fields(self, n_items):
        return super().fields(n_items) | self.regression.fields(self.n_factors)

    def update(self, block, clients, message, turn, key):
        items, gram = self.received(message)
        n_steps = CG_STEPS if self.n_factors > self.EXACT_UP_TO else None
        loss = self.fit_users(block, clients, turn.active, items, gram, n_steps=n_steps)
        for _ in range(self.local_epochs - 1):
            versions, grams = self._own_items(block, clients, message, turn.active)
            self.fit_users(block, clients, turn.active, versions, grams, block.rows, n_steps)
        out = self._solve_items(block, clients, items, turn)
        updates = self.sent(block, turn, out)
        if self.regression.n_features:
            sends, n_rows = out.senders & out.is_finite, n_likes(block)
            of_users = self.regression.sums(block, n_rows, clients.users, turn, sends)
            updates = updates.with_fields(**of_users)
        return clients, updates, loss

    def _solve_items(self, block, clients, items, turn):
        """Solve for the active clients' items, given their users; return Uploads."""
        users, out = clients.users, wmf_kernels.uploads(block, turn, clients.users)
        ratings = wmf_kernels.Ratings(block.rows, clients.extra, clients.pull)
        given = block.layout, ratings, clients.raters, clients.starts, turn.active, items
        work = wmf_kernels.workspace(block, users)
        wmf_kernels.solve_items(*given, self.item_problem(clients), work, users, out)
        return out

    def _own_items(self, block, clients, message, active):
        """Return the active clients' versions of their items, and their sums of q q'."""
        items, _ = self.received(message)
        out = self._solve_items(block, clients, items, RoundMasks(active, active, True))
        versions = items[block.row_items]
        for c in np.flatnonzero(active):
            rows = slice(*block.row_indptr[c : c + 2])
            if self.aggregation == "full":
                versions[rows] = versions[rows] @ out.squares[c].T
            versions[rows] += out.rows[out.slots[rows]]
        return versions, self.own_grams(block, active, message, versions, out.squares)

    # ------------------------------------------------------------------- on the server

    def step(self, server, upload, key):
        if upload is None:
            return server
        user_sums = self.regression.step(server.user_sums, upload, server.n_clients)
        return replace(super().step(server, upload, key), user_sums=user_sums)

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        return Message(**super().final(server), **self.regression.final(server.user_sums))

    def personalize(self, block, clients, message, turn, key):
        expected = self.regression.expected(block, message)
        if expected is None:
            return super().personalize(block, clients, message, turn, key)
        # What features predict is better than what is popular.
        known = ~np.isnan(block.features).any(axis=1)
        fitted = self.personalized(block, turn.active, *self.received(message), known)
        pull = PULL_OF_FEATURES / (n_likes(block) + PULL_OF_FEATURES)
        fitted.users += (pull[:, None] * expected).astype(self.dtype)
        return fitted


@documented
@dataclass(eq=False, repr=False)
class LocALS(LocALSParameters, UserFeatures, ImplicitMF):
    """Federated alternating least squares for implicit feedback.

    Each round every client solves for its users' vectors and then for its own version q_ci of
    every item, exactly and on its own data; the server averages the versions. With default
    parameters five to ten rounds reach the accuracy of centralised ALS.

    Client c minimises::

        sum_{u of c} sum_{all i} c_ui (p_u . q_ci - r_ui)^2 + reg_user sum_u |p_u|^2
          + (reg_item / n_clients) sum_i |q_ci|^2 + prox sum_i |q_ci - q_i|^2

    where q_i is the server's vector. A row of X with y > 0 is a positive: r_ui = 1 with
    confidence c_ui = 1 + alpha * sample_weight. Everything else, rows with y <= 0 included, is
    r_ui = 0 with c_ui = 1. The size of a positive y does not matter; to make it a confidence,
    pass it as sample_weight.

    Parameters
    ----------
    n_factors : int, default=64
        Length of p_u and q_i (d); what is sent grows with it.
    n_rounds : int, default=10
        Number of rounds in total (T / E).
    alpha : float, default=1.0
        Extra confidence of a positive of weight 1.
    reg_user : float, default=30.0
        Weight of the penalty on user vectors (lambda_p).
    reg_item : float, default=10.0
        Weight of the penalty on item vectors (lambda_q), in total over all clients, as in a
        centralised fit.
    reg_exponent : float, default=0.0
        How far penalties grow with frequency (nu): reg_user counts
        ``(mean_i c_ui)^nu = (1 + alpha T_u / m)^nu`` times for a user with T_u of m items,
        and reg_item ``(1 + alpha h_i)^nu`` times for an item that the share h_i of the clients
        hold. With nu > 0 the server adds the penalties on items, and needs ``prox > 0``.
    prox : float, default=10.0
        Weight of the proximal term, which ties a client's items to the server's (mu).
        ``prox + reg_item`` must be positive.
    local_epochs : int, default=1
        Number of times that a client solves for its users and its items per round (E).
    aggregation : {"full", "clients", "holders"}, default="full"
        How the server averages the clients' versions of an item. "full": over all clients. Those
        that do not hold the item contribute the minimiser of their objective, ``A_c q_i`` with
        ``A_c = prox ((prox + reg_item / n_clients) I + P_c' P_c)^-1``, and the server multiplies
        its step by ``(I - mean A_c)^-1``; see Notes. "clients": over all
        clients; those that do not hold it contribute q_i unchanged, which learns slowly.
        "holders": over the clients that hold it. This ranks no better than popularity, because
        no upload shows which users did *not* take the item.
    upload : {"local", "all"}, default="local"
        Whether clients receive and send the rows of their own items only, or of all items. See
        Notes for what each reveals.
    {timestamps}
    {history_half_life}
    {user_features}
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u, solved by every client for the final item vectors; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The server's q_i.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if parameters contradict one another, with local differential privacy, if no y is
        positive, or if the clients diverge.

    See Also
    --------
    LocSGD : Gradient steps on the clients' items.
    GlobSGD : Gradient steps on the server.

    Notes
    -----
    *Algorithm*::

        set-up  clients report which items they hold            answer
        each round
          1  server sends q_i of own items, and sum q q'        broadcast
          2  clients solve for their users                      kernel fit_users
          3  ... for their items, and for A_c                   kernel solve_items
          4  ... and upload q_ci - A_c q_i, and A_c             kernel send
          5  server averages, preconditions and steps           step
        end
          6  server sends all items                             final
          7  clients solve for their users once more            personalize: kernel fit_users

    *What is sent.* Once: up, which items the client holds, with ``upload="local"`` as their indices
    and with "all" as a vector of 0 and 1 over all items; down, reg_item / n_clients. Each round,
    down: q_i of the client's own items and the d x d matrix ``sum q_i q_i'`` over all items. Up:
    for each own item ``q_ci - A_c q_i`` (or ``q_ci - q_i`` where aggregation is not "full"); with
    "full" the d x d matrix A_c; with "holders" a count of 1 for each item. At the end, down: q_i of
    all items, which a client needs to recommend. With ``upload="all"`` the rows of all items are
    sent in both directions, zero where the client holds nothing.

    *What it reveals.* "local" reveals to the server which items each client holds. "all" hides it
    only if uploads are summed securely. A plaintext upload of a client with one user gives p_u
    exactly: every row is a multiple of it, and A_c gives its length. The server uses sums over
    clients only.

    *The server's step* of "full". ``(I - mean A_c)^-1`` compensates for the small steps that `prox`
    allows each client. Of this step the server takes twice the share of the clients whose uploads
    were accepted in the round, at most 1, over ``1 + alpha h_i t / 2``, where h_i is the share of
    the clients that hold item i and t the mean of the diagonal of mean A_c: an item that many hold
    overshoots otherwise.

    *Training loss.* `loss_curve_` has the mean of c (r - p.q)^2 over all pairs of the round's
    users and the catalogue, weighted by confidence, with the users just solved for and the items
    just received. Early stopping uses the same over the pairs that a client does not train on.

    *Many factors.* With more than 128 factors (``EXACT_UP_TO``) a client finds its users' vectors
    in a round by three steps of conjugate gradients from the last round's vectors, which is
    inexact and faster. Items and the final user vectors are always exact.

    *Few clients.* A client that holds all users, with ``prox=0``, makes one sweep of centralised
    ALS per round. With one user per client nothing ties the clients' versions to each other
    without `prox`, so keep it positive.

    *Item features.* With `item_features` and ``prox > 0`` the server learns in each round which
    vectors m_i features predict, and adds ``reg_item / (n_clients prox) 10 / (n_i + 10) m_i`` (with
    ``reg_exponent=0``) to the mean of the uploads of an item that n_i clients hold: the penalty
    pulls items of few clients to m_i instead of 0. Nothing more is sent.

    *Short histories.* At the end, the penalty of a user with positives of total weight n_u (at
    least 1) grows by ``30 |Q| / n_u^3``, where ``Q = sum q_i q_i'`` over all items and |Q| is the
    root of the sum of its squared entries; then ``Q p_u / (|Q| n_u^3)`` is added to p_u. Otherwise
    the items that the user does not have outweigh a few positives, and rank popular items low.
    Nothing more is sent.

    *User features.* As in :class:`FedEB`, also in what is sent and revealed, with p_u in place of
    phi and weights ``w_u = n_u / (n_u + 20)``, n_u the total weight of the user's positives,
    however old. At the end a client adds ``1 / (n_u + 1)`` of what features predict to p_u,
    which is then not changed for its short history, and users of `add_users` have all of it.

    *Penalties scaled by frequency* are those of [2]_, ``lambda (T + alpha0 m)^nu`` with
    ``alpha0 = 1 / alpha`` and ``reg_user = lambda alpha0^(nu - 1) m^nu``, and likewise for items.
    In a subclass with a number as ``REG_PIVOT``, this stands in the place of m, and h_i is divided
    by its mean over held items: with sparse data, 20 and ``reg_user=8, reg_item=3,
    reg_exponent=0.75`` rank better, but users with one or two rows worse.
    Nothing more is sent: a client knows T_u, and the server h_i from the set-up. It subtracts
    ``reg_item_i / (n_clients prox) q_i`` from the mean of the uploads, and adds
    ``reg_item_i / (n_clients prox) I`` to the matrix that it divides by.

    References
    ----------
    .. [1] N. Hurley, E. Duriakova, J. Geraci, D. O'Reilly-Morgan, E. Tragos, B. Smyth and
       A. Lawlor, "ALS Algorithm for Robust and Communication-Efficient Federated Learning",
       EuroMLSys 2024, slides.
    .. [2] S. Rendle, W. Krichene, L. Zhang and Y. Koren, "Revisiting the performance of iALS on
       item recommendation benchmarks", RecSys 2022, equation 7.

    Examples
    --------
    >>> from fedrecsk import LocALS
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = LocALS(n_factors=8, random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.communication_.bytes_up == 4 * 900 + 10 * 4 * (900 * 8 + 60 * 8 * 8)
    True
    """

    _: KW_ONLY
    n_rounds: AtLeast1 = 10
    user_features: DataFrame | None = None

    _kind = LocALSAlgorithm

    def _prior_attributes(self, means):
        return {"user_factors_": means.astype(self._dtype)}

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.prox == 0 and self.reg_exponent:
            raise ValueError(
                "reg_exponent needs prox > 0, by which the server weighs its penalties on items "
                "against the clients' answers; make prox positive or set reg_exponent=0."
            )
        if self.prox == 0 and self.reg_item == 0:
            raise ValueError(
                "prox=0 with reg_item=0 leaves a client's item vectors undetermined; make one of "
                "them positive."
            )
