"""Descriptions of parameters and attributes that many docstrings share, written once.

A docstring names one in braces, on a line of its own, and `documented` replaces that line, with
the default value that the class has. Indented lines after it continue the text::

    {column of times}
        At least within each user.

A text may name others. ``{shared parameters}`` and ``{shared attributes}`` stand for all that
federated methods share, except `n_rounds`.
"""

from __future__ import annotations

import re
import textwrap
from typing import TypeVar

Documented = TypeVar("Documented")

PLACEHOLDER = re.compile(r"^( *)\{([a-z_ -]+)\}$", re.MULTILINE)
DEFAULT = re.compile(r"^((\w+) : .*default=)\{default\}", re.MULTILINE)

# A line in brackets names the text below it.
WRITTEN = """
# parameters

[items]
items : array-like of shape (n_items,), default={default}
    The public catalogue: the ids of all items on offer, in any order, including items without
    ratings. If None, the items of X.
[federated items]
items : array-like of shape (n_items,), default={default}
    The public catalogue: the ids of all items on offer, in any order, including items without
    ratings. If None, the items of X; under differential privacy this raises an error, because
    it reveals whose data are in X.
[item_features]
item_features : DataFrame, array or sparse matrix of shape (n_items, n_features), default={default}
    Public features of the items, from which the prior means of item vectors are predicted, with
    a learned strength. Items without ratings, and new ones added by `add_items`, are given the
    predicted vectors. The index of a DataFrame of numbers (polars: its first column) holds the
    item ids, and is the catalogue unless `items` is given; the rows of an array or a sparse
    matrix are in the order of `items`. Columns that reach beyond [-1, 1] are divided by two
    standard deviations. Only the server uses features, and nothing more is sent.
[nearest item_features]
item_features : DataFrame, array or sparse matrix of shape (n_items, n_features), default={default}
    Public attributes of the items, such as categories as columns of 0 and 1. The more alike two
    items are, the more users count as if they had both. Items without ratings, and new ones
    added by `add_items`, are near those with similar attributes. The index of a DataFrame of
    numbers (polars: its first column) holds the item ids, and is the catalogue unless `items`
    is given; the rows of an array or a sparse matrix are in the order of `items`. Columns that
    reach beyond [-1, 1] are centred and divided by two standard deviations; a sparse matrix
    with such columns becomes an array. Only the server uses features, and nothing more is sent.
[content_weight]
content_weight : float, default={default}
    Number of users, on the scale of the sum of pairs, as which a cosine of 1 between the
    attributes of two items counts. Without `item_features` it is not used.
[item attributes]
*Item attributes.* With `item_features`, `content_weight` times the cosine of the attributes of
items i and j is added to the numerator of B_ij, where it is positive. Beside many users it
counts little, so it ranks items of few rows better. Column k is first multiplied by
``log((n_items + 1) / (1 + sum_i x_ik^2))``, or 0 if this is negative: rare attributes count
more. An item without positives has the count 1 in the denominator; where other items have many
rows, it is rarely among their nearest. So leave it out of `items`, and add it by `add_items`:
a new item is kept by the `n_neighbors` known items with the largest weights, beside their own.
[user_features]
user_features : DataFrame of shape (n_users, n_features), default={default}
    Private features of the users, numbers in [-1, 1], with user ids in the index (polars: in
    the first column). They predict the prior mean of user vectors. Each client reads the rows
    of its own users and uploads only sums. Users without a row have a prior mean of zero; rows
    of users who are not in X serve `fold_in` and `partial_fit`. The estimator, its pickle and
    its repr contain the frame. Not supported with an adversary, on a Dask cluster or on
    devices.
[timestamps]
timestamps : int, str or None, default={default}
    Column of X with the time of each row, read only if a half-life is set: its position (2 or
    more) or, for a DataFrame, its name. Numbers, dates, or ISO dates as strings. "row_order":
    the rows of X are in the order of time, at least within each user. If None, time is not
    used.
[pair_half_life]
pair_half_life : float, "auto" or None, default={default}
    Distance in a user's history, in items, after which the weight of a pair of items halves.
    "auto": 0.7 times the square root of the user's number of items. If None, all pairs have the
    same weight.
[history_half_life]
history_half_life : float, "auto" or None, default={default}
    Number of later items after which an item's weight in the user's scores halves. "auto": 0.7
    times the square root of the user's number of items. If None, all items have the same
    weight.
[nearest half-lives]
pair_half_life : float, "auto" or None, default={default}
    Distance in a user's history, in items, after which the weight of a pair of items halves.
    "auto": 8. If None, all pairs have the same weight.
history_half_life : float, "auto" or None, default={default}
    Number of later items after which an item's weight in the user's scores halves. "auto": 2,
    or ``1 + 6 * backward_weight_ / sqrt(pair_support_)`` if `backward_weight_` is learned:
    longer where direction matters less or pairs are rarer. If None, all items have the same
    weight.
backward_weight : float or "auto", default="auto"
    Weight, from 0 to 1, of what users had before an item, among what is to come after it. 1:
    pairs have no direction; 0: only what came later counts. Less than 1 needs a half-life.
    "auto": what the sum of pairs says, if ``pair_half_life="auto"``, and otherwise 1.
[history_power]
history_power : float or "auto", default="auto"
    Exponent of the count of the item that the user had; `power` is then that of the item to
    come. "auto": ``(2 - backward_weight_) * power`` if `backward_weight_` is learned, and
    otherwise `power`. The more direction matters, the closer to the share of what came next.
[backward_weight_]
backward_weight_ : float
    The weight of the other direction that was used.
[pair_support_]
pair_support_ : float or None
    Mean number of users, each user included, who have a pair of items in the same order, over
    all users' pairs; weighted as the sum is. None if `backward_weight_` is not learned.
[direction]
*Direction.* With `backward_weight` b below 1, the numerator of B_ij is ``F_ij + b F_ji``, where
F_ij adds up only the pairs whose item i came before j. At one time a pair counts half in each
direction. The denominator is ``G_ii^history_power G_jj^power + shrinkage``. With "auto", b is
the square of (pairs of users that have two items in opposite order / in the same order), both
weighted as the sum is.
[nearest power]
power : float or "auto", default="auto"
    Exponent of the popularity normalisation: 0 for none, 0.5 for cosine similarity. "auto":
    ``pair_support_ / 16``, but from 0.25 to 0.5, if `backward_weight_` is learned, and
    otherwise 0.25.
[power]
power : float, default={default}
    Exponent of the popularity normalisation: 0 for none, 0.5 for cosine similarity.
[neighbours shrinkage]
shrinkage : float, default={default}
    Term added to the denominator, which lowers the weight of pairs shared by few users.
[n_neighbors]
n_neighbors : int, default={default}
    Number of nearest items stored for each item.
[time]
*Time.* With half-lives, the weight of a pair of items, a and b positions from the end of the
user's history, is ``2^(-|a-b|/pair_half_life)``. In the user's own scores, the weight of an
item of age a is ``2^(-a/history_half_life)``; the user's latest item has full weight. Positions
are among the user's items with y > 0. Items with the same time share the mean of their
positions; items without a time (NaN, NaT) are the oldest, all at once; a repeated pair has its
latest time. The order of the rows of X does not matter, except with "row_order".
[n_jobs]
n_jobs : int or None, default={default}
    Number of threads, at most one per core. None means 1, and -1 means all cores. The fitted
    model does not depend on it.
[random_state]
random_state : int, RandomState instance or None, default={default}
    Seed of everything random: initial vectors, negatives, noise, held-out rows, and which
    clients are chosen or drop out. Pass an int to get the same model in every fit.
[shared parameters]
client_fraction : float in (0, 1], default={default}
    Share of the clients that take part in each round, at least one client. Clients that never
    take part fit their user vectors to the final model.
early_stopping : bool, default={default}
    Whether to stop once the score on held-out rows stops improving, and to keep the model of
    the best round. Each client holds out some of its own rows and reports two sums on them.
scoring : str, default={default}
    Metric of early stopping: "loss" (the method's own), or one of users' rankings of the
    catalogue, "ndcg@10", "hr@10", "precision@10", "recall@10", "map@10" or "mrr@10", with any
    number of places. Methods of ratings also accept "rmse" and "mae".
validation_fraction : float in (0, 1), default={default}
    Share of its rows that each client holds out for early stopping.
n_iter_no_change : int, default={default}
    Number of rounds without improvement after which early stopping ends the fit. If only a
    share of the clients takes part in a round, it is the number of passes over all clients, and
    models are compared by the mean loss of a pass.
tol : float, default={default}
    Smallest change of the validation loss or score that counts as an improvement.
warm_start : bool, default={default}
    Whether `fit` continues the previous fit, including the clients' private state, up to
    `n_rounds` rounds in total. Otherwise it starts from scratch.
{n_jobs}
{random_state}
federation : Federation or None, default={default}
    Which clients drop out, and how uploads are protected, compressed, aggregated or attacked.
    If None, ``Federation()``: no dropout, attacks or protection.
{federated items}

# attributes

[ids]
user_ids_ : ndarray of shape (n_users,)
    User ids, in the order of the rows of the users' arrays.
item_ids_ : ndarray of shape (n_items,)
    Item ids in ascending order, which is that of the rows of the items' arrays: the catalogue
    `items`, or the items of X if there is none.
n_users_ : int
    Number of users.
n_items_ : int
    Number of items.
[shared attributes]
{ids}
n_rounds_ : int
    Number of rounds run.
best_round_ : int
    The round whose model was kept, counted from 0. Only with ``early_stopping=True``.
loss_curve_ : list of float
    Training loss of each round: the weighted mean over the training rows of the participating
    clients. Available only in simulations, because clients never send it.
history_ : list of dict
    One dict per round: `round`, `loss`, `participants`, `bytes_down`, `bytes_up` and, with
    early stopping, `validation_loss`, or `validation_score` if `scoring` is not "loss".
communication_ : Ledger
    All bytes that were sent, by phase, by round and by client.
privacy_ : PrivacyReport
    What the server sees of client uploads, and the guarantee of differential privacy.

# centralised models

[float factors]
user_factors_ : ndarray of shape (n_users, n_factors), dtype float32
    p_u.
item_factors_ : ndarray of shape (n_items, n_factors), dtype float32
    q_i.
[epochs]
n_epochs : int, default={default}
    Number of passes over the ratings, in total if `warm_start` continues a fit.
learning_rate : float, default={default}
    Learning rate of the first epoch, for a rating of mean weight.
learning_rate_decay : float, default={default}
    Factor on the learning rate after each epoch.
[held-out rows]
early_stopping : bool, default={default}
    Whether to hold out rows, stop when the loss on them no longer improves, and keep the best
    epoch.
validation_fraction : float, default={default}
    Expected share of rows held out.
n_iter_no_change : int, default={default}
    Number of epochs without progress after which to stop.
tol : float, default={default}
    Smallest decrease of the mean loss of held-out rows that counts as progress.
[epochs warm_start]
warm_start : bool, default={default}
    Whether to continue the last fit to `n_epochs` epochs in total, exactly as if it had never
    stopped.
[rating attributes]
rating_range_ : tuple of float
    Lowest and highest rating, to which predictions are clipped.
loss_curve_ : list of float
    Weighted mean squared error of each epoch, each rating's before its update.
[epochs attributes]
n_epochs_ : int
    Epochs run.
best_epoch_ : int
    With early stopping: the epoch after which the model was best, 0 for the start.
validation_curve_ : list of float
    With early stopping: the held-out loss of the start and after each epoch.
{ids}
[biases reg]
reg_bias : float, default=0.01
    As `reg`, for the biases.
shrinkage_bias : float, default=5.0
    As `shrinkage`, for the biases.
[biases]
user_bias_ : ndarray of shape (n_users,), dtype float32
    b_u, in rating units.
item_bias_ : ndarray of shape (n_items,), dtype float32
    b_i.
global_bias_ : float
    Weighted mean of the ratings (mu).
[epochs errors]
ValueError
    By fit: if the parameters become infinite or NaN; if no row is left to hold out or to train
    on; if data or parameters have changed before a warm start.
[user_history_]
user_history_ : csr_array of shape (n_users, n_items), dtype float32
    X, faded. A user's scores depend only on the user's row.
[item weights]
*Implicit feedback.* The size of a positive y does not matter; to make it count, pass it as
sample_weight. Rows with y <= 0 count as if they were absent, except that `recommend` leaves out
their items too. Unknown users and items score 0, and so do items without positives.
[implicit errors]
ValueError
    By fit: if no y is positive; if the factors become infinite or NaN.
[likes of biased models]
*Implicit feedback.* Rows with y <= 0 count as if they were absent, except that `recommend`
leaves out their items too. An item without y > 0, in X or only in `items`, has the zero vector
and the smallest bias of the other items (the library's 0 would put it ahead of many of them). A
user without y > 0, known or not, has the mean of the other users' vectors and biases.
[implicit n_factors]
n_factors : int, default={default}
    Length of p_u and q_i, without biases (`factors` in implicit).
[implicit random_state]
random_state : int, RandomState instance or None, default={default}
    Seed of the first vectors and all draws; an int gives the library's model of that
    `random_state`.
[implicit attributes]
{ids}
n_epochs_ : int
    Iterations done; fewer than `n_epochs` if a callback stopped the fit.
[n_bits]
n_bits : int, default={default}
    Number of bits of a code (r). Codes are stored in words of 64 bits.
[codes parameters]
balance_user : float, default={default}
    Weight of balance and decorrelation of the users' bits (alpha), in units in which a rating's
    error counts in bits.
balance_item : float, default={default}
    Weight of balance and decorrelation of the items' bits (beta).
init : {"relaxed", "random"}, default="relaxed"
    First codes. "relaxed": the signs of real-valued vectors, after 10 sweeps on the same
    objective with a penalty. "random": random signs.
reg : float, default={default}
    Weight of the penalty on the vectors of the relaxed start, per rating, where ratings are
    scaled to [-1, 1].
n_sweeps : int or None, default={default}
    Largest number of sweeps over the bits of a code per iteration; fewer if nothing changes. If
    None, until nothing changes.
rating_scale : tuple (low, high) or None, default={default}
    Ratings of similarity 0 and 1. If None, the range of y.
[codes attributes]
user_codes_ : ndarray of shape (n_users, n_words), dtype uint64
    Packed as by :func:`fedrecsk.federated.pack_codes`; n_words is ceil(n_bits / 64).
item_codes_ : ndarray of shape (n_items, n_words), dtype uint64
    Likewise.
user_factors_, item_factors_ : ndarray of shape (n_users, n_bits_) and (n_items, n_bits_)
    The same unpacked (computed on access): +1 and -1, dtype int8.
n_bits_ : int
    Number of bits of a code.
n_epochs_ : int
    Iterations done.
mean_rating_ : float
    Weighted mean of y, which is predicted for unknown users and items.
rating_scale_ : tuple of float
    The ratings of similarity 0 and 1.
loss_curve_ : list of float
    Weighted mean squared error on the training rows after each iteration, in squared ratings.

# neural methods

[neural attributes]
newcomer_factors_ : ndarray of shape (n_private,)
    The private parameters of an unknown user: where clients begin, and the mean of users' rows.
global_bias_ : float
    Mean rating; only with ``loss="squared"``.
[neural errors]
ValueError
    As :class:`~fedrecsk.neural.FederatedModule` does.
ImportError
    If torch is not installed.

# metrics

[of the first k]
Parameters
----------
y_true : array-like or sparse matrix of shape (n_users, n_candidates)
    Candidates with a value above 0 are relevant.
y_score, k, average
    As in :func:`ndcg_at_k`.

Returns
-------
value : float or ndarray of shape (n_users,), dtype float64
    In [0, 1].

Raises
------
ValueError
    As in :func:`ndcg_at_k`.

# splitters

[folds]
n_splits : int, default=5
    Number of folds, at least 2.
shuffle : bool, default=False
    Whether to shuffle the rows before they are assigned to the folds.
random_state : int, RandomState instance or None, default=None
    Source of the random numbers if `shuffle`. An int gives the same splits in every call.
[random splits]
n_splits : int, default=1
    Number of random splits.
random_state : int, RandomState instance or None, default=None
    Source of the random numbers. An int gives the same splits in every call.
[column of times]
timestamps : int or str, default=2
    Column of X with the time of each row: its position (2 or more) or, for a DataFrame,
    its name. The times are numbers, dates, or ISO dates as strings. "row_order": the rows of X
    are in the order of time.
[split attributes]
train_indices_, test_indices_ : ndarray of shape (n_train,) and (n_test,), dtype int64
    Ascending row numbers of the first split, which `fit` made.
held_out_ : ndarray or DataFrame of shape (n_test, n_features)
    The test rows of X.
n_features_in_ : int
    Number of columns of X.
feature_names_in_ : ndarray of shape (n_features_in_,)
    Names of the columns, if they are strings.

# filters

[rows to filter]
X : array-like or DataFrame of shape (n_samples, n_features >= 2)
    Column 0 is the user's id, column 1 the item's.
y, clients, sample_weight : array-like of shape (n_samples,), default=None
    Other arrays with one entry per row. Rows of weight zero count as absent, as in fit.
[rows kept]
Returns
-------
X, y, clients, sample_weight
    The arrays that were given, in this order and of the type given, with the rows that are
    kept, in their order; X alone if nothing else was given.

Raises
------
ValueError
    If no row would be kept, lengths differ, or ids are invalid.
TypeError
    If an id is neither a string nor a number.

# displays

[failed]
failed : list of str, default=()
    Notes for the legend about fits that failed.
[reference]
reference : float or dict of str to float, default=None
    Scores of baselines by name, to draw as dashed horizontal lines: ``{"BiasOnly": 0.94}``.
[ax]
ax : matplotlib Axes, default=None
    Axes to draw in. If None, those of a new figure.
[drawing]
{reference}
{ax}
**kwargs : dict
    Passed to :meth:`plot`.
[lines]
lines_ : list of matplotlib artists
    One per method that is drawn as a line or as points.
bands_ : list of matplotlib artists
    One per line with a standard deviation above 0.
[drawn]
Returns
-------
display : object
    It is drawn.

Raises
------
ImportError
    If matplotlib is missing.
ValueError
    If a column is missing, no row has the score, or a number is out of range.
[greater_is_better]
greater_is_better : bool, default=None
    Whether a larger score is better. If None, True, except for "exposure", and for "rmse" and
    "mae" if they are not negative. Choose False for a scorer of your own that measures an attack's
    success.
[display attributes]
ax_ : matplotlib Axes
    Axes of the display.
figure_ : matplotlib Figure
    Their figure.
references_ : list of matplotlib Line2D
    One per reference score.

# data sets

[fetching]
data_home : str or path-like, default=None
    Folder with the data. If None, that of the environment variable `FEDRECSK_DATA`, or else
    `~/fedrecsk_data`.
download_if_missing : bool, default=True
    Whether to download the data if `data_home` has no copy. False raises an error then.
{forms}
n_retries : int, default=3
    Number of further tries after a failed download.
delay : float, default=1.0
    Seconds to wait before the first further try; the wait doubles with each try, up to a
    minute.
timeout : float, default=30.0
    Seconds after which a try counts as failed if the server sends nothing.
[forms]
as_frame : bool, default=False
    Whether to return pandas objects.
return_X_y : bool, default=False
    Whether to return `(data, target)` instead of a Bunch.
[bunch]
data : :class:`~sklearn.utils.Bunch`
    Dictionary-like object, with these attributes; with ``return_X_y=True``, the tuple of
    the first two:
[fetched]
frame : DataFrame or None
    Data and target side by side, with `as_frame=True`.
feature_names : list of str
    The names of the columns of `data`.
filename : str
    The file that was read.
DESCR : str
    Source of the data, with the licence and the citation of published data.
[fetching errors]
OSError
    If there is no copy and the download is not allowed or fails, or if `data_home` is a file
    or not writable. The message lists the places where a copy was looked for, and what to do.
ValueError
    If a file is not the published one: the checksum of the archive, the numbers of users, items
    and rows, and the scale of stars are checked.
[movielens licence]
GroupLens allows research use and forbids redistribution without permission; see the README
in the archive. Cite [1]_ when you use the data.

References
----------
.. [1] F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and
   Context", ACM Transactions on Interactive Intelligent Systems 5 (4), 2015.
   https://doi.org/10.1145/2827872
[kuairec licence]
The data come under CC BY-SA 4.0. Cite [1]_ when you use them.

References
----------
.. [1] C. Gao, S. Li, W. Lei, J. Chen, B. Li, P. Jiang, X. He, J. Mao and T.-S. Chua,
   "KuaiRec: A Fully-Observed Dataset and Insights for Evaluating Recommender
   Systems", CIKM 2022, pages 540-550. https://doi.org/10.1145/3511808.3557220
[filmtrust licence]
LibRec [2]_, which offers the file, states no licence, so use it for research only.
Cite [1]_ when you use the data.

References
----------
.. [1] G. Guo, J. Zhang and N. Yorke-Smith, "A Novel Bayesian Similarity Measure for
   Recommender Systems", IJCAI 2013, pages 2619-2625.

.. [2] https://guoguibing.github.io/librec/datasets.html
[amazon licence]
The repository [2]_ states no licence, so use the files for research only. Cite [1]_ when you
use them.

References
----------
.. [1] K. Zhou, H. Wang, W. X. Zhao, Y. Zhu, S. Wang, F. Zhang, Z. Wang and J.-R. Wen, "S3-Rec:
   Self-Supervised Learning for Sequential Recommendation with Mutual Information
   Maximization", CIKM 2020, pages 1893-1902.

.. [2] https://github.com/RUCAIBox/CIKM2020-S3Rec
[hetrec licence]
GroupLens and Last.fm allow non-commercial use; see the README in the archive. Cite [1]_ when
you use the data.

References
----------
.. [1] I. Cantador, P. Brusilovsky and T. Kuflik, "Second Workshop on Information
   Heterogeneity and Fusion in Recommender Systems (HetRec 2011)", RecSys 2011.
"""
TEXTS = {
    name: text.strip()
    for name, text in re.findall(r"^\[(.+)\]\n((?:(?![\[#]).*\n)+)", WRITTEN, re.MULTILINE)
}


def documented(cls: Documented) -> Documented:
    """Write out the shared descriptions in the docstring of a class or a function; return it."""

    def with_default(match):
        return f"{match[1]}{_as_written(getattr(cls, match[2]))}"

    def written_out(match):
        text = PLACEHOLDER.sub(written_out, TEXTS[match[2]])
        return textwrap.indent(DEFAULT.sub(with_default, text), match[1])

    # Without docstrings (python -OO) there is nothing to replace.
    if cls.__doc__:
        cls.__doc__ = PLACEHOLDER.sub(written_out, cls.__doc__)
    return cls


def _as_written(value):
    """Return a default value as one would write it: 1e-4 rather than 0.0001."""
    if isinstance(value, float) and 0 < value < 1e-3:
        return re.sub(r"e-0*", "e-", f"{value:e}".replace(".000000", ""))
    return repr(value)
