"""Run a federated estimator on real machines.

:mod:`fedrecsk.deployment.flower` does it with Flower. What the other modules of this package do
(bytes, a node's files, the server's loop) does not depend on Flower.
"""
