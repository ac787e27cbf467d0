"""What LocALS, LocSGD and GlobSGD share: what is sent, and the server's means."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Literal

import numpy as np

from fedrecsk._utils.kernels import LazyModule
from fedrecsk._utils.sklearn_compat import Interval, StrOptions
from fedrecsk.federated._implicit import ImplicitMF
from fedrecsk.federated._item_rows import OwnRows
from fedrecsk.protocol.messages import Dense, Message
from fedrecsk.updates import ClientUpdates, FieldSpec, SparseRows

wmf_kernels: LazyModule = LazyModule("fedrecsk.federated._wmf_kernels")

# Directions in which clients contribute less than this share of the largest do not change.
RESOLUTION = 1e-6


@dataclass(eq=False, repr=False)
class FederatedWMF(ImplicitMF):
    """Base class of LocALS, LocSGD and GlobSGD."""

    _: KW_ONLY
    aggregation: Literal["full", "clients", "holders"] = "full"
    preconditioner: bool | Literal["auto"] = "auto"
    upload: Literal["local", "all"] = "local"

    _parameter_constraints: ClassVar[dict] = ImplicitMF._parameter_constraints | {
        "aggregation": [StrOptions({"full", "clients", "holders"})],
        "preconditioner": ["boolean", StrOptions({"auto"})],
        "upload": [StrOptions({"local", "all"})],
    }

    @property
    def _sends_all(self):
        return self.upload == "all"

    # --------------------------------------------------------------- before the rounds

    _n_setups = 1

    def _setup_aggregate(self, server, upload, step, key):
        return server | {"held_share": upload["held_items"].mean[:, None]}

    # ---------------------------------------------------------------------- each round

    def _upload_specs(self, n_items):
        d, rows = self.n_factors, "all" if self._sends_all else "held"
        specs = {"rows": FieldSpec((n_items, d), rows)}
        if self.aggregation == "full":
            specs["others"] = FieldSpec((d, d), compressible=False)
        if self.aggregation == "holders":
            specs["n_holders"] = FieldSpec((n_items,), rows, dtype="uint8", learned=False)
        return specs

    def _upload_centers(self, message):
        if self.aggregation != "full" or self._idle_matrix is None:
            return {}
        return {"others": self._idle_matrix}

    # ------------------------------------------------------------------- on the clients

    def _problem(self, reg_item=0.0, prox=0.0):
        full = self.aggregation == "full"
        return wmf_kernels.Problem(float(self.reg_user), float(reg_item), float(prox), full)

    def _uploads(self, block, turn, out):
        """What the kernels have written: rows, and matrices or holders if they are sent."""
        sums = {"rows": out.rows, "others": out.squares[0]}
        if self.aggregation == "holders":
            sends = np.repeat(out.senders & out.is_finite, block.row_counts)
            sums["n_holders"] = np.bincount(block.row_items[sends], minlength=block.n_items)
        fields = sums
        if turn.separate:
            indptr, items, _ = OwnRows.of(block, turn.active)
            idle, ones = self._idle_matrix, np.ones(len(items), dtype=np.uint8)
            fields = {
                "rows": SparseRows(indptr, items, out.rows),
                "others": SparseRows.stacked(_since(idle, out.squares), center=idle),
                "n_holders": SparseRows(indptr, items, ones),
            }
        names = self._upload_specs(block.n_items)
        return ClientUpdates({name: fields[name] for name in names}, is_finite=out.is_finite)

    @property
    def _idle_matrix(self):
        """The matrix of a client that does not change the items it does not hold."""
        return np.eye(self.n_factors)

    # -------------------------------------------------------------------- on the server

    @staticmethod
    def _mean_over_holders(upload):
        """Mean of each row over the clients that sent it; zero if there are none."""
        return upload["rows"].sum / np.maximum(upload["n_holders"].sum, 1)[:, None]

    def _cautious(self, server, upload, lean=1.0):
        """Step of each item that keeps a preconditioned update from overshooting.

        If few clients take part, the mean is noisy. If many hold an item with a large
        alpha, clients move it up to 1 + alpha times as fast as the preconditioner, which
        is the same for all items, expects; `lean` says how far their answers depend on the
        server's items at all.
        """
        share = min(1.0, 2 * upload.n_clients / server["n_clients"])
        return share / (1 + lean * self.alpha * server["held_share"] / 2)

    # -------------------------------------------------------------------- what attacks need

    def _factor_of_mean(self, view):
        """What the adversary multiplies its rows by, so that the server's mean becomes them."""
        if self.aggregation != "holders":
            return view.n_senders / view.n_own
        return view.n_expected("rows") / view.n_own

    def _others_of(self, view):
        """The mean of `others` over all clients, the adversary's own sending nothing learned."""
        return (1 - view.n_own / view.n_senders) * view.mean("others")

    def _share_of_step(self, view):
        """Return the share of a preconditioned step that the server takes on items of few."""
        return min(1.0, 2 * self._cohort_share(view.data.n_clients))

    @property
    def _preconditions(self):
        if self.preconditioner == "auto":
            return self.aggregation == "full"
        return self.preconditioner

    # -------------------------------------------------------------------------- checks

    def _check_before_fit(self):
        if self._setting().local_dp is not None:
            raise ValueError(
                f"{type(self).__name__} has no local_dp: which rows a client requests and sends "
                "reveals the items it holds, and noise cannot hide that. Use RFRec under local "
                "differential privacy."
            )
        super()._check_before_fit()
        if self._setting().secure_aggregation is not None and self.upload == "local":
            raise ValueError(
                f"With secure_aggregation {type(self).__name__} must send whole matrices, because "
                'rows of only some items cannot be added encrypted; set upload="all".'
            )
        if self.preconditioner is True and self.aggregation != "full":
            raise ValueError(
                f'preconditioner=True needs the matrices that aggregation="full" uploads, but '
                f"aggregation={self.aggregation!r}; change one of them."
            )


@dataclass(eq=False, repr=False)
class ClientItemsWMF(FederatedWMF):
    """Base class of LocALS and LocSGD: clients move the items, and the server averages."""

    _: KW_ONLY
    prox: float = 10.0
    local_epochs: int = 1
    server_learning_rate: float | Literal["auto"] = "auto"

    _parameter_constraints: ClassVar[dict] = FederatedWMF._parameter_constraints | {
        "prox": [Interval(Real, 0, None, closed="left")],
        "local_epochs": [Interval(Integral, 1, None, closed="left")],
        "server_learning_rate": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto"}),
        ],
    }

    def _initial_broadcast(self, server):
        return Message(reg_item=Dense(np.array([server["reg_item"]])))

    def _init_clients(self, block, message, key):
        state = super()._init_clients(block, message, key)
        return state | {"reg_item": float(message["reg_item"].values[0])}

    def _aggregate(self, server, message, upload, key):
        if upload is None:
            return server
        items = server["item_factors"].astype(np.float64)
        others = upload["others"].mean if self.aggregation == "full" else np.eye(self.n_factors)
        if self.aggregation == "holders":
            change = self._mean_over_holders(upload)
        else:
            change = upload["rows"].mean + items @ others.T - items
        if self._preconditions:
            change = divide(change, np.eye(self.n_factors) - others.T)
        rate = self.server_learning_rate
        if rate == "auto":
            lean = np.trace(others) / self.n_factors
            rate = self._cautious(server, upload, lean) if self._preconditions else 1.0
        return server | {"item_factors": (items + rate * change).astype(self._dtype)}

    def _upload_moving(self, view, rows, moves):
        rate = self.server_learning_rate
        if rate == "auto":
            rate = self._share_of_step(view) if self._preconditions else 1.0
        moves = moves / rate
        if self.aggregation == "full":
            # The server also moves every item by its vector times mean A - I.
            remaining = -self._others_of(view).T
            if self._preconditions:
                moves = moves @ remaining
            moves = moves + view.item_vectors[rows] @ remaining
        return {"rows": self._factor_of_mean(view) * moves}


def divide(change, matrix):
    """change matrix^-1, without a change in the directions that the matrix does not resolve."""
    return change @ np.linalg.pinv(matrix, rcond=RESOLUTION)


def _since(idle, squares):
    """Return the change of each client's matrix from the idle one; None is zero."""
    return squares if idle is None else squares - idle
