"""FedEASE: EASE (Steck, WWW 2019) from one sum over clients."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from fedrecsk._utils.constraints import Positive
from fedrecsk._utils.docs import documented
from fedrecsk.base._item_prior import ItemFeatures, WeightsContent, filled_weights
from fedrecsk.base._item_weights import (
    Direction,
    ItemWeightsMixin,
    histories,
    lower_part,
    n_items_of,
    n_pairs,
    regularized_inverse,
    warn_if_slow,
    weights_of,
    whole,
)
from fedrecsk.federated._gram import FederatedGram, GramAlgorithm, GramParameters
from fedrecsk.federated._ratings import held_items, numbers_of_holders
from fedrecsk.models._model import Weights
from fedrecsk.protocol.messages import Dense, Derived, Form, Message, Rows
from fedrecsk.updates import Updates

__all__ = ["FedEASE"]

# What reg="auto" means under central privacy, in units of its clip.
PRIVATE_REG = 20.0


@dataclass(eq=False, repr=False)
class OwnWeightsParameters(GramParameters):
    """Parameters of methods whose clients can do with the weights of their own items."""

    _: KW_ONLY
    download: Literal["auto", "local", "all"] = "auto"


@dataclass(kw_only=True, eq=False)
class OwnWeightsAlgorithm(OwnWeightsParameters, GramAlgorithm):
    """Clients add up the weights of their users' own items."""

    history_half_life: float | Literal["auto"] | None

    @property
    def sends_rows(self) -> bool:
        """Return whether clients receive the weights of their own items only."""
        return self.download == "local" or (self.download == "auto" and not self.hides_items)

    def setup_fields(self, n_items):
        counts = super().setup_fields(n_items)
        return counts | (held_items(n_items) if self.sends_rows else {})

    def answer(self, block, message, key):
        if self.clip is not None:
            return super().answer(block, message, key)
        return Updates({"held_items": numbers_of_holders(block)})

    def life_of_history(self, direction: Direction | None) -> float | Literal["auto"] | None:
        """Return the half-life of histories, by what the final model says of direction."""
        return self.history_half_life

    # ------------------------------------------------------------------------ the model

    def server_attributes(self, message):
        return {"item_weights_": message["item_weights"].values}

    def user_attributes(self, block, clients):
        life = self.life_of_history(clients.direction)
        return {"user_history_": histories(clients.likes, self.dtype, life)}

    def model(self, fitted):
        return Weights.of(fitted)

    def losses(self, model, held_out, seen):
        """Return the objective, without its penalty, on rows that the client does not train on."""
        likes = np.where(held_out.values > 0, held_out.weights, 0.0)
        scores = model.score_pairs(held_out.users, held_out.items)
        return (likes - scores) ** 2, np.ones(len(scores))


@dataclass(kw_only=True, eq=False)
class FedEASEAlgorithm(OwnWeightsAlgorithm):
    """The server inverts the sum."""

    reg: float | Literal["auto"]
    item_content: ItemFeatures

    def downloads(self, n_items):
        weights, inverse = Form((n_items, n_items)), Form((n_pairs(n_items),))
        return super().downloads(n_items) | {"item_weights": weights, "inverse": inverse}

    def begin(self, catalogue, sums, key):
        warn_if_slow("FedEASE", catalogue.n_items, "FedItemKNN")
        return super().begin(catalogue, sums, key)

    def solve(self, server):
        inverse = regularized_inverse(server.visible_gram(), server.n_items, self.reg)
        if not self.sends_rows:
            return Message(inverse=Dense(lower_part(inverse).astype(self.dtype)))
        weights, prior = weights_of(inverse).astype(self.dtype), self.item_prior(server)
        return Message(
            item_weights=Rows(weights if prior is None else filled_weights(prior, weights))
        )

    def item_prior(self, server):
        return self.item_content.prior(server.counts)

    def decode(self, message, key):
        if "inverse" not in message:
            return message
        triangle = message["inverse"].values
        weights = weights_of(whole(triangle, n_items_of(triangle)))
        return Message(**message, item_weights=Derived(weights.astype(self.dtype)))


@documented
@dataclass(eq=False, repr=False)
class FedEASE(WeightsContent, ItemWeightsMixin, OwnWeightsParameters, FederatedGram):
    """Embarrassingly shallow autoencoder from one sum in one round.

    :class:`EASE` needs only X'X, which is a sum over users. Every client
    uploads its users' part of it once, and the server inverts the sum. The result is exactly that
    of the centralised model on the data of the clients whose uploads arrived.

    Parameters
    ----------
    reg : float or "auto", default="auto"
        Weight of the penalty on B (lambda), on the scale of the sum of uploads. "auto": five times
        the mean number of rows (of squared weights) of the items that have some, or 20 times `clip`
        under central privacy, where uploads are scaled down to the norm `clip`.
    n_rounds : int, default=1
        Number of rounds in total. One is enough if all clients take part in it
        (``client_fraction=1``).
    upload : {"auto", "local", "all"}, default="auto"
        What a client sends: its own pairs of items with their indices, or all
        n_items (n_items + 1) / 2 pairs. "auto": "all" with secure aggregation or central
        privacy, which need it, and otherwise "local", which is smaller for every client with less
        than 70% of the items.
    download : {"auto", "local", "all"}, default="auto"
        What a client receives in the end: the rows of B of its own items, or one triangle of
        (X'X + reg I)^-1, from which B follows. "auto": "all" with secure aggregation or central
        privacy, and otherwise "local", for which the client reports beforehand which items it
        holds.
    {timestamps}
    {pair_half_life}
    {history_half_life}
    {item_features}
    {shared parameters}

    Attributes
    ----------
    item_weights_ : ndarray of shape (n_items, n_items), dtype float32
        B: row j is added to the scores of all items for each item j in a user's history.
    user_history_ : csr_array of shape (n_users, n_items), dtype float32
        X, faded: the weight of each item in a user's history. It never leaves the client.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: if parameters contradict one another, with local differential privacy or
        compression, if no y is positive, if the matrices do not fit into memory, or if weights are
        so large that `reg` is lost in rounding.

    See Also
    --------
    EASE : The same model without clients.
    FedSpectral : Factors from the same sum.

    Notes
    -----
    *Algorithm*::

        set-up  with download="local", clients report which items they hold;
                with central_dp, how many like each item      answer
        each round
          1  server requests uploads (1 byte)                   broadcast
          2  clients that have not sent before upload x x',
             summed over their users                            update: kernel add_pairs
          3  server adds up: G                                  step
        end
          4  server inverts: P = (G + reg I)^-1, B = I - P diag(P)^-1   solve
          5  clients receive rows of B                          final
          6  ... and add up those of a user's own items         kernels score_all, score_pairs

    *Weights.* The entry of X is the sample weight where y > 0, and 0 elsewhere, as in
    :class:`EASE`.

    {time}
    What is sent is as large as without time, and as private.

    *Time.* The server inverts a matrix of all items, in `fit` and again in `partial_fit`: n_items^3
    operations, which above some 8,400 items a warning puts into seconds.

    *Rounds and cohorts.* A client sends in the first round in which it takes part, and nothing
    later, since it would be counted twice. Cohorts take turns, so with ``client_fraction=0.1`` ten
    rounds reach every client once, and fewer rounds leave users out;
    ``federation=Federation(sampling="random")`` leaves some out for long. A lost upload
    stays lost, because the client does not learn of the loss: the sum is then over fewer users.
    `loss_curve_` is NaN, as clients train nothing.

    *Item features.* As in :class:`EASE`, by the server: bytes stay as they are. With
    ``download="all"`` it cannot send predicted weights, so items without ratings score 0; leave
    them out of `items` and add them by `add_items`.

    *What is sent.* Once, up: with "local", the indices of the client's items; then 8 bytes (index
    and value) for each pair of items that one of its users likes, an item with itself
    included, or with upload="all" 4 for each pair of the catalogue. Down: a byte for each round,
    and in the end ``4 n_items`` bytes for each own item, or ``2 n_items (n_items + 1)`` with "all".
    B itself is not symmetric, so the inverse is half the size. With encryption each client inverts
    the decrypted sum itself.

    *What it reveals.* A plaintext upload of a client with one user shows exactly what it likes: the
    pairs of an item with itself. The server uses the sum only; secure aggregation hides the rest,
    but in a sum over few clients pairs of rare items can still identify a client.

    *Central privacy.* With ``central_dp`` clients first upload x, scaled down to the norm `clip`.
    These counts of items spend a tenth of the budget, unless ``CentralDP(setup_share=...)`` sets
    another share. With noise of deviation z on the counts, the server chooses the most frequent
    items: those whose count is above 3 z, and whose share of the counts of all items at least as
    frequent, times ``n_clients clip``, is above 4/3 z. Pairs of other items would show less than
    the noise. Clients receive the choice, a byte for each item, and upload x x' of the chosen
    items, scaled down to the norm `clip`; every entry of G has noise of the same deviation. The
    server keeps those eigenpairs of G that noise alone would not have, as in :class:`FedSpectral`,
    and then restores the diagonal where it is larger. Other items score 0. One round with all
    clients needs the least noise.

    References
    ----------
    .. [1] H. Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019,
       equations 2 to 8.

    Examples
    --------
    >>> import numpy as np
    >>> from fedrecsk import EASE, FedEASE
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model, centralised = FedEASE(reg=50.0).fit(X), EASE(reg=50.0).fit(X)
    >>> np.allclose(model.predict(X), centralised.predict(X))
    True
    >>> n_own = np.unique(X[:, 0], return_counts=True)[1]
    >>> model.communication_.bytes_up - 4 * 900 - 8 * (n_own * (n_own + 1) // 2).sum()
    np.int64(0)
    """

    reg: Positive | Literal["auto"] = "auto"

    _kind = FedEASEAlgorithm

    @property
    def _reg(self):
        mechanism = self._setting().central_dp
        if self.reg != "auto" or mechanism is None:
            return self.reg
        return PRIVATE_REG * mechanism.clip

    def _with_items(self, rows):
        attributes = super()._with_items(rows)
        message = Message(**self._final_message)
        message.pop("inverse", None)
        message["item_weights"] = Rows(attributes["item_weights_"])
        return attributes | {"_final_message": message}
