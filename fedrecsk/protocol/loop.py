"""The steps of a fit, in their order, whatever carries the messages to the clients and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from sklearn.exceptions import ConvergenceWarning

from fedrecsk._utils.user_warnings import warn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedrecsk.protocol.messages import Message
    from fedrecsk.protocol.participation import Participation
    from fedrecsk.protocol.server import Server


# What clients answer in a step, and what is seen of a round.
A = TypeVar("A")
R = TypeVar("R")


class Loop(ABC, Generic[A, R]):
    """Lets a `server` fit a model; subclasses ask clients in threads, on Dask or over Flower."""

    server: Server

    @abstractmethod
    def ask_setup(self, message: Message) -> A:
        """Send all clients the message of the set-up; return their answers."""

    @abstractmethod
    def announce(self, message: Message) -> None:
        """Send all clients the announcement."""

    @abstractmethod
    def ask_round(self, participation: Participation, message: Message | None) -> R:
        """Let clients update, and close the round."""

    @abstractmethod
    def ask_validation(self, participation: Participation, message: Message) -> A:
        """Let clients evaluate a model on rows that they hold out; return their answers."""

    @abstractmethod
    def keep_best(self, who: NDArray[np.bool_]) -> None:
        """Let the clients of a mask keep what they have evaluated last, because it is the best."""

    def set_up(self) -> None:
        """Do everything that comes after the registration and before the first round."""
        server = self.server
        if server.has_setup:
            server.close_setup(self.ask_setup(server.setup_message()))
        self.announce(server.send_announcement())

    @property
    def is_over(self) -> bool:
        """Whether all rounds were run, or early stopping has ended them."""
        server = self.server
        n_rounds = server.plan.rounds(server.plan.units(server))
        return server.round >= n_rounds or server.stopping.stopped

    def round(self) -> R | None:
        """Run one round; return what `close` does, None if early stopping has ended the fit."""
        server = self.server
        participation, message = server.open_round()
        # The message of a round is the model after the last one.
        if message and server.round and server.plan.early_stopping:
            self._validate(participation)
            if server.stopping.stopped:
                server.stop()
                return None
        return self.close()

    def evaluate(self, participation: Participation) -> A:
        """Let the clients that receive the current model evaluate it; return their answers."""
        message = self.server.send_for_validation(participation.receives)
        return self.ask_validation(participation, message)

    def close(self) -> R:
        """Run the rest of the open round; return what `ask_round` does."""
        return self.ask_round(*self.server.opened)

    def _validate(self, participation):
        """Evaluate the model, and note whether it is the best so far."""
        answers, who = self.evaluate(participation), participation.receives
        if self.server.close_validation(answers, who):
            self.keep_best(who)

    def final_message(self) -> Message:
        """Send the final model, the last one or the best; return the message."""
        server, stopping = self.server, self.server.stopping
        if stopping.stopped:
            return server.send_best()
        message = server.send_final()
        if not server.plan.early_stopping:
            return message
        self._validate(server.final_participation())
        if stopping.message is None:
            warn(
                "No held-out row counts, so early stopping could judge no model and the last one "
                "is kept. Raise validation_fraction.",
                ConvergenceWarning,
            )
        elif stopping.best_round != server.round - 1:
            return server.send_best()
        return message
