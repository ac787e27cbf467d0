"""Randomness addressed by (seed, round, purpose, client) instead of drawn in some order.

Nobody's draw depends on who else draws, so neither threads nor blocks can change a fit.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


class Key(NamedTuple):
    """Where in a fit a draw belongs.

    Parameters
    ----------
    seed : int
        The fit's seed.
    round : int
        The round; -1 before the first.
    """

    seed: int
    round: int = -1

    def at(self, round):
        """The same fit at another round."""
        return self._replace(round=round)

    def hashed(self, purpose, index=0):
        """Hash of (seed, round, purpose, index) as uint64, vectorised over `index`."""
        state = _mix_int(self.seed & _MASK)
        state = _mix_int(state ^ ((self.round + 1) & _MASK))
        state = _mix_int(state ^ zlib.crc32(purpose.encode()))
        with np.errstate(over="ignore"):
            offset = np.asarray(index).astype(np.uint64) * np.uint64(_GOLDEN)
            return _mix(np.uint64(state) + offset)

    def uniform(self, purpose, index=0):
        """Uniform draws in [0, 1), one for each entry of `index`."""
        return (self.hashed(purpose, index) >> np.uint64(11)) * 2.0**-53

    def normal(self, purpose, index=0):
        """Standard normal draws, one for each entry of `index`."""
        return ndtri(self.uniform(purpose, index) + 2.0**-54)

    def generator(self, purpose):
        """A NumPy generator of this key, for draws that are made as a whole."""
        return np.random.default_rng(int(self.hashed(purpose)))


def setup_round(step):
    """The round at which keys stand in a set-up exchange: before all others, and its own."""
    return -2 - step


class Keys(NamedTuple):
    """The two keys of a client.

    Attributes
    ----------
    shared : Key
        Of what both sides derive alike, such as a coin or directions; the server has it too.
    private : Key
        Of what nobody else may know: users' vectors, negatives, noise, held-out rows. In a
        simulation both come from `random_state`; a deployed client draws it from the operating
        system.
    """

    shared: Key
    private: Key

    @property
    def round(self):
        """The round of both."""
        return self.shared.round

    def at(self, round):
        """Both at another round."""
        return Keys(self.shared.at(round), self.private.at(round))


def _mix(x):
    # splitmix64 (Steele, Lea and Flood 2014): every input bit reaches every output bit.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_int(x):
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
