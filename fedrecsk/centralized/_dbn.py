"""A deep belief network: a stack of Boltzmann machines, fine-tuned by back-propagation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit
from sklearn.neural_network import BernoulliRBM

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

BATCH = 100
PRETRAINING_RATE = 0.05
# Adam's, as usual.
DECAYS, EPSILON = (0.9, 0.999), 1e-8


class DeepBeliefNet:
    """Maps features in [0, 1] to codes in (-1, 1).

    All layers have logistic units h = 1 / (1 + exp(-(W h + c))); the last layer's values are moved
    from (0, 1) to (-1, 1).

    Parameters
    ----------
    coefs : list of ndarray of shape (n_in, n_out), dtype float64
        W of each layer.
    intercepts : list of ndarray of shape (n_out,), dtype float64
        c of each layer.
    """

    def __init__(self, coefs: list[np.ndarray], intercepts: list[np.ndarray]) -> None:
        self.coefs, self.intercepts = coefs, intercepts
        parameters = self.coefs + self.intercepts
        self._moments = [[np.zeros(p.shape) for p in parameters] for _ in DECAYS]
        self._n_steps = 0

    @classmethod
    def pretrained(
        cls, features: Any, sizes: Sequence[int], n_epochs: int, seed: int
    ) -> DeepBeliefNet:
        """Layer after layer: a Boltzmann machine of each layer's units given those below.

        Parameters
        ----------
        features : ndarray or csr_array of shape (n_rows, n_features), in [0, 1]
        sizes : sequence of int
            Units of each layer.
        n_epochs : int
            Passes over the rows for each layer; 0 for random weights.
        seed : int
        """
        coefs, intercepts, below = [], [], features
        for depth, size in enumerate(sizes):
            machine = BernoulliRBM(
                n_components=size,
                learning_rate=PRETRAINING_RATE,
                batch_size=BATCH,
                n_iter=n_epochs,
                random_state=seed + depth,
            ).fit(below)
            coefs.append(machine.components_.T.astype(np.float64))
            intercepts.append(machine.intercept_hidden_.astype(np.float64))
            below = machine.transform(below)
        return cls(coefs, intercepts)

    def outputs(self, features: Any) -> np.ndarray:
        """Codes of rows of features, shape (n_rows, sizes[-1])."""
        return 2 * self._layers(features)[-1] - 1

    def tune(
        self, features: Any, targets: np.ndarray, rate: float, generator: np.random.Generator
    ) -> None:
        """Run one pass of Adam over the rows, on the mean squared distance to `targets`."""
        order = generator.permutation(len(targets))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            self._step(self.gradients(features[rows], targets[rows]), rate)

    def gradients(self, features: Any, targets: np.ndarray) -> list[np.ndarray]:
        """Gradients of ``mean over rows of |targets - outputs|^2 / 2``: coefs, then intercepts."""
        layers = self._layers(features)
        slope = 2 * (2 * layers[-1] - 1 - targets) / len(targets)
        coefs, intercepts = [], []
        for depth in reversed(range(len(self.coefs))):
            slope = slope * layers[depth + 1] * (1 - layers[depth + 1])
            coefs.append(np.asarray(layers[depth].T @ slope))
            intercepts.append(slope.sum(axis=0))
            slope = slope @ self.coefs[depth].T
        return coefs[::-1] + intercepts[::-1]

    def _layers(self, features):
        """Values of all layers, from the features up."""
        layers = [features]
        for W, c in zip(self.coefs, self.intercepts, strict=True):
            layers.append(expit(layers[-1] @ W + c))
        return layers

    def _step(self, gradients, rate):
        """One step of Adam."""
        self._n_steps += 1
        corrections = [1 - decay**self._n_steps for decay in DECAYS]
        parameters = self.coefs + self.intercepts
        for p, g, m, v in zip(parameters, gradients, *self._moments, strict=True):
            m += (1 - DECAYS[0]) * (g - m)
            v += (1 - DECAYS[1]) * (g * g - v)
            p -= rate * (m / corrections[0]) / (np.sqrt(v / corrections[1]) + EPSILON)
