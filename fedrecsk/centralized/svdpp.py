"""SVD++: biased matrix factorisation that also learns from which items a user has rated."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from fedrecsk._utils.constraints import Above0To1, AtLeast1, NotNegative
from fedrecsk._utils.docs import documented
from fedrecsk._utils.kernels import LazyModule
from fedrecsk.centralized._sgd import implicit_sums, item_vectors
from fedrecsk.centralized.biased_mf import BiasedMF

sgd_kernels: LazyModule = LazyModule("fedrecsk.centralized._sgd_kernels")


@documented
@dataclass(eq=False, repr=False)
class SVDpp(BiasedMF):
    """SVD++: r_ui = mu + b_u + b_i + q_i.(p_u + |R_u|^-1/2 sum_{j in R_u} y_j).

    R_u are the items that the user rated, whatever the ratings. Everything else is as in
    :class:`BiasedMF`, with the same objective for b_u, b_i, p_u and q_i; `reg_implicit` is the
    decay of y_j.

    Parameters
    ----------
    n_factors : int, default=20
        Length of p_u, q_i and y_j (f).
    {epochs}
        The paper uses 0.9.
    reg : float, default=0.04
        Weight of |p_u|^2 and |q_i|^2 for each rating of the user or item (lambda_7; `reg_bias` is
        lambda_6).
    shrinkage : float, default=5.0
        Further weight once per user and item, in ratings.
    {biases reg}
    reg_implicit : float, default=0.003
        Decay of y_j for each rating of each user who has rated j. The paper's gradient step
        decays all y_j of a user at each of its ratings by lambda_7: that is
        ``reg_implicit=reg``, which hardly lets y move for users with many ratings.
    {held-out rows}
        In squared ratings. Held-out ratings are not in R_u.
    {epochs warm_start}
    random_state : int, RandomState instance or None, default=None
        Seed of the first vectors, the order of users and the held-out rows.
    {item_features}
    {items}

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u + |R_u|^-1/2 sum_j y_j, in the root of rating units.
    user_private_factors_ : ndarray of shape (n_users, n_factors), dtype float32
        p_u.
    item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        q_i.
    implicit_factors_ : ndarray of shape (n_items, n_factors), dtype float32
        y_j.
    {biases}
    {rating attributes}
    {epochs attributes}

    Raises
    ------
    {epochs errors}

    See Also
    --------
    BiasedMF : Without y_j.

    Notes
    -----
    Centralised: all rows are in one place, and `clients` is checked and otherwise ignored.

    An unknown user or item adds nothing, and neither does an item of `items` without ratings,
    also where it is in R_u of a new user. `fold_in` gives a new user its sum of y_j and solves
    for b_u and p_u exactly, with the items fixed. A merged row counts once in R_u.

    Users are visited in a random order that is the same in each epoch, one thread. The y_j of
    a user take the gradients of all its ratings at once at the end of the visit, so that an
    epoch costs O(f) per rating; their decay and p_u's over these ratings are applied then, too.

    *Constants.* Initial vectors have the standard deviation ``INIT_STD = 0.03``.

    References
    ----------
    .. [1] Y. Koren, "Factorization meets the neighborhood: a multifaceted collaborative
       filtering model", KDD 2008, section 4 and equation 15.

    Examples
    --------
    >>> from fedrecsk import SVDpp
    >>> X = [["ann", "alien"], ["ann", "brazil"], ["bob", "alien"], ["bob", "clue"]]
    >>> model = SVDpp(n_factors=2, random_state=0).fit(X, [5, 4, 3, 2])
    >>> model.predict([["bob", "brazil"], ["carol", "alien"]]).round(1)
    array([3.3, 3.6])
    """

    _: KW_ONLY
    n_epochs: AtLeast1 = 40
    learning_rate_decay: Above0To1 = 0.95
    reg: NotNegative = 0.04
    shrinkage: NotNegative = 5.0
    reg_implicit: NotNegative = 0.003

    def _least_bytes(self, data):
        return super()._least_bytes(data) + 4 * self.n_factors * data.n_items

    def _start(self, rows, key):
        generator = key.generator("first implicit vectors")
        Y = item_vectors(rows, self.n_factors, self.INIT_STD, generator)
        return super()._start(rows, key) | {"Y": Y}

    def _arranged(self, rows, key):
        order = key.generator("order of users").permutation(rows.n_users)
        ratings = (rows.items, rows.targets(rows.mean), rows.relative_weights())
        return (order, rows.indptr, *ratings), self._decays(rows)

    def _epoch(self, arranged, state, rate):
        (order, indptr, *ratings), decays = arranged
        given = order, indptr, tuple(ratings), rate, tuple(state.values()), decays
        return sgd_kernels.svdpp(*given, type(rate)(self.reg_implicit))

    def _parameters(self, rows, state):
        implicit = implicit_sums(rows.indptr, rows.items, state["Y"])
        return super()._parameters(rows, state) | {
            "user_factors_": state["P"] + implicit,
            "user_private_factors_": state["P"],
            "implicit_factors_": state["Y"],
        }

    def _new_user_attributes(self, data):
        implicit = implicit_sums(data.indptr, data.items, self.implicit_factors_)
        told = np.einsum("kf,kf->k", implicit[data.users], self.item_factors_[data.items])
        residuals = data.values - self.global_bias_ - self.item_bias_[data.items] - told
        bias, factors = self._solve_users(data, residuals)
        return {
            "user_bias_": bias,
            "user_factors_": implicit + factors,
            "user_private_factors_": factors,
        }
