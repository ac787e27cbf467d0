"""Tables that functions return: of polars for polars, otherwise of pandas."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedrecsk import BiasOnly, ImplicitALS, SVDpp
from fedrecsk.data.frames import as_pandas, make_frame, with_index
from fedrecsk.model_selection import LeaveLastOut, UserHoldout, compare
from fedrecsk.plotting import CostDisplay
from fedrecsk.preprocessing import filter_k_core, filter_min_ratings, to_implicit
from tests.conftest import make_toy

X, y = make_toy(n_users=14, n_items=16, density=0.6)
ROWS = pd.DataFrame({"user": [f"u{one}" for one in X[:, 0]], "item": X[:, 1], "stars": y})
FRAME = pl.DataFrame(ROWS.to_dict("list"))


def same(ours, theirs):
    """Return whether a table of polars has what one of pandas has."""
    assert isinstance(ours, pl.DataFrame)
    assert isinstance(theirs, pd.DataFrame)
    pd.testing.assert_frame_equal(as_pandas(ours), theirs, check_dtype=False)
    return True


def test_types_and_missing_values_survive():
    columns = {
        "id": np.array(["a", "b"]),
        "better": np.array([True, None], dtype=object),
        "score": np.array([0.5, np.nan]),
    }
    made = make_frame(columns, "polars")
    assert made.dtypes == [pl.String, pl.Boolean, pl.Float64]
    assert made["better"].to_list() == [True, None]
    assert with_index(made).index.tolist() == ["a", "b"]
    assert with_index(pl.DataFrame()).empty
    assert with_index(made.clear()).columns.tolist() == ["better", "score"]
    assert as_pandas(columns) is columns


def test_recommendations_are_of_the_library_of_the_users():
    model = BiasOnly().fit(FRAME, FRAME["stars"])
    users = FRAME["user"].unique(maintain_order=True)
    expected = model.recommend(users.to_list(), 3, as_frame=True)
    assert same(model.recommend(users, 3, as_frame=True), expected)
    assert same(model.recommend(users.to_frame(), 3, as_frame=True), expected)
    history = FRAME.head(9).with_columns(user=pl.lit("new")), FRAME["stars"].head(9)
    found = model.recommend(pl.Series(["new"]), 3, interactions=history, as_frame=True)
    assert same(found, model.recommend(["new"], 3, interactions=history, as_frame=True))
    explained = model.explain("new", int(found["item"][0]), interactions=history)
    rows = as_pandas(history[0]), history[1]
    assert same(explained, model.explain("new", int(found["item"][0]), interactions=rows))


def test_neighbours_are_of_the_library_of_what_is_asked():
    model = ImplicitALS(2, n_epochs=2, random_state=0).fit(FRAME[["user", "item"]])
    for find, ids in ((model.similar_items, FRAME["item"]), (model.similar_users, FRAME["user"])):
        assert same(find(ids.head(3), 2, as_frame=True), find(ids[:3].to_list(), 2, as_frame=True))


@pytest.fixture(scope="module")
def comparisons():
    models = [SVDpp(n_factors=2, n_epochs=2, random_state=0), BiasOnly()]
    options = {"cv": 2, "scoring": ["rmse", "mae"]}
    return [
        compare(models, rows[["user", "item"]], rows["stars"], **options) for rows in (FRAME, ROWS)
    ]


def test_comparisons_are_of_the_library_of_the_rows(comparisons):
    ours, theirs = comparisons
    times = ["fit_seconds", "score_seconds"]
    assert same(ours.per_fold.drop(times), theirs.per_fold.drop(columns=times))
    assert same(ours.per_user, theirs.per_user)
    assert ours.summary.columns == theirs.summary.columns.tolist()
    assert same(ours.against("BiasOnly"), theirs.against("BiasOnly"))


def test_plots_take_both(comparisons):
    ours, theirs = comparisons
    shown = [
        CostDisplay.from_results(one, x="fold", score="rmse").pareto_
        for one in (ours.per_fold, ours, theirs)
    ]
    assert shown[0] == shown[1] == shown[2]


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: filter_k_core(rows, k=3),
        lambda rows: filter_min_ratings(rows, min_user=3),
        lambda rows: to_implicit(rows, rows["stars"])[0],
        lambda rows: UserHoldout(random_state=0).train_test_split(rows)[1],
        lambda rows: UserHoldout(random_state=0).fit_transform(rows),
        lambda rows: UserHoldout(random_state=0).fit(rows).held_out_,
        lambda rows: LeaveLastOut(timestamps="stars").train_test_split(rows)[1],
    ],
)
def test_filters_and_splitters_return_rows_as_they_are(change):
    assert same(change(FRAME), change(ROWS).reset_index(drop=True))
