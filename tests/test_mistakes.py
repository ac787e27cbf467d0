"""Tables that are not what they are meant to be: a warning or an error, and no false alarm."""

import io
import warnings
from copy import copy

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score

from fedrecsk import (
    EASE,
    BiasOnly,
    FedEASE,
    FedEB,
    Federation,
    FedMF,
    ItemKNN,
    LocALS,
    Popularity,
    RFRec,
)
from fedrecsk.datasets import make_interactions, make_ratings
from fedrecsk.metrics import evaluate_ranking, exposure, make_ranking_scorer
from fedrecsk.model_selection import LeaveLastOut, TemporalHoldout, UserKFold, compare
from fedrecsk.preprocessing import (
    IdEncoder,
    RatingScaler,
    binarize,
    filter_k_core,
    to_implicit,
)
from fedrecsk.selection import federated_evaluate

X, y = make_ratings(60, 40, 900, random_state=0)
MATRIX = np.zeros((60, 40))
MATRIX[X[:, 0], X[:, 1]] = y
FRAME = pd.DataFrame(X, columns=["user", "item", "timestamp"])


def test_a_matrix_of_users_by_items():
    readers = (Popularity().fit, UserKFold(3).fit, IdEncoder().fit, lambda M: filter_k_core(M, k=1))
    for matrix in (MATRIX, MATRIX.astype(int), MATRIX.tolist(), pd.DataFrame(MATRIX)):
        for read in readers:
            with pytest.warns(UserWarning, match="matrix of users by items: 40 col.*nonzero"):
                read(matrix)
    for read in readers:
        with (
            pytest.warns(UserWarning, match="matrix of users by items: 40 col.*nonzero"),
            pytest.raises(TypeError, match="not 'bool"),
        ):
            read(MATRIX > 0)


def test_a_sparse_matrix():
    for use in (BiasOnly().fit, UserKFold().fit, IdEncoder().fit, filter_k_core):
        with pytest.raises(TypeError, match=r"one row per interaction.*tocoo"):
            use(sparse.csr_array(MATRIX), np.ones(60))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["movieId", "userId"], r"'movieId' and 'userId'.*Swap them: X\[\['userId', 'movieId'\]\]"),
        (["user", "rating"], "'user' and 'rating'.*order user, item"),
        (["timestamp", "user"], "order user, item"),
    ],
)
def test_columns_in_another_order(names, message):
    frame = pd.DataFrame(X[:, :2], columns=names)
    for use in (lambda: Popularity().fit(frame), lambda: UserKFold(3).fit(frame)):
        with pytest.warns(UserWarning, match=message):
            use()


def test_users_that_are_the_catalogue():
    swapped = np.column_stack([X[:, 1] + 100, X[:, 0]])
    with pytest.raises(ValueError, match=r"items 0, 1, 2 and 57 more .* are the columns swapped\?"):
        BiasOnly(items=np.arange(100, 140)).fit(swapped, y)
    names = [[f"film {item}", int(user)] for user, item in X[:, :2]]
    message = r"of X are numbers and those of `items` are strings.* are the columns swapped\?"
    with pytest.raises(ValueError, match=message):
        BiasOnly(items=[f"film {item}" for item in range(40)]).fit(names, y)
    with pytest.raises(ValueError, match="X has item 39 that is not in `items`") as error:
        BiasOnly(items=np.arange(39)).fit(X % 40, y)
    assert "swapped" not in str(error.value), "all users are in `items`, but most items are too"


def test_swapped_columns_in_an_evaluation():
    train, test = X[60:, :2], X[:60, 1::-1]
    films = np.array([0, 1000])
    with pytest.warns(UserWarning, match="Are the columns swapped"):
        BiasOnly().fit(X[:, :2] + films, y).predict(X[:9, 1::-1] + films[::-1])
    model = Popularity().fit(train + films)
    for call in (evaluate_ranking, lambda model, X: model.score(X)):
        with pytest.raises(
            ValueError, match=r"All users .* are unknown.* Are the columns swapped\?"
        ):
            call(model, test + films[::-1])
    overlapping = Popularity().fit(train)
    with pytest.warns(UserWarning, match=r"not know 0% .* [2-4].% of the items .* swapped\?"):
        evaluate_ranking(overlapping, test)
    with warnings.catch_warnings(action="error"):
        evaluate_ranking(overlapping, X[:60])
        # One new item of many.
        rest = X[200:, :2]
        evaluate_ranking(Popularity().fit(rest[rest[:, 1] != 39]), X[:200])


def test_warnings_point_at_the_line_of_the_caller():
    with pytest.warns(UserWarning, match="matrix") as caught:
        Popularity().fit(MATRIX)
    with pytest.warns(UserWarning, match="matrix") as more:
        list(UserKFold(3).split(MATRIX))
    lossy = FedMF(
        n_rounds=1, client_fraction=0.02, random_state=0, federation=Federation(dropout=0.999)
    )
    with pytest.warns(ConvergenceWarning, match="every upload was lost") as lost:
        lossy.fit(X)
    with pytest.warns(UserWarning, match="Are they ratings") as times:
        list(TemporalHoldout().split(np.column_stack([X[:, :2], y])))
    assert {warning.filename for warning in (*caught, *more, *lost, *times)} == {__file__}


@pytest.mark.parametrize("mode", ["stale", "offline"])
def test_a_fit_in_which_no_client_sends_warns(mode):
    nobody = Federation(dropout=0.9999, dropout_mode=mode)
    with pytest.warns(ConvergenceWarning, match="In 1 of 1 rounds no client has sent anything"):
        FedEASE(random_state=0, federation=nobody).fit(X[:, :2])


def test_ids_that_are_hardly_meant():
    for column in (0, 1):
        ids = X[:, :2].astype(float)
        ids[:, column] += 0.5
        with pytest.warns(UserWarning, match=f"column {column} of X.*fractions, such as 0.5"):
            BiasOnly().fit(ids, y)
    with pytest.raises(ValueError, match=r"item ids .* empty strings"):
        Popularity().fit([["ann", "a"], ["bob", ""]])
    users = pd.Series(["ann", None, "bob"]).astype(object).map(str)
    users = users.replace("None", "nan")
    with pytest.warns(UserWarning, match=r"user ids .* include 'nan'.*drop its rows"):
        Popularity().fit(pd.DataFrame({"user": users, "item": [1, 2, 3]}))


MISSING = ["NULL", "\\N", "None", "N/A", "#N/A", "nil", "unknown", "-", "?"]


@pytest.mark.parametrize("text", MISSING)
def test_ids_that_stand_for_missing_ones(text):
    users = [text if n % 4 == 0 else f"user {n}" for n in range(80)]
    for rows in (np.column_stack([users, ["a", "b"] * 40]), [["u", user] for user in users]):
        for read in (Popularity().fit, UserKFold(2).fit, lambda X: filter_k_core(X, k=1)):
            with pytest.warns(UserWarning, match=r"include .*, in 25% of the rows.*drop its rows"):
                read(rows)
    with pytest.raises(ValueError, match=r"item ids .* contain empty strings"):
        Popularity().fit([["ann", "jam"], ["bob", "  "]])


def test_a_log_of_events_without_a_header():
    rows = [[1000 + n % 7, "view" if n % 3 else "addtocart", 55 + n, 10**12 + n] for n in range(9)]
    frame = pd.DataFrame(rows)
    for read in (Popularity().fit, LeaveLastOut(timestamps=3).fit):
        with pytest.warns(UserWarning, match="item ids .* are kinds of events, such as"):
            read(frame)
    swallowed = pd.read_csv(io.StringIO(frame.to_csv(header=False, index=False)))
    with (
        pytest.warns(UserWarning, match="are kinds of events"),
        pytest.warns(UserWarning, match="named '1000' and 'addtocart', like a row.*header=None"),
    ):
        Popularity().fit(swallowed)
    ratings = pd.DataFrame(X[:, :2] + 100, columns=["196", "242"])
    with pytest.warns(UserWarning, match="named '196' and '242', like a row.*header=None"):
        Popularity().fit(ratings)
    with warnings.catch_warnings(action="error"):
        for names in (["0", "1"], ["7", "8"], [3, 9], ["user", "242"], ["user", "view"]):
            Popularity().fit(ratings.set_axis(names, axis=1))
        Popularity().fit([["ann", "view"], ["bob", "tea"]])


@pytest.mark.parametrize("spec", ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d", "%d/%m/%Y"])
def test_dates_as_ids(spec):
    dates = pd.to_datetime(X[:, 2], unit="s").strftime(spec)
    frame = pd.DataFrame({"user": X[:, 0], "when": dates, "film": X[:, 1]})
    for read in (Popularity().fit, UserKFold(2).fit):
        with pytest.warns(UserWarning, match=r"item ids .* look like dates, such as '.*column 2"):
            read(frame)
    with warnings.catch_warnings(action="error"):
        Popularity().fit([["ann", "2001"], ["bob", "2012-01-01"], ["bob", "film"]])


def test_lists_of_items():
    rng = np.random.default_rng(0)
    lists = [rng.choice(50, 4, replace=False).tolist() for _ in range(459)]
    frame = pd.DataFrame({"user": range(459), "film": lists})
    kinds = list, set, tuple, np.array
    for read in (Popularity().fit, UserKFold(2).fit, lambda X: filter_k_core(X, k=1)):
        for kind in kinds:
            with pytest.raises(TypeError, match=r"a row of its own.* X\.explode\('film'\)"):
                read(frame.assign(film=frame.film.map(kind)))
    with pytest.raises(TypeError, match=r"X\.explode\('item'\)"):
        Popularity().fit(frame.to_numpy())
    joined = frame.film.map(lambda items: ",".join(map(str, items)))
    for texts in (frame.film.astype(str), joined):
        with pytest.warns(UserWarning, match=r"4\d\d of the 4\d\d items .* one user each.*explode"):
            Popularity().fit(frame.assign(film=texts))
    with warnings.catch_warnings(action="error"):
        Popularity().fit(frame.explode("film"))
        Popularity().fit(frame.assign(film=np.arange(459))[:99])
        Popularity().fit(np.column_stack([np.zeros(200), np.arange(200)]))
        # Most items of a long tail have one user, but not nearly all.
        Popularity().fit(np.column_stack([np.arange(500), rng.zipf(1.5, 500)]))


@pytest.mark.parametrize("code", [0, -1])
def test_ratings_that_mean_not_rated(code):
    ratings = np.where(np.arange(len(y)) % 5 < 3, code, y)
    message = rf"60% of the ratings are {code}; .* from 1 to 5\. .* X\[y != {code}\]"
    with pytest.warns(UserWarning, match=message):
        BiasOnly().fit(X, ratings)
    with warnings.catch_warnings(action="error"):
        few = np.where(np.arange(len(y)) % 50 == 0, code, y)
        likes = np.where(y > 3, 1, code)
        play_counts = np.where(ratings == code, code, np.random.default_rng(0).random(len(y)))
        for no_code in (few, likes, play_counts, ratings - 3):
            BiasOnly().fit(X, no_code)


def test_masked_and_lazy_tables():
    masked = np.ma.array([[1, 2], [2, 3]], mask=[[0, 1], [0, 0]])
    with pytest.raises(ValueError, match="masked values"):
        BiasOnly().fit(masked, [1, 2])
    with pytest.raises(TypeError, match=r"LazyFrame.*X\.collect"):
        BiasOnly().fit(pl.LazyFrame({"user": [1], "item": [2]}), [1])
    with pytest.warns(UserWarning, match="Swap them"):
        Popularity().fit(pl.DataFrame({"item": X[:, 1], "user": X[:, 0]}))


MODEL = BiasOnly().fit(X[:, :2], y)
LIKES = LocALS(2, n_rounds=1, random_state=0).fit(X[:, :2])
# What reads y and sample_weight, and what reads ids.
READERS = {
    "fit": lambda **given: BiasOnly().fit(X, **{"y": y} | given),
    "fold_in": lambda **given: copy(MODEL).fold_in(X[:, :2], **{"y": y} | given, replace=True),
    "score": lambda **given: MODEL.score(X[:, :2], **{"y": y} | given),
    "score of likes": lambda **given: LIKES.score(X[:, :2], **given),
    "evaluate_ranking": lambda **given: evaluate_ranking(LIKES, X[:, :2], **given),
    "scorer": lambda y=None, **given: make_ranking_scorer()(LIKES, X[:, :2], y, **given),
    "compare": lambda **given: compare([BiasOnly()], X, **{"y": y} | given, cv=2),
    "to_implicit": lambda **given: to_implicit(X, **{"y": y} | given),
}
OF_RATINGS = READERS | {
    "federated_evaluate": lambda y: federated_evaluate(LIKES, X[:, :2], y),
    "binarize": lambda y: binarize(y),
    "RatingScaler": lambda y: RatingScaler().fit(np.ma.reshape(y, (-1, 1))),
}
OF_IDS = {
    "users": lambda ids: LIKES.recommend(ids),
    "candidates": lambda ids: LIKES.recommend([1], candidates=ids),
    "items": lambda ids: LIKES.similar_items(ids),
    "clients": lambda ids: LocALS().fit(X[:9], clients=np.ma.concatenate([ids, ids, ids])),
    "items of fit": lambda ids: LocALS(items=ids).fit(X),
    "exposure": lambda ids: exposure(LIKES, 1, ids),
    "forget": lambda ids: LocALS(warm_start=True).fit(X[:, :2]).forget(ids),
    "negatives": lambda ids: evaluate_ranking(LIKES, X[:, :2], negatives={1: ids}),
    "exclude": lambda ids: LIKES.recommend(
        [1], exclude_interactions=np.ma.stack([ids, ids], axis=1)
    ),
}


@pytest.mark.parametrize("read", OF_RATINGS.values(), ids=list(OF_RATINGS))
def test_masked_ratings(read):
    with pytest.raises(ValueError, match="has masked values; drop their rows"):
        read(y=np.ma.masked_array(y, y == 1))


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_masked_weights(read):
    with pytest.raises(ValueError, match="sample_weight has masked values"):
        read(sample_weight=np.ma.masked_array(y, y == 1))


@pytest.mark.parametrize("read", OF_RATINGS.values(), ids=list(OF_RATINGS))
def test_times_as_ratings(read):
    dates = pd.to_datetime(y, unit="D")
    for times in (dates, dates - dates[0], [date.date() for date in dates], dates.to_period("D")):
        with pytest.raises(ValueError, match=r"holds times, such as|holds what is not a number"):
            read(y=np.asarray(times))


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_times_as_weights(read):
    with pytest.raises(ValueError, match="sample_weight holds times, such as"):
        read(sample_weight=pd.to_datetime(y, unit="D"))


@pytest.mark.parametrize("read", OF_IDS.values(), ids=list(OF_IDS))
def test_masked_ids(read):
    with pytest.raises(ValueError, match="has masked values"):
        read(np.ma.masked_array([1, 2, 3], [0, 1, 0]))


@pytest.mark.parametrize("read", OF_IDS.values(), ids=list(OF_IDS))
def test_masks_as_ids(read):
    for mask in (np.array([True, False, True]), np.array([True, 2, 3], dtype=object)):
        with pytest.raises(TypeError, match="in place of a mask, give the ids that it selects"):
            read(mask)


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_ratings_on_a_cluster(read):
    dask = pytest.importorskip("dask.dataframe")
    ratings = dask.from_pandas(pd.Series(y), npartitions=2)
    for name in ("y", "sample_weight"):
        with pytest.raises(TypeError, match=rf"{name} is a Dask Series; pass {name}.compute\(\)"):
            read(**{name: ratings})


ON_A_CLUSTER = {
    "evaluate_ranking": lambda X: evaluate_ranking(LIKES, X),
    "scorer": lambda X: make_ranking_scorer()(LIKES, X),
    "federated_evaluate": lambda X: federated_evaluate(LIKES, X),
    "compare": lambda X: compare([BiasOnly()], X),
    "splitter": UserKFold().fit,
    "split": lambda X: list(LeaveLastOut().split(X)),
    "cross_val_score": lambda X: cross_val_score(Popularity(), X, cv=UserKFold(2)),
    "to_implicit": lambda X: to_implicit(X, y),
    "filter_k_core": filter_k_core,
    "IdEncoder": IdEncoder().fit,
    "RatingScaler": RatingScaler().fit,
    "partial_fit": lambda X: LocALS(warm_start=True).fit(FRAME[["user", "item"]]).partial_fit(X),
    "candidates": lambda X: LIKES.recommend([1], candidates=X["item"].unique()),
    "exclude": lambda X: LIKES.recommend([1], exclude_interactions=X),
    "negatives": lambda X: evaluate_ranking(LIKES, FRAME[["user", "item"]], negatives=X),
    "clients": lambda X: LocALS().fit(FRAME, clients=X["user"]),
    "similar_items": lambda X: LIKES.similar_items(X["item"]),
}


@pytest.mark.parametrize("read", ON_A_CLUSTER.values(), ids=list(ON_A_CLUSTER))
def test_tables_on_a_cluster(read):
    dask = pytest.importorskip("dask.dataframe")
    table = dask.from_pandas(FRAME[["user", "item"]], npartitions=2)
    with pytest.raises(TypeError, match=r"is a Dask .*; pass .*\.compute\(\)"):
        read(table)


@pytest.mark.parametrize("pair", [(True, 1), (1, False), (np.True_, np.False_)])
def test_masks_in_explain(pair):
    with pytest.raises(TypeError, match="not 'bool"):
        LIKES.explain(*pair)


def test_no_false_alarm():
    binary = np.random.default_rng(0).integers(0, 2, (900, 20))
    tables = [
        (X, y),
        (X.astype(float), y),
        (FRAME, y),
        (FRAME.rename(columns={"user": "clerk", "item": "user"}), y),
        (FRAME[["item", "user"]].rename(columns={"user": "tag"}), y),
        (np.column_stack([X[:, :2], binary]), y),  # context
        (np.column_stack([np.arange(20).repeat(45), np.tile(np.arange(45), 20), binary]), y),
        (np.column_stack([X[:, :2], np.random.default_rng(0).normal(size=(900, 20))]), y),
        (FRAME.assign(**{f"c{k}": 0 for k in range(9)}, tags=[["a"] * int(k) for k in y]), y),
        (X[:1], y[:1]),
        ([["ann", "a"], ["bob", "b"]], [1, 2]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for table, ratings in tables:
            model = BiasOnly().fit(table, ratings)
            model.predict(table)
        model = BiasOnly().fit(X[:, :2], y)
        model.predict([[10**6, 10**6]])
        model.predict([[10**6, 3], [3, 10**6]])
        X_implicit = make_interactions(60, 40, 900, random_state=0)
        by_order = LeaveLastOut(ties="row_order")
        for splitter in (TemporalHoldout(), TemporalHoldout(per_user=True), by_order):
            splitter.fit(X_implicit)
            splitter.fit(np.column_stack([X[:, :2], np.arange(900) // 100]))  # days


STEPS = [TemporalHoldout(), TemporalHoldout(per_user=True), LeaveLastOut()]


@pytest.mark.parametrize("splitter", STEPS)
def test_ratings_as_timestamps(splitter):
    frame = FRAME.assign(rating=100 * y)
    with pytest.warns(UserWarning, match=r"column 'rating'.*Are they ratings\?"):
        clone(splitter).set_params(timestamps="rating").fit(frame)
    for values in (y, y / 2, y.astype(int), y - 1, y > 3):
        table = np.column_stack([X[:, :2], values])
        with pytest.warns(UserWarning, match=r"timestamps \(column 2 of X\).*Are they ratings\?"):
            splitter.fit(table)


@pytest.mark.parametrize("splitter", STEPS)
def test_iso_dates_as_timestamps(splitter):
    seconds = splitter.fit(X).test_indices_
    for spec in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S"):
        texts = pd.to_datetime(X[:, 2], unit="s").strftime(spec)
        assert np.array_equal(splitter.fit(FRAME.assign(timestamp=texts)).test_indices_, seconds)
    texts = pd.to_datetime(X[:, 2], unit="s").strftime("%m/%d/%Y")
    with pytest.raises(ValueError, match=r"'.*/2020' is not an ISO date.*pandas.to_datetime"):
        splitter.fit(FRAME.assign(timestamp=texts))


SECONDS = np.random.default_rng(0).integers(1_600_000_000, 1_640_000_000, len(X))
DATES = pd.to_datetime(SECONDS, unit="s")
TIMED = {
    "splitter": lambda table: LeaveLastOut().fit(table),
    "history": lambda table: FedEASE(history_half_life=3).fit(table),
    "days": lambda table: FedEB(2, n_rounds=1, timestamps=2, random_state=0).fit(table, y),
}


@pytest.mark.parametrize("read", TIMED.values(), ids=list(TIMED))
def test_times_that_are_rounded_mixed_or_in_another_unit(read):
    table = np.column_stack([X[:, :2], SECONDS])
    with pytest.raises(ValueError, match=r"^timestamps \(column 2 of X\) are floats of 2\*\*24"):
        read(table.astype(np.float32))
    for unit in ("ns", "us", "ms"):
        wrong = pd.to_datetime(SECONDS, unit=unit)
        if read is TIMED["days"] and unit != "ms":
            with pytest.raises(ValueError, match="should be dates"):
                read(FRAME.assign(timestamp=wrong))
            continue
        with pytest.warns(UserWarning, match="January 1970 in 100% of the rows.*unit='s'"):
            read(FRAME.assign(timestamp=wrong))
    if read is TIMED["days"]:
        for number in (DATES.strftime("%Y%m%d").astype(int), SECONDS // 3600, SECONDS // 60):
            with pytest.warns(UserWarning, match="read as seconds since 1970.*between 1970-"):
                read(FRAME.assign(timestamp=number))
    else:
        mixed = np.where(X[:, 0] % 2, SECONDS, 1000 * SECONDS)
        with pytest.warns(UserWarning, match="mix units: 16.* and 16.*000, for example"):
            read(FRAME.assign(timestamp=mixed))
    with warnings.catch_warnings(action="error"):
        for times in (SECONDS, DATES, SECONDS - SECONDS.min(), SECONDS.astype(float)):
            read(FRAME.assign(timestamp=times))


def test_a_rating_that_is_missing_is_named_by_its_row():
    X, y = [[0, 1], [1, 2], [1, 1]], [3.0, np.nan, 4.0]
    with pytest.raises(ValueError, match=r"y contains NaN \(first in row 1\); leave rows"):
        RFRec().fit(X, y)


def test_stars_given_to_a_model_of_likes():
    with pytest.warns(UserWarning, match="like ratings from 1 to 5. Popularity takes"):
        Popularity().fit(X, y)
    with pytest.warns(UserWarning, match="y looks like ratings from 0.5 to 2.5"):
        Popularity().fit(X, y / 2)
    frame = FRAME.assign(Rating=y)
    with pytest.warns(UserWarning, match=r"column 'Rating', which is not read.*threshold=4"):
        Popularity().fit(frame)
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(action="error"):
        BiasOnly().fit(frame, y)
        Popularity().fit(frame, np.ones(len(y)))
        Popularity().fit(X, y >= 4)
        Popularity().fit(X, rng.geometric(0.4, len(y)))  # plays
        Popularity().fit(X, rng.random(len(y)))
        Popularity().fit(X[:50], y[:50])


@pytest.mark.parametrize("model", [FedEASE(), LocALS(2, n_rounds=1), EASE(), ItemKNN()], ids=str)
def test_stars_in_a_sparse_matrix(model):
    matrix = sparse.csr_array(MATRIX)
    with pytest.warns(UserWarning, match=r"entries of X look like ratings from 1 to 5.*X >= 4"):
        model.fit(matrix)
    counts = sparse.random_array((60, 40), density=0.3, random_state=0, format="csr")
    plays = counts.copy()
    plays.data = np.random.default_rng(0).geometric(0.4, plays.nnz)
    with warnings.catch_warnings(action="error"):
        for one in ((matrix >= 4).astype(float), counts, plays):
            model.fit(one)


def test_likes_given_to_a_model_of_ratings():
    with pytest.warns(UserWarning, match="True and False, which BiasOnly takes as the ratings"):
        BiasOnly().fit(X, y >= 4)


@pytest.mark.parametrize("unit", [1, 1000])
def test_times_as_ratings_or_ids(unit):
    times = unit * np.linspace(880_000_000, 890_000_000, len(y)).round()
    with pytest.warns(UserWarning, match="y looks like Unix times, such as 88000000"):
        BiasOnly().fit(X, times)
    for column, role in enumerate(["user", "item"]):
        mistaken = X.astype(np.int64)
        mistaken[:, column] = times
        with pytest.warns(UserWarning, match=f"{role} ids .* look like Unix times"):
            BiasOnly().fit(mistaken, y)


def test_a_column_of_ids_as_ratings():
    with pytest.warns(UserWarning, match="same numbers as column 1 of X, which is read"):
        BiasOnly().fit(FRAME, X[:, 1].astype(float))


def test_folds_of_sorted_rows():
    rows = np.argsort(X[:, 0], kind="stable")
    for model in (BiasOnly(), Popularity()):
        with pytest.warns(UserWarning, match=r"knows [01] of the \d+ users.*leaves every user"):
            cross_val_score(model, X[rows], y[rows], cv=3)
