"""MetaMF: a network on the server makes every client's model (Lin et al., SIGIR 2020)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch

from fedrecsk._utils.constraints import Above0To1, AtLeast1, NotNegative, Positive, RatingRange
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import constant
from fedrecsk.base import RatingMixin
from fedrecsk.data._checks import scale_of
from fedrecsk.federated._feedback import data_sizes
from fedrecsk.federated._ratings import RATINGS, Scale, sums_of_ratings
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.models import Scores, clipped
from fedrecsk.neural._layout import own_settings
from fedrecsk.neural._metamf_network import (
    CLIENTS_AT_A_TIME,
    Made,
    Parts,
    Sizes,
    first_weights,
    n_numbers,
    parts,
    received,
    scores,
)
from fedrecsk.neural._training import adam_step
from fedrecsk.protocol.algorithm import Algorithm, Traits
from fedrecsk.protocol.messages import Form, Message, PerClient
from fedrecsk.updates import FieldSpec, SparseRows, Updates

__all__ = ["MetaMF"]

# What the server makes for a client, and the attributes in which a device keeps it.
PARTS = {"table": "user_tables_", "basis": "user_bases_", "scorer": "user_scorers_"}

NO_LOCAL_DP = (
    "clients upload the rows of their own items, and their gradients are not clipped. Use RFRec "
    "for local differential privacy."
)
NO_AGGREGATOR = (
    "its server propagates single gradients through its network, so the aggregator would have no "
    "effect; set aggregator=None."
)


@dataclass(frozen=True)
class MetaMFServer:
    """What the server knows: its network, the clients' codes, and Adam's means of gradients."""

    # By layer, as in `network_`.
    network: dict[str, np.ndarray]
    # (n_clients, code_size)
    codes: np.ndarray
    scale: Scale
    sizes: Sizes
    # Of each layer and, last, of the codes: mean and square. They change in place.
    moments: list[np.ndarray]
    n_steps: int = 0


@dataclass
class MetaMFClients:
    """Clients of a block: the level and, at the end, what the server makes for each user."""

    level: float
    made: Parts | None = None


@dataclass(eq=False, repr=False)
class MetaMFParameters:
    """Parameters of MetaMF."""

    n_factors: AtLeast1 = 32
    _: KW_ONLY
    rank: AtLeast1 = 8
    scorer_size: AtLeast1 = 8
    code_size: AtLeast1 = 32
    memory_size: AtLeast1 = 128
    hidden_size: AtLeast1 = 128
    learning_rate: Positive = 2e-3
    reg: NotNegative = 0.0
    max_norm: Positive | None = 5.0
    level: bool = True
    rating_scale: RatingRange = None
    BETA_1: float = constant(0.9)
    BETA_2: float = constant(0.999)
    EPSILON: float = constant(1e-8)
    INIT_COMMON: float = constant(1.0)
    INIT_STD: float = constant(0.03)


@dataclass(kw_only=True, eq=False)
class MetaMFAlgorithm(MetaMFParameters, Algorithm[MetaMFServer, MetaMFClients]):
    """The server makes every client's model, and propagates its gradients back."""

    dtype: Any = np.float32

    @property
    def traits(self):
        refuses = {"local_dp": NO_LOCAL_DP, "aggregator": NO_AGGREGATOR}
        return Traits(single_uploads=True, treats_clients_apart=True, refuses=refuses)

    def sizes(self, n_items) -> Sizes:
        """Return the network's numbers of rows and columns."""
        return Sizes(n_items, *(getattr(self, name) for name in Sizes._fields[1:]))

    def downloads(self, n_items):
        sizes = self.sizes(n_items)
        shapes = (n_items, self.rank), sizes.basis, (sum(sizes.scorer),)
        parts = {n: Form(one, per_client=True) for n, one in zip(PARTS, shapes, strict=True)}
        return {"scale": Form((3,))} | parts

    # --------------------------------------------------------------- before the rounds

    def setup_fields(self, n_items):
        return RATINGS

    def answer(self, block, message, key):
        return Updates({"ratings": sums_of_ratings(block)})

    def begin(self, catalogue, sums, key):
        sizes = self.sizes(catalogue.n_items)
        draw = key.generator("codes").standard_normal
        common = self.INIT_COMMON * draw(self.code_size)
        codes = common + self.INIT_STD * draw((catalogue.n_clients, self.code_size))
        network = first_weights(sizes, key.generator("network"), self.dtype)
        codes = codes.astype(self.dtype)
        assert sums is not None
        total, number = sums["ratings"].sum
        ends = scale_of(self.rating_scale, catalogue.rating_range)
        scale = Scale(*ends, float(total / number) if self.level else 0.0)
        moments = [np.zeros((2, *one.shape), one.dtype) for one in (*network.values(), codes)]
        return MetaMFServer(network, codes, scale, sizes, moments)

    def announce(self, server):
        return Message(scale=server.scale.sent())

    # ---------------------------------------------------------------------- each round

    def broadcast(self, server, key):
        made = (Made(name, server.network, server.codes, server.sizes) for name in PARTS)
        return Message(**{one.name: PerClient(one) for one in made})

    def fields(self, n_items):
        sizes = self.sizes(n_items)
        return {
            "table": FieldSpec((n_items, self.rank), rows="chosen"),
            "basis": FieldSpec(sizes.basis),
            "scorer": FieldSpec((sum(sizes.scorer),)),
            "n_ratings": FieldSpec((1,), learned=False),
        }

    def enter(self, block, message, key):
        return MetaMFClients(Scale.received(message).level)

    def update(self, block, clients, message, turn, key):
        sizes, active = self.sizes(block.n_items), np.flatnonzero(turn.active)
        own = block.own_rows(turn.active)
        table = np.zeros((len(own.items), self.rank), dtype=self.dtype)
        basis = np.zeros((block.n_clients, *sizes.basis), dtype=self.dtype)
        scorer = np.zeros((block.n_clients, sum(sizes.scorer)), dtype=self.dtype)
        n_ratings, loss = np.zeros((block.n_clients, 1)), 0.0
        with own_settings():
            for who in _chunks(active):
                part = block.part(np.isin(np.arange(block.n_clients), who))
                rows = slice(own.indptr[who[0]], own.indptr[who[-1] + 1])
                gradients, lost = _gradients(part, sizes, message, who, clients.level)
                table[rows], basis[who], scorer[who] = gradients
                n_ratings[who, 0] = data_sizes(part)
                loss += lost
        is_finite = np.isfinite(basis).all(axis=(1, 2)) & np.isfinite(scorer).all(axis=1)
        fields = {
            "table": SparseRows(own.indptr, own.items, table),
            "basis": SparseRows.stacked(basis),
            "scorer": SparseRows.stacked(scorer),
            "n_ratings": SparseRows.stacked(n_ratings),
        }
        return clients, Updates(fields, is_finite=is_finite), (loss, n_ratings.sum())

    def step(self, server, upload, key):
        if upload is None:
            return server
        uploads = list(upload.single())
        with own_settings():
            network = {name: _leaf(one) for name, one in server.network.items()}
            codes = _leaf(server.codes)
            for some in _chunks(np.arange(len(uploads))):
                clients, gradients, items = self._stacked([uploads[n] for n in some])
                made = parts(network, codes[clients], server.sizes, items)
                torch.autograd.backward(made, gradients)
            weights = [*network.values(), codes]
            for one in weights:
                one.grad /= upload["n_ratings"].sum[0]
            self._descend(weights, server.moments, server.n_steps + 1)
        network = {name: one.detach().numpy() for name, one in network.items()}
        n_steps, codes = server.n_steps + 1, codes.detach().numpy()
        return replace(server, network=network, codes=codes, n_steps=n_steps)

    def _stacked(self, uploads):
        """Return clients' codes, their gradients, and the items whose rows these have."""
        clients = torch.tensor([client for client, _ in uploads])
        fields = [one for _, one in uploads]
        rows = [one["table"].rows for one in fields]
        items, columns = np.unique(np.concatenate(rows), return_inverse=True)
        whose = np.repeat(np.arange(len(fields)), list(map(len, rows)))
        table = np.zeros((len(fields), len(items), self.rank), dtype=self.dtype)
        table[whose, columns] = np.concatenate([one["table"].change for one in fields])
        basis, scorer = (
            np.stack([one[name].change for one in fields]).astype(self.dtype)
            for name in ("basis", "scorer")
        )
        return clients, Parts(*map(torch.from_numpy, (table, basis, scorer))), items

    def _descend(self, weights, moments, n_steps):
        """Take step `n_steps` of Adam on the weights' gradients, in place."""
        if self.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(weights, self.max_norm)
        means, squares = zip(*map(torch.from_numpy, moments), strict=True)
        adam_step(
            weights, means, squares, [one.grad for one in weights], n_steps, self.learning_rate,
            betas=(self.BETA_1, self.BETA_2), epsilon=self.EPSILON, weight_decay=self.reg,
        )  # fmt: skip

    # ------------------------------------------------------------------------- the end

    def final(self, server):
        return self.broadcast(server, None)

    def personalize(self, block, clients, message, turn, key):
        made = [message[name].values for name in PARTS]
        if (block.clients < 0).all():
            # The server has no code of new users. A device has no model but its own.
            made = [_of_the_new(one, block.n_clients) for one in made]
        whose = np.repeat(np.arange(block.n_clients), np.diff(block.client_indptr))
        level = Scale.received(message).level
        return MetaMFClients(level, Parts(*(one[whose] for one in made)))

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        low, high, level = Scale.received(message)
        made = message["table"].values
        attributes = {
            "rating_scale_": (low, high),
            "global_bias_": level,
            "_fitted_sizes": self.sizes(made.shape[1]),
        }
        if isinstance(made, Made):
            attributes |= {"network_": made.weights, "mean_code_": _mean(made.codes)}
        return attributes

    def user_attributes(self, block, clients):
        made = clients.made
        assert made is not None
        if isinstance(made.table, Made):
            return {"user_codes_": made.table.codes}
        return dict(zip(PARTS.values(), made, strict=True))

    def model(self, fitted):
        n_items, level = fitted["n_items_"], fitted["global_bias_"]

        def pairs(users, items):
            values = np.full(len(users), level)
            distinct, whose = np.unique(users, return_inverse=True)
            for some in _chunks(np.arange(len(distinct))):
                pairs = np.flatnonzero((whose >= some[0]) & (whose <= some[-1]) & (items >= 0))
                columns, places = np.unique(items[pairs], return_inverse=True)
                found = _scores_of(fitted, distinct[some], columns)
                values[pairs] = found[whose[pairs] - some[0], places]
            return values

        def board(users):
            values, items = np.empty((len(users), n_items)), np.arange(n_items)
            for some in _chunks(np.arange(len(users))):
                values[some] = _scores_of(fitted, users[some], items)
            return values

        response = clipped(*fitted["rating_scale_"])
        return Scores(n_items=n_items, response=response, pairs=pairs, board=board)

    def as_newcomers(self, block):
        return replace(block, clients=np.full_like(block.clients, -1))


def _scores_of(fitted, users, items):
    """Return scores of all pairs of users (codes, -1 for unknown) and items."""
    # In double precision, so that they do not depend on which others are asked for.
    sizes = fitted["_fitted_sizes"]
    with own_settings(), torch.no_grad():
        if "network_" in fitted:
            known = (users >= 0)[:, None]
            codes = np.where(known, fitted["user_codes_"][users], fitted["mean_code_"])
            weights = {name: one.astype(np.float64) for name, one in fitted["network_"].items()}
            parts = Made("table", weights, codes.astype(np.float64), sizes).parts(items)
        else:
            users = np.maximum(users, 0)
            table, basis, scorer = (fitted[name][users] for name in PARTS.values())
            own = (one.astype(np.float64) for one in (table[:, items], basis, scorer))
            parts = Parts(*map(torch.from_numpy, own))
        return scores(parts, sizes).numpy() + fitted["global_bias_"]


def _leaf(array):
    """Return a copy as a tensor with a gradient: clients may still hold an earlier message."""
    return torch.from_numpy(array.copy()).requires_grad_()


@documented
@dataclass(eq=False, repr=False)
class MetaMF(MetaMFParameters, RatingMixin, FederatedRecommender):
    """Meta matrix factorization: the server makes an item table and a scorer for every client.

    The server stores a code for each client and a network that turns it into that client's own
    model: item vectors ``E_u = T_u B_u`` of low rank, and a scorer with one hidden layer. A client
    receives (T_u, B_u, scorer), and uploads the gradients of its squared errors in them. The server
    propagates these back through the network to the client's code [1]_. Clients store no model
    between rounds. The price is privacy, see the Notes.

    Parameters
    ----------
    n_factors : int, default=32
        Length of an item vector (d_i).
    rank : int, default=8
        Columns of T_u and rows of B_u (s).
    scorer_size : int, default=8
        Hidden units of the scorer.
    code_size : int, default=32
        Length of a client's code, the user embedding (d_u).
    memory_size : int, default=128
        Length of the collaborative vector, the code times the collaborative memory (k).
    hidden_size : int, default=128
        Hidden units of each of the three generators: of the scorer's two layers, and of T_u
        and B_u.
    n_rounds : int, default=750
        Number of rounds in total.
    learning_rate : float, default=2e-3
        Step of the server's Adam. The authors' code uses 1e-4, with a step for every 64 ratings.
    reg : float, default=0.0
        Multiple of the weights that is added to their gradient; 1e-3 in the authors' code.
    max_norm : float or None, default=5.0
        Gradients of all weights together are shortened to this norm before Adam's step.
    level : bool, default=True
        Whether scores are deviations from the mean rating. In the paper they are ratings.
    rating_scale : tuple (low, high) or None, default=None
        The ends of the rating scale, assumed to be public; predictions are clipped
        to them. If None, the range of y.
    {shared parameters}

    Attributes
    ----------
    user_codes_ : ndarray of shape (n_users, code_size), dtype float32
        The code of each user's client, stored on the server.
    network_ : dict of {{str: ndarray}}
        The server's weights: `memory`, and by layer a matrix and its bias. The layers are
        `hidden_1`, `weight_1`, `bias_1` for the scorer's first layer, `hidden_2`, `weight_2`,
        `bias_2` for its second, and `hidden_3`, `table`, `basis` for T_u and B_u.
    mean_code_ : ndarray of shape (code_size,), dtype float32
        Mean of all clients' codes, by which unknown users are scored.
    global_bias_ : float
        The level; 0 without it.
    rating_scale_ : tuple of float
        The ends of the rating scale.
    user_tables_ : ndarray of shape (n_users, n_items, rank), dtype float32
        T_u (computed on access, which for large data takes much memory).
    user_bases_ : ndarray of shape (n_users, rank, n_factors), dtype float32
        B_u (computed on access).
    user_scorers_ : ndarray of shape (n_users, n_scorer), dtype float32
        W_1 of shape (n_factors, scorer_size), b_1, w_2 and b_2, one after the other (computed on
        access).
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if ratings lie outside `rating_scale`; with `secure_aggregation`, an aggregator,
        `local_dp` or `central_dp`; if the clients diverge.

    See Also
    --------
    fedrecsk.FedFast : Also lets the server know every user's vector.

    Notes
    -----
    *Algorithm*::

        set-up  clients send sums and counts of ratings         answer, begin
        each round
          1  server: collaborative vector c_u = code_u M         _metamf_network.parts
          2  ... T_u, B_u and the scorer of each client          _metamf_network.parts
          3  server sends them                                   broadcast
          4  client: score_ui = scorer((T_u B_u)_i)              _metamf_network.scores
          5  ... uploads gradients of rated rows, B_u, scorer    update
          6  server propagates them back to M, codes, weights    step
          7  ... and takes a step of Adam                        _training.adam_step
        end
          8  server sends every client its last model            final

    *The scorer* is ``w_2 . relu(W_1' e + b_1) + b_2``. Each of its two layers, and the pair
    (T_u, B_u), comes from a generator of its own: one hidden layer of ReLUs on c_u, followed by a
    linear layer for each matrix and bias.

    *Constants.* Adam has ``BETA_1 = 0.9``, ``BETA_2 = 0.999`` and ``EPSILON = 1e-8``. All codes
    begin with the same vector, of standard deviation ``INIT_COMMON = 1``, plus their own, of
    ``INIT_STD = 0.03``; in the authors' code these are 0 and 1. Subclasses may change them.

    *What is sent.* For m items, rank s and ``S = (d + 2) q + 1`` numbers of a scorer with q hidden
    units: down, each round and at the end, ``4 (m s + s d + S)`` bytes. Up, for each rated item
    its index and s numbers, ``(4 + 4 s)`` bytes; s d + S numbers, and the number of ratings. The
    set-up sends the client's sum and number of ratings up, and the scale and the level down.

    *What it reveals.* The server knows every client's model, which items it has rated (their rows
    have gradients), and nearly its ratings: a gradient is the error times what the server can
    compute. Secure sums and local differential privacy are refused; the network needs single ones.

    *Gradients* are those of ``sum_r w (score - r)^2``; the server divides their sum by the cohort's
    number of ratings (the sum of their weights).

    *Users.* A client of several users has one code, so all get the same predictions; the paper has
    one user per client. New users have no code: they and unknown users are served by the mean code.

    References
    ----------
    .. [1] Y. Lin, P. Ren, Z. Chen, Z. Ren, D. Yu, J. Ma, M. de Rijke and X. Cheng, "Meta Matrix
       Factorization for Federated Rating Predictions", SIGIR 2020 (arXiv:1910.10086), section 3.

    Examples
    --------
    >>> from fedrecsk.neural import MetaMF
    >>> from fedrecsk.datasets import make_ratings
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = MetaMF(hidden_size=32, n_rounds=20, client_fraction=0.5, random_state=0).fit(X, y)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.privacy_.server_sees
    'single uploads'
    """

    _: KW_ONLY
    n_rounds: AtLeast1 = 750
    client_fraction: Above0To1 = 0.01

    _kind = MetaMFAlgorithm
    _has_item_vectors = False
    _has_user_vectors = False

    # --------------------------------------------------------------------- predictions

    def __getattr__(self, name: str) -> Any:
        made = {attribute: part for part, attribute in PARTS.items()}
        if name not in made or "network_" not in vars(self):
            return super().__getattr__(name)
        with own_settings():
            return np.asarray(Made(made[name], self.network_, self.user_codes_, self._fitted_sizes))

    # ------------------------------------------------------------------- what it needs

    def _least_bytes(self, data):
        # The weights, Adam's two moments, and the fitted model.
        n = n_numbers(self._algorithm().sizes(data.n_items), data.n_clients)
        return 4 * n * np.dtype(self._dtype).itemsize


def _chunks(numbers):
    """Cut an array of numbers, so that the tables of so many clients fit into memory."""
    size = CLIENTS_AT_A_TIME
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def _gradients(part, sizes, message, who, level):
    """Return gradients, the table's by client and row, and the loss of some clients' own block."""
    items, columns = np.unique(part.row_items, return_inverse=True)
    parts = received(message, who, items)
    clients = np.repeat(np.arange(part.n_clients), part.row_counts)
    # A client's ratings of one item have one score: sum w (score - dev)^2 needs only their sums.
    deviations, n_rows = part.values - level, len(clients)
    sums = [part.weights, part.weights * deviations]
    number, total = (
        np.bincount(part.rows, one, n_rows).astype(parts.table.numpy().dtype) for one in sums
    )
    for one in parts:
        one.requires_grad_()
    score = scores(parts, sizes)[clients, columns]
    number, total = torch.from_numpy(number), torch.from_numpy(total)
    errors = (score * (number * score - 2 * total)).sum()
    table, basis, scorer = (one.numpy() for one in torch.autograd.grad(errors, parts))
    loss = float(errors.detach()) + part.weights @ deviations**2
    return (table[clients, columns], basis, scorer), loss


def _mean(codes):
    return codes.mean(axis=0, dtype=np.float64).astype(codes.dtype)


def _of_the_new(made, n):
    """Return what `n` clients without a code are served with."""
    if isinstance(made, Made):
        codes = np.tile(_mean(made.codes), (n, 1))
        return Made(made.name, made.weights, codes, made.sizes)
    return np.repeat(made[:1], n, axis=0)
