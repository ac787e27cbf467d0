"""What devices of a group send directly to each other, without the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from fedrecsk.protocol.ledger import Ledger


class GroupMessages(NamedTuple):
    """Vectors of a block's clients, each of which goes to all other clients of the same group.

    Attributes
    ----------
    groups : ndarray of shape (n_clients of the block,), dtype int
        The group of each client; -1 for clients that send nothing.
    values : ndarray of shape (n_clients of the block, width)

    Examples
    --------
    Two clients of group 4, and one that sends nothing:

    >>> import numpy as np
    >>> from fedrecsk.protocol import GroupMessages
    >>> messages = GroupMessages(np.array([4, 4, -1]), np.ones((3, 2)))
    >>> messages.values.shape
    (3, 2)
    """

    groups: NDArray[np.int64]
    values: np.ndarray


def deliver(
    messages: Iterable[GroupMessages | None],
    clients: Iterable[NDArray[np.int64]],
    n_clients: int,
    ledger: Ledger,
    wire_dtype: str,
) -> list[NDArray[np.float64] | None]:
    """Average the messages of each group, as each of its clients does, and count their bytes.

    Every client sends its message to each other client of its group. A message that is not finite
    is counted and then left out of the mean. Clients are added in the order of their codes, so
    that the means do not depend on the blocks.

    Parameters
    ----------
    messages : iterable of GroupMessages or None
        Those of each block; None for blocks that send nothing.
    clients : iterable of ndarray
        Codes of each block's clients.
    n_clients : int
        Number of clients in all blocks of the fit.
    ledger : Ledger
    wire_dtype : str
        Type of the numbers in the messages.

    Returns
    -------
    means : list of ndarray of shape (n_clients of the block, width), dtype float64, or None
        For each block, the mean over each client's group, its own message included; zero for
        clients that send nothing. None for blocks that send nothing.
    """
    sent = [(c, one) for c, one in zip(clients, messages, strict=True)]
    widths = [one.values.shape[1] for _, one in sent if one is not None]
    if not widths:
        return [None for _ in sent]
    groups, values = np.full(n_clients, -1), np.zeros((n_clients, widths[0]))
    for codes, one in sent:
        if one is not None:
            groups[codes], values[codes] = one.groups, one.values
    senders = np.flatnonzero(groups >= 0)
    names, numbers = np.unique(groups[senders], return_inverse=True)
    n_others = np.bincount(numbers, minlength=len(names))[numbers] - 1
    nbytes = n_others * values.shape[1] * np.dtype(wire_dtype).itemsize
    ledger.between_devices(senders, n_others, nbytes)
    finite = np.isfinite(values[senders]).all(axis=1)
    means = np.zeros((len(names), values.shape[1]))
    np.add.at(means, numbers[finite], values[senders[finite]])
    means /= np.maximum(np.bincount(numbers[finite], minlength=len(names)), 1)[:, None]
    received = np.zeros_like(values)
    received[senders] = means[numbers]
    return [None if one is None else received[codes] for codes, one in sent]
