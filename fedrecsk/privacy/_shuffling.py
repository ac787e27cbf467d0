"""What a shuffler adds to local privacy."""

from __future__ import annotations

import math


def shuffled_epsilon(epsilon: float, n_clients: int, delta: float) -> float:
    """Bound the epsilon of one round if a shuffler hides who sent which upload.

    A client's upload is then hidden among those of the others. The theorem needs all of this:

    - A shuffler that everybody trusts removes everything that tells the senders apart (names,
      addresses, times) and mixes the uploads before the server sees them. Nothing in this package
      does so; a federation must provide it.
    - Each of `n_clients` clients sends exactly one upload, with the same mechanism and parameters,
      which is `epsilon`-differentially private as a whole, with delta 0: that of
      :class:`SphereMechanism`, or of :class:`LaplaceMechanism` with the sum over all its
      coordinates. Gaussian noise is not covered.
    - Clients that drop out hide nobody: count those that surely send.

    Several rounds compose: the epsilons add up, and so do the deltas.

    Parameters
    ----------
    epsilon : float
        Epsilon of one client's upload, positive and at most
        ``log(n_clients / (16 log(2 / delta)))``.
    n_clients : int
        Number of clients whose uploads are shuffled together.
    delta : float in (0, 1)
        Probability, roughly, with which the bound may fail.

    Returns
    -------
    epsilon : float
        For replacing one client's data, together with `delta`. At most the epsilon given.

    Raises
    ------
    ValueError
        If the theorem does not hold for these numbers.

    Notes
    -----
    This is the closed form of [1]_. The better one of the same authors' later paper is not used,
    because an erratum restricts it to some mechanisms [2]_.

    References
    ----------
    .. [1] V. Feldman, A. McMillan and K. Talwar, "Hiding among the clones: a simple and nearly
       optimal analysis of privacy amplification by shuffling", FOCS 2021, theorem 3.1.
    .. [2] V. Feldman, A. McMillan and K. Talwar, "Stronger privacy amplification by shuffling for
       Renyi and approximate differential privacy", SODA 2023, with the erratum in
       arXiv:2208.04591.

    Examples
    --------
    >>> from fedrecsk.privacy import shuffled_epsilon
    >>> round(shuffled_epsilon(1.0, n_clients=100_000, delta=1e-6), 3)
    0.073
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon={epsilon} must be positive.")
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta} must be between 0 and 1.")
    least = 16 * math.log(2 / delta)
    if n_clients < 1 or epsilon > math.log(n_clients / least):
        needed = math.inf if epsilon > 700 else math.ceil(least * math.exp(epsilon))
        raise ValueError(
            f"Shuffling {n_clients} uploads of epsilon={epsilon:g} has no proven effect at "
            f"delta={delta:g}: the theorem needs {needed:,} clients or more for this epsilon. Use "
            "a smaller epsilon per upload, or do without the shuffler's effect."
        )
    spread = 8 * math.sqrt(math.exp(epsilon) * math.log(4 / delta) / n_clients)
    spread += 8 * math.exp(epsilon) / n_clients
    return min(epsilon, math.log1p(math.tanh(epsilon / 2) * spread))
