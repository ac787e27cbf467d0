"""FCF: federated collaborative filtering (Ammad-ud-din et al., 2019)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np

from fedrecsk._utils.constraints import AtLeast1, NotNegative, Positive
from fedrecsk._utils.docs import documented
from fedrecsk.federated import _wmf
from fedrecsk.federated._optimizers import Moments, StepParameters, descend
from fedrecsk.federated._wmf import ImplicitAlgorithm, ImplicitMF, ImplicitParameters
from fedrecsk.updates import FieldSpec, SparseRows, Updates

__all__ = ["FCF"]

DENSE_LIMIT = 2 * 2**30


NO_LOCAL_DP = (
    "to clip its gradients, every client would have to compute those of all items. Use RFRec for "
    "local differential privacy."
)


@dataclass(frozen=True)
class FCFServer(_wmf.WMFServer):
    """What the server knows: the items, and Adam's means (None before the first step)."""

    moments: Moments | None = None


@dataclass(eq=False, repr=False)
class FCFParameters(StepParameters, ImplicitParameters):
    """Parameters of FCF."""

    _: KW_ONLY
    reg_exponent: NotNegative = 0.0
    upload: Literal["all", "local"] = "all"


@dataclass(kw_only=True, eq=False)
class FCFAlgorithm(FCFParameters, ImplicitAlgorithm):
    """Every client solves for its users, and uploads the gradient in all items."""

    @property
    def traits(self):
        return replace(super().traits, refuses={"local_dp": NO_LOCAL_DP})

    def setup_fields(self, n_items):
        # A client that receives and sends whole matrices need not report what it holds, but for the
        # items' penalties.
        is_needed = self.upload == "local" or self.reg_exponent > 0
        return super().setup_fields(n_items) if is_needed else {}

    def begin(self, catalogue, sums, key):
        return FCFServer(**vars(super().begin(catalogue, sums, key)))

    def fields(self, n_items):
        if self.upload == "local":
            return super().fields(n_items)
        return {"gradient": FieldSpec((n_items, self.n_factors))}

    def update(self, block, clients, message, turn, key):
        out, loss = self.gradients(block, clients, message, turn)
        if self.upload == "local":
            return clients, self.sent(block, turn, out), loss
        gradient = _of_all(block, turn, message["item_factors"].values, out)
        return clients, Updates({"gradient": gradient}, is_finite=out.is_finite), loss

    def step(self, server, upload, key):
        if upload is None:
            return server
        items, is_whole = server.items.astype(np.float64), self.upload == "all"
        gradient = upload["gradient"].mean if is_whole else self.mean_gradient(items, upload)
        gradient = gradient + self.item_penalties(server) * items
        items, moments = descend(self, items, 2 * gradient, server.moments)
        return replace(server.with_items(items), moments=moments)


def _of_all(block, turn, items, out):
    """Return the gradients of all items: Q P_c'P_c, and more for the items of a client."""
    items, who = items.astype(out.squares.dtype, copy=False), turn.active
    # A client that has diverged is left out of the sums, or reports it itself.
    with np.errstate(over="ignore", invalid="ignore"):
        if not turn.separate:
            return out.rows + items @ out.squares[0]
        whole = items @ out.squares[who]
    own, (n_clients, n_items, d) = block.own_rows(who), whole.shape
    whole[np.repeat(np.arange(n_clients), block.row_counts[who]), own.items] += out.rows
    rows = np.tile(np.arange(n_items, dtype=np.int32), n_clients)
    indptr = np.concatenate([[0], np.cumsum(who)]) * n_items
    return SparseRows(indptr, rows, whole.reshape(-1, d))


@documented
@dataclass(eq=False, repr=False)
class FCF(FCFParameters, ImplicitMF):
    """Federated collaborative filtering: gradients of all items, and Adam on the server.

    Each round every client solves for its users' vectors exactly, given all items, and uploads
    the gradient of its loss in all items; the server adds these up and takes a step of Adam.
    Together they minimise the objective of implicit matrix factorisation::

        sum_u sum_i c_ui (r_ui - p_u . q_i)^2 + reg_user sum_u |p_u|^2 + reg_item sum_i |q_i|^2

    over all pairs of user and item, with preference r = 1 and confidence c = 1 + alpha w for
    rows with y > 0, w the row's weight (its count, if rows are repeated), and r = 0, c = 1 for
    all other pairs.

    Parameters
    ----------
    n_factors, n_rounds, alpha, reg_user, reg_item, reg_exponent
        As in :class:`LocALS`; 20 factors by default.
    learning_rate : float, default=0.05
        Size of the server's step (gamma).
    optimizer : {"adam", "gd"}, default="adam"
        Whether the server uses Adam or plain gradient descent. The objective is divided by the
        number of clients, which makes no difference to Adam.
    upload : {"all", "local"}, default="all"
        What is sent in each round. "all", as in the paper: whole item matrices, down and up.
        "local": the rows of the client's own items and a d x d matrix, down and up, which give the
        same sum in fewer bytes.
    {timestamps}
    {history_half_life}
    {item_features}
    {shared parameters}

    Attributes
    ----------
    user_factors_, item_factors_
        As in :class:`LocALS`.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if no row has y > 0; with `local_dp`; with `secure_aggregation` and
        ``upload="local"``; if the clients diverge; if single uploads are needed and take more than
        2 GiB.

    See Also
    --------
    ExplicitFCF : The same for ratings.
    GlobSGD : The same sums, with another step.

    Notes
    -----
    *Algorithm*::

        set-up  clients report which items they hold, with "local"
                or if reg_exponent > 0                              answer
        each round
          1  server sends all q_i ("local": theirs, and sum q q')   broadcast
          2  clients solve for their users                        kernel fit_users
          3  ... and upload the gradient of all items             kernel item_gradients
          4  server takes a step of Adam                          step
        end
          5  server sends all items                               final
          6  clients solve for their users once more              personalize: kernel fit_users

    *What is sent.* Each round, down: all q_i. Up: for every item
    ``sum_u c_ui (p_u . q_i - r_ui) p_u``, m x d numbers. With "local", once, up: which items the
    client holds; each round, down: its own q_i, and the d x d sum of all q q'; up: its own
    items' gradients less ``(p_u . q_i) p_u``, and P_c' P_c. With ``reg_exponent > 0`` also "all"
    reports once, up, a vector of 0 and 1 over all items, of which the server uses the sum. At the
    end, down: all q_i.

    *What it reveals.* The server uses only sums over clients. In plaintext, one upload of a
    one-user client gives p_u and the user's items exactly: a row is
    ``(p_u . q_i) p_u`` for items that the user does not have, and something else for the others
    (:func:`fedrecsk.audit.measure_leak`).

    *Gradients* are sent as half of the derivatives; the server doubles them. A cohort's sum
    stands for that of all clients: it is divided by the number of uploads accepted, and so is
    ``reg_item`` by the number of all clients.

    *Short histories* count as in :class:`LocALS`.

    References
    ----------
    .. [1] M. Ammad-ud-din, E. Ivannikova, S. A. Khan, W. Oyomno, Q. Fu, K. E. Tan and
       A. Flanagan, "Federated Collaborative Filtering for Privacy-Preserving Personalized
       Recommendation System", arXiv:1901.09888, 2019, algorithm 1.

    Examples
    --------
    >>> from fedrecsk import FCF
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = FCF(n_factors=8, random_state=0).fit(X)
    >>> model.communication_.bytes_up == 60 * 4 * 60 * 40 * 8
    True
    >>> model.set_params(upload="local").fit(X).communication_.bytes_up == (
    ...     4 * 900 + 60 * 4 * (900 * 8 + 60 * 8 * 8)
    ... )
    True
    """

    _: KW_ONLY
    n_rounds: AtLeast1 = 60
    learning_rate: Positive = 0.05

    _kind = FCFAlgorithm

    def _check_setting(self, plan, data, blocks):
        super()._check_setting(plan, data, blocks)
        uploads = plan.uploads(is_forged=plan.federation.adversary is not None)
        if self.upload == "local" or uploads == "sum":
            return
        n_clients = max(plan.units(block) for block in blocks)
        if uploads == "held":
            n_clients = plan.units(data)
        n_clients = int(np.ceil(n_clients * self.client_fraction))
        nbytes = n_clients * data.n_items * self.n_factors * np.dtype(self._dtype).itemsize
        if nbytes > DENSE_LIMIT:
            raise ValueError(
                f"The federation needs single uploads, and those of {n_clients} "
                f"clients, each with {data.n_items} x {self.n_factors} numbers, would take "
                f'{nbytes / 2**30:.1f} GiB at a time. Set upload="local", which gives the same '
                "sums from fewer numbers, or a smaller client_fraction."
            )
