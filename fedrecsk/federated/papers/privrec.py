"""PrivRec (Wang et al. 2021) on matrix factorisation: Reptile with whole clients protected."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from fedrecsk._utils.constraints import Above0To1, AtLeast1
from fedrecsk._utils.docs import documented
from fedrecsk.federated.fedmf import FedMF


@documented
@dataclass(eq=False, repr=False)
class PrivRec(FedMF):
    """Federated matrix factorisation by Reptile, made for user-level differential privacy.

    :class:`FedMF` with ``aggregation="reptile"``: clients train the item matrix Q for some epochs
    and upload its change, and the server takes a step along the mean change of the round's clients.
    It needs no counts of visited items, which would have to be protected, too. This is the
    federated part of PrivRec [1]_, with its rounds and cohorts, on matrix factorisation in place of
    the paper's network.

    By default there is no noise. For the paper's DP-PrivRec, which clips each client's change and
    adds noise to their sum, set ``central_dp=CentralDP(clip=50, noise_multiplier=1)`` and
    ``sampling="poisson"`` in the :class:`Federation`.

    Parameters
    ----------
    n_factors, loss, n_negatives, local_epochs, batch_size, learning_rate, reg
        As in :class:`FedMF`.
    n_rounds : int, default=50
        Number of rounds in total (T), the paper's.
    aggregation : {"reptile", "visits", "data_size"}, default="reptile"
        As in :class:`FedMF`. With another than "reptile" this is FedMF with other defaults.
    server_learning_rate, shrinkage, averaging
        As in :class:`FedMF`; the first is eta_s below.
    client_fraction : float, default=0.6
        Share of the clients in a round, the paper's. Its epsilon is for cohorts that are drawn by
        chance, ``federation=Federation(sampling="poisson")``.
    {shared parameters}

    Attributes
    ----------
    user_factors_, item_factors_, global_bias_
        As in :class:`FedMF`.
    {shared attributes}

    Raises
    ------
    ValueError
        As :class:`FedMF` does.

    See Also
    --------
    FedMF : The mean over the visitors of each item.
    FedSpectral : More accurate at the same epsilon, in one round.

    Notes
    -----
    *The server's step* on the changes D_c of the N clients of a round, with C and z the `clip`
    and the `noise_multiplier` of `central_dp`, and eta_s the `server_learning_rate`::

        Q <- Q + eta_s / N (sum over c of D_c min(1, C / |D_c|) + normal noise of deviation z C)

    Under `central_dp` N is the planned size of a cohort, otherwise the number of changes that have
    arrived.

    *The paper's epsilon.* It reports 35.6 for a noise multiplier of 1, 50 rounds, a sampling rate
    of 0.6 and delta 1e-5. By today's tightest accountant, which `privacy_` reports, the same noise
    has epsilon 31.2 (``python -m benchmarks.private_rankings epsilon``).

    *What is not here.* The paper's network, and its training in two stages, item vectors first:
    here item vectors are all that the server trains.

    *What is sent.* As by :class:`FedMF`, without the visits: ``4 m d`` bytes per client and round
    in each direction for m items.

    References
    ----------
    .. [1] Q. Wang, H. Yin, T. Chen, J. Yu, A. Zhou and X. Zhang, "Fast-adapting and
       Privacy-preserving Federated Recommender System", The VLDB Journal 31, 2022
       (arXiv:2104.00919): the algorithms of PrivRec and DP-PrivRec.

    Examples
    --------
    >>> from fedrecsk import PrivRec
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = PrivRec(n_factors=8, random_state=0).fit(X)
    >>> model.communication_.bytes_up == 50 * 36 * 4 * 40 * 8
    True

    With the paper's noise:

    >>> import numpy as np
    >>> from fedrecsk import Federation
    >>> from fedrecsk.privacy import CentralDP
    >>> dp = CentralDP(clip=50, noise_multiplier=1, delta=1e-5)
    >>> private = Federation(sampling="poisson", central_dp=dp)
    >>> model.set_params(federation=private, items=np.arange(40))
    PrivRec(...)
    >>> f"{model.fit(X).privacy_.epsilon:.1f}"
    '31.2'
    """

    _: KW_ONLY
    n_rounds: AtLeast1 = 50
    aggregation: Literal["visits", "data_size", "reptile"] = "reptile"
    client_fraction: Above0To1 = 0.6
