"""What the author of a federated method writes: an algorithm, apart from the estimator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedrecsk._utils.parameters import Value
from fedrecsk.models import Factors
from fedrecsk.protocol import states
from fedrecsk.protocol.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from fedrecsk.base._item_prior import ItemPrior
    from fedrecsk.models import Model
    from fedrecsk.protocol.blocks import Attributes, Block
    from fedrecsk.protocol.evaluation import HeldOut
    from fedrecsk.protocol.keys import Key, Keys
    from fedrecsk.protocol.messages import Catalogue, Form, GroupMessages, Upload
    from fedrecsk.protocol.participation import RoundMasks, Sampling
    from fedrecsk.protocol.states import Remembered
    from fedrecsk.updates import FieldSpec, Updates

S = TypeVar("S")
C = TypeVar("C")
# What clients of equal history share.
H = TypeVar("H")
P = TypeVar("P")
Loss = tuple[float, float] | None


@dataclass(frozen=True)
class Traits:
    """Properties of an algorithm that the loop needs before it begins.

    Attributes
    ----------
    single_uploads : bool
        Whether `update` returns uploads client by client if ``turn.separate`` is True. If not,
        blocks have one client each where single uploads are needed.
    treats_clients_apart : bool
        Whether the server needs the single uploads of a round (``upload.single()``) instead of
        their sums. Messages may then have :class:`~fedrecsk.protocol.PerClient` fields, and secure
        sums raise an error.
    rotates : bool
        Whether ``Federation(sampling="auto")`` means cohorts that take turns.
    goes_on : bool
        Whether a fit to other rows can continue from the state.
    sends_once : bool
        Whether a client sends in one of the rounds only, to a sum that is the server's whole state,
        and from which it can withdraw its part (``SendsOnce``).
    shares_history : bool
        Whether clients of equal history share a part of their state (``SharesHistory``).
    may_be_silent : bool
        Whether `broadcast` may return None; clients then continue with their last message.
    chooses_cohorts : bool
        Whether the server chooses who takes part (``ChoosesCohorts``).
    n_exchanges : int
        How many times in each round devices send something to each other (``MeetsPeers``).
    setup_share : float or None
        Share of the budget of central privacy that the set-up spends if
        ``CentralDP(setup_share=None)``. None: the same noise multiplier as in the rounds.
    takes_stale : bool
        Whether what clients upload in one round may go into the server's step of a later one, when
        the model has moved on: changes of it, gradients, or sums. Rounds may then be asynchronous.
    admits_late_clients : bool
        Whether clients may join after the set-up: the server keeps nothing for each client.
    refuses : dict of {str: str}
        Why the method, with its parameters, does not suit a part of a federation, by the name of
        the part, or a "fit on devices" or a "fit on a cluster".
    """

    single_uploads: bool = False
    treats_clients_apart: bool = False
    rotates: bool = False
    goes_on: bool = False
    sends_once: bool = False
    shares_history: bool = False
    may_be_silent: bool = False
    chooses_cohorts: bool = False
    n_exchanges: int = 0
    setup_share: float | None = None
    takes_stale: bool = False
    admits_late_clients: bool = True
    refuses: Mapping[str, str] = field(default_factory=dict)


class Algorithm(Value, ABC, Generic[S, C]):
    """A federated method: functions of the server's state S and of the clients' private state C.

    A subclass is a dataclass of hyperparameters, none of which changes. The functions stand in the
    order of a paper's algorithm. Server and clients exchange only a
    :class:`~fedrecsk.protocol.Message` (download) and :class:`~fedrecsk.protocol.Updates` (upload).
    States are dataclasses whose fields say by what arrays are indexed, see
    ``fedrecsk.protocol.states``.

    Server functions get the shared key, a :class:`~fedrecsk.protocol.keys.Key`; client functions
    get :class:`~fedrecsk.protocol.keys.Keys`, a shared and a private one. No function changes what
    it is given, except that clients may write into their own state.
    """

    @property
    def traits(self) -> Traits:
        """What the loop must know before it begins."""
        return Traits()

    @abstractmethod
    def downloads(self, n_items: int) -> dict[str, Form]:
        """Return the form of each field that the server may send, in whatever message.

        Clients refuse messages with other fields, or with arrays of another form.
        """

    # --------------------------------------------------------------- before the rounds

    def rounds(self, sampling: Sampling, n_clients: float) -> int:
        """Return what ``n_rounds="auto"`` stands for in a fit to `n_clients` clients."""
        raise NotImplementedError(f"{type(self).__name__} needs rounds(...).")

    def setup_fields(self, n_items: int) -> dict[str, FieldSpec]:
        """Return what all clients send before the rounds, empty if nothing."""
        return {}

    def request(self, catalogue: Catalogue) -> Message:
        """Server: what clients must know to answer in the set-up."""
        return Message()

    def answer(self, block: Block, message: Message, key: Keys) -> Updates:
        """Clients: what they send in the set-up."""
        raise NotImplementedError(f"{type(self).__name__} needs answer(...).")

    @abstractmethod
    def begin(self, catalogue: Catalogue, sums: Upload | None, key: Key) -> S:
        """Server: its first state, from the catalogue and the sums of the set-up, if it has one."""

    def announce(self, server: S) -> Message:
        """Server: what it sends to every client once, after the set-up."""
        return Message()

    # ---------------------------------------------------------------------- each round

    @abstractmethod
    def broadcast(self, server: S, key: Key) -> Message | None:
        """Server: this round's download."""

    def decode(self, message: Message, key: Key) -> Message:
        """Clients: a message with the fields that they derive from it; `key` is the shared one."""
        return message

    @abstractmethod
    def fields(self, n_items: int) -> dict[str, FieldSpec]:
        """Return what a client sends in a round."""

    @abstractmethod
    def enter(self, block: Block, message: Message, key: Keys) -> C:
        """Clients: their first private state, from the announcement and a first broadcast.

        Clients of a block may take part for the first time later than others, so nothing may
        depend on that broadcast.
        """

    @abstractmethod
    def update(
        self, block: Block, clients: C, message: Message, turn: RoundMasks, key: Keys
    ) -> tuple[C, Updates | None, Loss]:
        """Clients: one local step of those in ``turn.active``; the others stay as they are.

        Returns
        -------
        clients : C
        updates : Updates or None
            Sums over the clients in ``turn.delivers``, or with ``turn.separate`` each one's own.
        loss : tuple of float or None
            Sum of the training losses and of their weights, for `loss_curve_`; never sent.
        """

    def centers(self, message: Message) -> dict[str, np.ndarray]:
        """Server: what a client that changes nothing sends, for fields where that is not zero."""
        return {}

    @abstractmethod
    def step(self, server: S, upload: Upload | None, key: Key) -> S:
        """Server: its step on the round's Upload, None if there is none."""

    # ------------------------------------------------------------------------- the end

    @abstractmethod
    def final(self, server: S) -> Message:
        """Server: what a client needs to recommend."""

    def delta(self, server: S) -> Message | None:
        """Server: what a client with the last model needs instead; None: the whole model."""
        return None

    def personalize(
        self, block: Block, clients: C | None, message: Message, turn: RoundMasks, key: Keys
    ) -> C:
        """Clients: the step of those in ``turn.active`` on the final model.

        The message has the announcement's fields too. `clients` is None for new users and for
        clients that have taken part in no round. The result for other clients' users is ignored,
        and no user's vector may depend on which other clients are active.
        """
        return self.enter(block, message, key) if clients is None else clients

    def item_prior(self, server: S) -> ItemPrior | None:
        """Server: what it keeps of `item_features`."""
        return getattr(server, "prior", None)

    # ------------------------------------------------------------------------ the model

    @abstractmethod
    def server_attributes(self, message: Message) -> Attributes:
        """Return the fitted attributes that the final message has, as clients read it; a dict."""

    def state_attributes(self, server: S) -> Attributes:
        """Return the fitted attributes that the server does not send; a dict."""
        prior = self.item_prior(server)
        return {} if prior is None else {"_content": prior}

    @abstractmethod
    def user_attributes(self, block: Block, clients: C) -> Attributes:
        """Return the fitted attributes that are the users' own; a dict.

        Arrays with a row per user of the block, with names that begin with ``user_``. Anything
        else needs a class method ``joined(parts)``.
        """

    def model(self, fitted: Mapping[str, Any]) -> Model:
        """Return the model of fitted attributes, by their names; by default vectors and biases."""
        return Factors.of(fitted)

    def losses(
        self, model: Model, held_out: HeldOut, seen: tuple[NDArray, NDArray]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Clients: loss and weight of each held-out row under a model fitted for these users.

        The loss is multiplied by the weight already; the default is the squared error. `seen` are
        the users' other rows: where each user's begin, and their items.
        """
        predicted = model.predict(held_out.users, held_out.items)
        return held_out.weights * (held_out.values - predicted) ** 2, held_out.weights

    def as_newcomers(self, block: Block) -> Block:
        """Return a block of users that were not in the fit, with the codes that draws need."""
        return block

    # ------------------------------------------------------------------- what others see

    def item_vectors(self, message: Message) -> np.ndarray:
        """Return a broadcast's item vectors (n_items, width), as an adversary reads them.

        A user's scores are their product with some vector, up to a constant; biases are a column.
        """
        for name in ("item_factors", "item_vectors"):
            if name in message:
                return message[name].values
        raise TypeError(
            f"{type(self).__name__} broadcasts neither item_factors nor item_vectors; implement "
            "item_vectors(self, message) to attack it with a View's item_vectors."
        )

    def private_vectors(self, clients: C) -> np.ndarray:
        """Return clients' users' vectors, with which a curious server's guesses are compared."""
        vectors = getattr(clients, "users", None)
        if vectors is None:
            raise TypeError(
                f"Clients of {type(self).__name__} have no state `users`; implement "
                "private_vectors(self, clients) to measure what their uploads reveal."
            )
        return vectors

    # ------------------------------------------------------------------ with other rows

    def resume(self, now: S, before: S, places: NDArray[np.int64]) -> S:
        """Server: its state after the set-up, with what it has learned from other rows."""
        return states.resumed(now, before, places)

    def memory(self, clients: C) -> dict[str, list[np.ndarray]]:
        """Clients: the arrays that they go on from, by what these are indexed by."""
        return states.memory(clients)

    def recall(self, clients: C, remembered: Remembered) -> C:
        """Clients: their first state, with what they remember."""
        states.recall(clients, remembered)
        return clients


# An algorithm of whatever states, as the loop has it.
AnyAlgorithm = Algorithm[Any, Any]


class SendsOnce(ABC, Generic[C]):
    """An algorithm whose clients send once to a sum, and can take their part back."""

    @abstractmethod
    def has_sent(self, clients: C) -> NDArray[np.bool_]:
        """Clients: a mask of those that have sent."""

    @abstractmethod
    def take_back(self, clients: C) -> C:
        """Clients: their state before a round in which they take back all that they have sent."""


class SharesHistory(ABC, Generic[C, H]):
    """An algorithm whose clients of equal history share a part H of their state.

    Their first state may depend on the first broadcast.
    """

    @abstractmethod
    def share(self, common: H | None, message: Message, key: Keys) -> H:
        """Clients: the shared part after a message, computed once; `common` is None at first."""

    @abstractmethod
    def with_shared(self, clients: C, common: H) -> C:
        """Clients: their state with the shared part."""


class ChoosesCohorts(ABC, Generic[S]):
    """An algorithm whose server chooses who takes part."""

    @abstractmethod
    def choose(self, server: S, n_clients: int, size: int, key: Key) -> NDArray[np.bool_] | None:
        """Server: a mask of about `size` clients; None: as the federation draws them."""


class MeetsPeers(ABC, Generic[C]):
    """An algorithm whose devices send something to the others of their groups before they update.

    It does so ``traits.n_exchanges`` times in a round, for the clients that have received its
    message.
    """

    @abstractmethod
    def exchange(
        self, block: Block, clients: C, message: Message, turn: RoundMasks, step: int, key: Keys
    ) -> tuple[C, GroupMessages]:
        """Clients: what those in ``turn.active`` send to the others of their groups."""

    @abstractmethod
    def after_exchange(
        self, block: Block, clients: C, means: np.ndarray, turn: RoundMasks, step: int
    ) -> C:
        """Clients: their state, given the mean of the messages in each client's group."""


def extended(algorithm: AnyAlgorithm, kind: type[P]) -> P:
    """Return an algorithm as the optional protocol that one of its traits promises."""
    if not isinstance(algorithm, kind):
        raise TypeError(
            f"The traits of {type(algorithm).__name__} need functions of {kind.__name__}; derive "
            f"it from {kind.__name__}."
        )
    return algorithm
