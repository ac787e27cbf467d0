"""What MetaMF's server makes for each client, computed only where it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fedrecsk.neural._metamf_network import CLIENTS_AT_A_TIME, Parts, Sizes, parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.protocol import Message


class Made:
    """One part of what the server makes for some clients, which looks like an array.

    A simulated client reads the rows of its own items only, and these alone are computed.
    ``numpy.asarray`` computes everything, as a deployed server would.

    Parameters
    ----------
    name : {"table", "basis", "scorer"}
    weights : dict of {str: ndarray}
    codes : ndarray of shape (n_clients, code_size)
    sizes : Sizes
    """

    def __init__(
        self,
        name: Literal["table", "basis", "scorer"],
        weights: dict[str, np.ndarray],
        codes: np.ndarray,
        sizes: Sizes,
    ) -> None:
        self.name = name
        self.weights = weights
        self.codes = codes
        self.sizes = sizes

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = self.sizes
        shapes = {
            "table": (sizes.n_items, sizes.rank),
            "basis": sizes.basis,
            "scorer": (sum(sizes.scorer),),
        }
        return len(self.codes), *shapes[self.name]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.codes.dtype

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, clients: Any) -> Made:
        return Made(self.name, self.weights, self.codes[clients], self.sizes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        items = np.arange(self.sizes.n_items if self.name == "table" else 0)
        array = np.empty(self.shape, dtype=self.dtype if dtype is None else dtype)
        for start in range(0, len(self), CLIENTS_AT_A_TIME):
            chunk = slice(start, start + CLIENTS_AT_A_TIME)
            array[chunk] = getattr(self[chunk].parts(items), self.name).numpy()
        return array

    def parts(self, items: NDArray[np.integer]) -> Parts:
        """All that these clients receive, of the table only the rows of `items`."""
        weights = {name: torch.from_numpy(one) for name, one in self.weights.items()}
        with torch.no_grad():
            return parts(weights, torch.from_numpy(self.codes), self.sizes, items)


def received(message: Message, who: Any, items: NDArray[np.integer]) -> Parts:
    """What clients read of a message: rows of `items` of their tables, basis and scorer.

    Parameters
    ----------
    message : Message
        The message as a block of clients receives it.
    who : ndarray or slice
        Clients of the block.
    items : ndarray of shape (n_rows,)
    """
    table, basis, scorer = (message[name].values[who] for name in ("table", "basis", "scorer"))
    if isinstance(table, Made):
        return table.parts(items)
    return Parts(*map(torch.from_numpy, (table[:, items], basis, scorer)))
