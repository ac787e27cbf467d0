"""FedMF: federated averaging of an item matrix (McMahan et al. 2017; Chai et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from fedrecsk._docs import documented
from fedrecsk.federated._reptile import ReptileItems


@documented
@dataclass(eq=False, repr=False)
class FedMF(ReptileItems):
    """Federated matrix factorisation: averaging of an item matrix, user vectors kept private.

    Each round a few clients receive the item matrix Q, train it and their own users' vectors p_u
    by some epochs of mini-batch SGD on their own data, and upload the change of Q; the server adds
    the mean of these changes. This is FedAvg [1]_ on a matrix factorisation [2]_, and the base
    model of CoLR [3]_.

    By default the feedback is implicit: rows of X with y > 0 (all, if y is None) are positives
    with target 1, rows with y <= 0 have target 0, and each positive brings `n_negatives` items
    that its user has not rated, with target 0. The loss is the cross-entropy of the sigmoid of
    p_u . q_i, and `predict` gives that sigmoid, the probability of a positive. With
    ``loss="squared"`` the rows' y are ratings, estimated by ``global_bias_ + p_u . q_i``; it
    remains a ranking model, whose `score` is NDCG@10.

    Parameters
    ----------
    n_factors : int, default=64
        Length of p_u and q_i (d).
    n_rounds : int, default=200
        Number of rounds in total (T).
    loss : {"bce", "squared"}, default="bce"
        Cross-entropy with sampled negatives, or half the squared error of ratings, without.
    n_negatives : int, default=4
        Number of sampled negatives per positive. A client redraws them in each round and keeps
        them over its epochs. They are drawn uniformly, with replacement, from the items without a
        training row of the user; users who have rated everything get none.
    local_epochs : int, default=2
        Number of passes of a client over its examples per round (E).
    batch_size : int, default=64
        Number of examples in a mini-batch; an epoch's last one may be smaller.
    learning_rate : float, default=0.5
        Step of SGD (eta).
    weight_decay : float, default=2e-3
        Weight of ``|p_u|^2 + |q_i|^2`` in the loss of each example.
    aggregation : {"visits", "data_size", "reptile"}, default="visits"
        What the server divides an item's summed updates by. "visits": by the number of
        clients that visited the item, as positive or as sampled negative. "data_size": the mean
        over the round's clients, weighted by their number of ratings; clients that did not visit
        an item slow its change down. "reptile": the plain mean over the round's clients, whose
        number is public, so that clients send their changes only; see :class:`PrivRec`.
    server_learning_rate : float or "auto", default="auto"
        Length of the server's step, as a multiple of that mean; only with "reptile". "auto": 1 for
        each 185 items, at least 1 and at most 20.
    init_std : float, default=0.03
        Standard deviation of the initial vectors.
    shrinkage : float, default=0.5
        Smallest total weight decay of a user's examples in each epoch. It matters for users with
        fewer than about 50 rows, for which `weight_decay` alone overfits. 0: no such limit.
    averaging : bool, default=True
        Whether the final item matrix is the server's average over the rounds, with more weight on
        later ones, instead of the last one. With `early_stopping` it is the best one that clients
        have measured. Averaging sends no further bytes and removes noise if data are few.
    {shared parameters}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u after `local_epochs` more on the final item matrix; private to the client.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        The server's Q.
    global_bias_ : float
        Mean rating; only with ``loss="squared"``.
    {shared attributes}

    Raises
    ------
    ValueError
        By fit: with local differential privacy, if no y is positive, if `n_negatives` is above
        4 and above what any user has left unseen, or if the clients diverge.

    See Also
    --------
    CoLR : The same with updates of low rank.
    SCoLR : The same with a rank for each client.
    PrivRec : The same with another mean, for differential privacy.

    Notes
    -----
    *Algorithm*::

        set-up, with loss="squared": clients send sums of ratings    _setup_update
        each round
          1  server sends Q                                          _model
          2  clients draw negatives                                  kernel draw_examples
          3  in each batch, every q_i of it takes one step,          kernel move_items
          4  ... and every p_u, both on the mean of their gradients  kernel move_users
          5  clients upload the change of Q, and what they visited   kernel visit_summed
          6  server adds the mean over the visitors of each item     _aggregate
        at the end
          7  server sends its average of Q                           _final_model
          8  clients fit p_u to it                                   _personalize: kernel fit_users

    *What is sent.* Each round down: Q, ``4 m d`` bytes per client for m items. Up: the change of
    Q, ``4 m d`` bytes, and for each item whether the client visited it, m bytes, so that counts
    can be added up; with "data_size" the client's number of ratings in their place, and
    with "reptile" nothing. With ``loss="squared"`` also once: up, the client's sum of ratings and
    their number; down, the mean. At the end, down: the final Q.

    *What it reveals.* In plaintext the rows that are not zero are the visited items, a fifth of
    them positives, and the size of a row reveals which. Only sums over clients are used.

    *Weights.* `sample_weight` multiplies an example's loss; a negative has the weight of its
    positive. It is divided by its mean on the client, so that its scale does not change step sizes.

    *Final vectors.* A client that took part in a round fits p_u for `local_epochs` more, with the
    final items fixed; one that never did, and every new user, trains 20 epochs from zero. All
    draw negatives from the same stream, so that a user's vector does not depend on others. Under
    early stopping the clients of each round do so before they train, which can cost more than
    the training: 20 epochs for each that is new.

    References
    ----------
    .. [1] B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Aguera y Arcas,
       "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    .. [2] D. Chai, L. Wang, K. Chen and Q. Yang, "Secure Federated Matrix Factorization", IEEE
       Intelligent Systems 36(5), 2020.
    .. [3] N.-H. Nguyen, T.-A. Nguyen, T. Nguyen, V. T. Hoang, D. D. Le and K.-S. Wong, "Towards
       Efficient Communication and Secure Federated Recommendation System via Low-rank
       Training", WWW 2024.

    Examples
    --------
    >>> from fedrecsk import FedMF
    >>> from fedrecsk.datasets import make_ratings
    >>> X, _ = make_ratings(n_users=60, n_items=40, n_ratings=900, random_state=0)
    >>> model = FedMF(n_factors=8, n_rounds=50, random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:2, 0], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.communication_.bytes_up == 50 * 12 * (4 * 40 * 8 + 40)
    True
    """

    n_factors: int = 64
