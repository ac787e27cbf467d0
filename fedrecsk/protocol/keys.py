"""Random numbers derived from (seed, round, purpose, client).

A draw does not depend on other draws, so neither threads nor blocks can change a fit.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from fedrecsk._utils.integers import GOLDEN, mix

_MASK = 0xFFFFFFFFFFFFFFFF
# The round that keys have in the set-up.
SETUP: int = -2


class Key(NamedTuple):
    """Address of a draw within a fit: its seed, and the round; -1 before the first."""

    seed: int
    round: int = -1

    def at(self, round: int) -> Key:
        """Return the key of another round of the same fit."""
        return self._replace(round=round)

    def hashed(self, purpose: str, index: ArrayLike = 0) -> NDArray[np.uint64]:
        """Hash of (seed, round, purpose, index) as uint64, vectorised over `index`."""
        state = np.uint64(0)
        with np.errstate(over="ignore"):
            for part in (self.seed, self.round + 1, zlib.crc32(purpose.encode())):
                state = mix((state ^ np.uint64(part & _MASK)) + GOLDEN)
            return mix(state + np.asarray(index).astype(np.uint64) * GOLDEN)

    def uniform(self, purpose: str, index: ArrayLike = 0) -> NDArray[np.float64]:
        """Uniform draws in [0, 1), one for each entry of `index`."""
        return (self.hashed(purpose, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, purpose: str, index: ArrayLike = 0) -> NDArray[np.float64]:
        """Standard normal draws, one for each entry of `index`."""
        return ndtri(self.uniform(purpose, index) + 2.0**-54)

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a NumPy generator for this key and purpose, to draw whole arrays."""
        return np.random.default_rng(int(self.hashed(purpose)))


class Keys(NamedTuple):
    """The two keys of a client.

    `shared` is for draws that clients and server share, such as a coin or random directions;
    `private` for users' vectors, negatives, noise, held-out rows. In a simulation both come from
    `random_state`. In a deployment, the private key comes from the operating system.
    """

    shared: Key
    private: Key

    @property
    def round(self) -> int:
        """The round of both."""
        return self.shared.round

    def at(self, round: int) -> Keys:
        """Both keys at another round."""
        return Keys(self.shared.at(round), self.private.at(round))
