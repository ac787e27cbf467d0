"""FedSpectral: item vectors from one sum over clients, and users solved exactly."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from scipy import sparse
from scipy.linalg import eigh
from sklearn.utils.extmath import randomized_svd

from fedrecsk._utils.constraints import AtLeast1, Positive
from fedrecsk._utils.docs import documented
from fedrecsk.base._item_weights import pairs_of, symmetric, whole
from fedrecsk.federated._gram import FederatedGram, GramAlgorithm, signal
from fedrecsk.federated._wmf import UserAlgorithm, UserParameters
from fedrecsk.protocol.messages import Dense, Form, Message

__all__ = ["FedSpectral"]

# Mean squared length of the columns of the item vectors.
MEAN_SQUARE = 100.0
# Eigenvalues below this share of the largest are rounding.
RESOLUTION = 1e-10
# Steps of the randomised eigenpairs of a sparse sum.
POWER_STEPS = 4


@dataclass(kw_only=True, eq=False)
class FedSpectralAlgorithm(UserAlgorithm, GramAlgorithm):
    """The server finds item vectors, for which clients solve for their users."""

    solves_sparse = True

    def downloads(self, n_items):
        factors = Form((n_items, self.n_factors))
        return super().downloads(n_items) | {"item_factors": factors}

    def solve(self, server):
        n_items, noise_std = server.n_items, server.noise_std
        n_factors = min(self.n_factors, n_items)
        if sparse.issparse(server.gram):
            matrix = symmetric(*pairs_of(server.gram, n_items), n_items)
        else:
            matrix = whole(server.gram, n_items)
        if noise_std > 0:
            items = np.flatnonzero(server.counts)
            leading = _factors_from_noise(matrix, items, n_factors, noise_std)
        else:
            leading = _spectral_factors(matrix, n_factors)
        factors = np.zeros((n_items, self.n_factors))
        factors[:, : leading.shape[1]] = leading
        return Message(item_factors=Dense(factors.astype(self.dtype)))

    def model(self, fitted):
        return replace(super().model(fitted), unknown=lambda: fitted["_popularity"])


@documented
@dataclass(eq=False, repr=False)
class FedSpectral(UserParameters, FederatedGram):
    """Spectral item vectors from one sum in one round, and users by ridge regression.

    The item vectors are the leading eigenvectors of the summed and scaled X'X. Each client then
    finds its users' vectors by the exact user step of weighted matrix
    factorisation (:class:`LocALS`), over its own items and all others. Item vectors are not
    trained, and still rank as well as :class:`FedEASE`. The two rank differently enough for their
    sum to be better than either; see :class:`~fedrecsk.ensemble.RankingEnsemble`.

    Parameters
    ----------
    n_factors : int, default=128
        Length of p_u and q_i (d). If there are fewer items, the rest is zero.
    alpha, reg_user
        As in :class:`LocALS`; by default 1 and 60.
    n_rounds, upload
        As in :class:`FedEASE`.
    {timestamps}
    {pair_half_life}
    {history_half_life}
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u, solved by every client for the item vectors; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        q_i, from the server; columns in descending order of their eigenvalues.
    {shared attributes}

    Raises
    ------
    ValueError
        As :class:`FedEASE` does.

    See Also
    --------
    FedEASE : Weights between items from the same sum.
    LocALS : The same user step, and item vectors trained over several rounds.

    Notes
    -----
    *Algorithm*::

        each round
          1  server requests uploads (1 byte)                   broadcast
          2  clients that have not sent before upload x x',
             summed over their users                            update: kernel add_pairs
          3  server adds up: G                                  step
        end
          4  D = diag(G); V, e = the d leading eigenpairs of D^-1/4 G D^-1/4
             Q = D^1/4 V e^1/2, scaled to a mean squared length
             of its columns of 100                              solve
          5  server sends Q                                     final
          6  clients solve p = (Q'Q + reg_user I + alpha sum w q q')^-1
             sum (1 + alpha w) q over a user's own items        personalize: kernel fit_users

    With 5,000 items and more, G is kept sparse, and step 4 is randomised [3]_.

    With the power 1/4, popular items have less weight than in a singular value decomposition of X
    and more than in a normalised Laplacian.

    *Central privacy.* With ``central_dp`` the server first chooses frequent items by noisy counts,
    as in :class:`FedEASE`; the others get vectors of zeros. Each client's x x' of the chosen items
    is scaled down to the norm `clip`, and every entry of G has noise of the same deviation s. Step
    4 is then another one: D is 1, so that the noise is equal in all directions; of the eigenvalues
    e of the n chosen items only those above ``b = 2 s sqrt(n)`` count, the largest that noise alone
    would have, as ``sqrt(e^2 - b^2)`` [2]_. There may be fewer than `n_factors`. Users are still
    solved from their own data without noise, which stay with them. One round with all clients needs
    the least noise. If all clients have far longer uploads than `clip`, as with ``clip=1``, they
    count the same, whatever their number of ratings.

    *Weights.* w is the sample weight; the entry of X is w where y > 0, and 0 elsewhere. The size of
    a positive y does not matter.

    {time}
    In step 6, w is then the faded weight, and a row that has faded to f has the target
    f (1 + alpha w) / (1 + alpha w f), so that a row that has faded away counts as no row.

    *Rounds, cohorts, lost uploads, what is revealed* are as in :class:`FedEASE`. *What is sent*
    differs: clients send nothing before the round, and receive all item vectors in the end,
    ``4 n_items n_factors`` bytes.

    *Short histories* count as in :class:`LocALS`.

    References
    ----------
    .. [1] Y. Hu, Y. Koren, C. Volinsky, "Collaborative filtering for implicit feedback
       datasets", ICDM 2008, equation 4 (step 6). Steps 4 and 5 are our own.
    .. [2] M. Gavish and D. L. Donoho, "Optimal Shrinkage of Singular Values", IEEE Transactions
       on Information Theory 63(4), 2017.
    .. [3] N. Halko, P.-G. Martinsson and J. A. Tropp, "Finding structure with randomness",
       SIAM Review 53(2), 2011.

    Examples
    --------
    >>> from fedrecsk import FedSpectral
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = FedSpectral(n_factors=8).fit(X)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    """

    n_factors: AtLeast1 = 128
    _: KW_ONLY
    reg_user: Positive = 60.0

    _kind = FedSpectralAlgorithm


def _spectral_factors(gram, n_factors):
    """Return Q = D^1/4 V e^1/2 of the leading eigenpairs of D^-1/4 G D^-1/4, scaled."""
    squares, size = gram.diagonal(), gram.shape[0]
    scale = np.where(squares > 0, squares, 1.0) ** 0.25
    if sparse.issparse(gram):
        by_scale = sparse.diags_array(1 / scale)
        scaled = (by_scale @ gram @ by_scale).astype(np.float32).tocsr()
        vectors, strengths, others = randomized_svd(
            scaled, n_factors, n_iter=POWER_STEPS, random_state=0
        )
        # Negative eigenvalues are not those of a sum of x x': some clients have sent wrong numbers.
        strengths[np.sum(vectors * others.T, axis=0) < 0] = 0
        return _scaled(scale[:, None] * vectors * np.sqrt(strengths, dtype=np.float64))
    strengths, vectors = eigh(
        gram / scale[:, None] / scale, subset_by_index=[size - n_factors, size - 1]
    )
    strengths[strengths < RESOLUTION * strengths[-1]] = 0
    return _scaled((scale[:, None] * vectors * np.sqrt(strengths))[:, ::-1])


def _factors_from_noise(matrix, items, n_factors, noise_std):
    """Return Q = V e^1/2 of at most `n_factors` eigenpairs of these items' G above its noise."""
    strengths, vectors = signal(matrix[np.ix_(items, items)], noise_std)
    factors = np.zeros((len(matrix), min(n_factors, len(strengths))))
    factors[items] = (vectors * np.sqrt(strengths))[:, :n_factors]
    return _scaled(factors)


def _scaled(factors):
    if not factors.any():
        return factors
    # Eigenvectors have no sign of their own: the largest entry is positive.
    largest = np.abs(factors).argmax(axis=0)
    factors *= np.where(factors[largest, np.arange(factors.shape[1])] < 0, -1, 1)
    return factors * np.sqrt(MEAN_SQUARE * factors.shape[1] / np.sum(factors**2))
