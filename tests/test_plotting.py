import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra [plot]")
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import pandas as pd  # noqa: E402
from sklearn.dummy import DummyRegressor  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.metrics import make_scorer, root_mean_squared_error  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402

from fedrecsk import BiasOnly, LocALS, Popularity, RFRec  # noqa: E402
from fedrecsk.attacks import RandomUpload  # noqa: E402
from fedrecsk.metrics import evaluate_ranking  # noqa: E402
from fedrecsk.model_selection import compare  # noqa: E402
from fedrecsk.plotting import ConvergenceDisplay, CostDisplay, PrivacyDisplay, RobustnessDisplay  # noqa: E402
from fedrecsk.privacy import LaplaceMechanism  # noqa: E402
from tests.conftest import make_toy  # noqa: E402

RATINGS = make_toy(n_users=14, n_items=16, density=0.6)
NAN = float("nan")


@pytest.fixture(autouse=True)
def close_figures():
    plt.close("all")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def comparison():
    models = {
        "RFRec": RFRec(n_factors=3, n_rounds=4, random_state=0),
        "LocALS": LocALS(n_factors=3, n_rounds=2, random_state=0),
        "popular": Popularity(),
        "no recommender": DummyRegressor(),
    }
    scoring = {
        "rmse": make_scorer(root_mean_squared_error),
        "ndcg@10": lambda model, X, y: ndcg(model, X) if hasattr(model, "recommend") else NAN,
    }
    with pytest.warns(UserWarning, match="rmse: not for LocALS"):
        return compare(models, *RATINGS, cv=3, scoring=scoring, return_estimator=True)


def ndcg(model, X):
    return evaluate_ranking(model, X, metrics="ndcg")["ndcg@10"]


def legend(display):
    return [text.get_text() for text in display.ax_.get_legend().get_texts()]


def point(bar):
    """Where the marker of an error bar is."""
    return bar[0].get_xdata().item(), bar[0].get_ydata().item()


# ------------------------------------------------------------------------ all of them


ROWS = [
    {"estimator": name, "dropout": x, "epsilon": 1 + x, "mb": 2 + x, "ndcg@10": y}
    for name in ("a", "b")
    for x, y in ((0.0, 0.4), (0.5, 0.3), (0.5, 0.2))
]
DRAW = {
    "cost": lambda **kw: CostDisplay.from_results(ROWS, **kw),
    "convergence": lambda **kw: ConvergenceDisplay.from_results({"a": [3, 2], "b": [2, 1]}, **kw),
    "robustness": lambda **kw: RobustnessDisplay.from_results(ROWS, **kw),
    "attack": lambda **kw: RobustnessDisplay.from_results(ROWS, x="estimator", **kw),
    "privacy": lambda **kw: PrivacyDisplay.from_results(ROWS, **kw),
}
every_display = pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
# One for each `plot`; the rest is shared.
each_plot = pytest.mark.parametrize("draw", [DRAW["cost"], DRAW["privacy"]], ids=["cost", "curves"])


@each_plot
def test_it_draws_where_it_is_told(draw):
    part = plt.figure().subfigures(1, 2)[0]
    assert draw(ax=part.subplots()).figure_ is part
    part.figure.canvas.draw()
    plt.close("all")
    figure, (left, right) = plt.subplots(1, 2)
    display = draw(ax=right)
    assert display.ax_ is right
    assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]
    assert not left.has_data()
    assert right.has_data()
    assert right.get_legend().get_frame().get_alpha() == 0.5
    figure.canvas.draw()
    for wrong, name in ((3, "int"), ([left, right], "list")):
        with pytest.raises(TypeError, match=f"ax must be one matplotlib Axes or None, got {name}"):
            draw(ax=wrong)


@every_display
def test_it_draws_a_figure_of_its_own_and_again(draw):
    display = draw()
    first = display.ax_
    assert legend(display)[:2] == ["a", "b"]
    assert first.get_xlabel()
    assert first.get_ylabel()
    display.figure_.canvas.draw()
    box = first.get_legend().get_window_extent()
    assert box.x0 >= first.get_window_extent().x1  # beside the axes
    assert box.x1 <= display.figure_.bbox.x1 + 1
    assert display.plot() is display
    assert display.ax_ is not first
    assert len(plt.get_fignums()) == 2
    assert legend(pickle.loads(pickle.dumps(display)))[:2] == ["a", "b"]


@every_display
def test_reference_lines_are_drawn_by_name(draw):
    display = draw(reference={"paper": 0.3, "$x_": 0.25, "_y": 1})
    assert [line.get_ydata()[0] for line in display.references_] == [0.3, 0.25, 1.0]
    assert [name for name in legend(display) if name in ("paper", r"\$x_", " _y")] == [
        line.get_label() for line in display.references_
    ]
    looks = {(line.get_color(), line.get_linestyle()) for line in display.references_}
    assert len(looks) == 3
    display.figure_.canvas.draw()
    assert [line.get_label() for line in draw(reference=0.5).references_] == ["reference"]
    assert draw(reference=Fraction(1, 2)).references_[0].get_ydata()[0] == 0.5
    assert draw().references_ == []
    with pytest.raises(TypeError, match="reference must be a number or a dict"):
        draw(reference=["paper"])
    for bad in (NAN, "0.3", float("inf")):
        with pytest.raises(ValueError, match="reference 'paper' must be a finite number"):
            draw(reference={"paper": bad})


def test_reference_estimators_are_scored_on_the_same_folds():
    model, params = RFRec(n_factors=2, n_rounds=2, random_state=0), {"cv": 2, "scoring": "rmse"}
    reference = {"biases": BiasOnly(), "paper": 0.5}
    display = CostDisplay.from_estimator(
        model,
        *RATINGS,
        param_name="n_factors",
        param_range=[1, 2],
        score="rmse",
        reference=reference,
        compare_params=params,
    )
    biases, two = compare([BiasOnly(), model], *RATINGS, **params).summary["mean_rmse"]
    assert display.reference == pytest.approx({"biases": biases, "paper": 0.5})
    assert display.names == ["n_factors=1", "n_factors=2"]
    assert display.costs[0] < display.costs[1]
    assert display.scores[1] == pytest.approx(two)


def lines_of(display):
    drawn = getattr(display, "points_", None) or display.lines_
    return [one[0] if isinstance(one, tuple) else one for one in drawn]


@every_display
def test_lines_differ_and_take_the_short_words_of_matplotlib_and_labels(draw):
    first, second = lines_of(draw())
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()
    display = draw(ms=20, c="red", label="mine")
    looks = {(line.get_markersize(), line.get_color()) for line in lines_of(display)}
    assert looks == {(20, "red")}
    assert legend(display)[:2] == ["mine", "mine"]


def test_matplotlib_is_not_imported_before():
    code = "import sys, fedrecsk.plotting; print('matplotlib' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_missing_matplotlib_is_told_before_anything_is_fitted(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for cls in (CostDisplay, RobustnessDisplay, PrivacyDisplay):
        with pytest.raises(ImportError, match=f"{cls.__name__}.from_estimator needs matplotlib"):
            cls.from_estimator("never looked at", None, param_name="x", param_range=[1])
    with pytest.raises(ImportError, match=r"Display.plot needs matplotlib: .*'\.\[plot\]'"):
        CostDisplay.from_results(ROWS)


@pytest.fixture
def no_fits(monkeypatch):
    def fit(*_):
        raise AssertionError("something was fitted")

    monkeypatch.setattr(RFRec, "fit", fit)
    monkeypatch.setattr(LocALS, "fit", fit)


@pytest.mark.parametrize(
    ("cls", "model", "kwargs", "message"),
    [
        (CostDisplay, RFRec(), {"score": "rmsee"}, "Unknown score 'rmsee'; choose from rmse"),
        (RobustnessDisplay, RFRec(), {"score": "ndgc@5"}, "'ndgc'"),
        (CostDisplay, RFRec(), {"score": ["rmse"]}, "A list of scores must hold names"),
        (CostDisplay, LocALS(), {"score": "rmse"}, "'rmse' applies to rating models only, and"),
        (CostDisplay, RFRec(), {"x": "mbb"}, "Unknown score 'mbb'"),
    ],
)
def test_a_score_that_cannot_be_had_is_told_before_anything_is_fitted(
    cls, model, kwargs, message, no_fits
):
    with pytest.raises(ValueError, match=message):
        cls.from_estimator(model, *RATINGS, param_name="n_rounds", param_range=[1], **kwargs)


@pytest.mark.parametrize(
    ("scoring", "score"),
    [
        (None, "ndcg@5"),
        (["rmse"], "ndcg@5"),
        ({"mine": lambda model, X, y: model.score(X, y)}, "mine"),
    ],
)
def test_the_comparison_is_asked_for_the_score(scoring, score):
    params = {"cv": 2} | ({} if scoring is None else {"scoring": scoring})
    models = [RFRec(n_factors=2, random_state=0), LocALS(n_factors=2, random_state=0)]
    vary = {"param_name": "n_rounds", "param_range": [1, 2]}
    display = RobustnessDisplay.from_estimator(
        models, *RATINGS, score=score, compare_params=params, **vary
    )
    assert list(display.curves) == ["RFRec", "LocALS"]
    scoring = scoring if score == "mine" else score
    expected = compare([models[0].set_params(n_rounds=1)], *RATINGS, cv=2, scoring=scoring)
    assert display.curves["RFRec"][1][0] == expected.summary[f"mean_{score}"][0]
    costs = CostDisplay.from_estimator(
        models, *RATINGS, x="rounds", score=score, compare_params=params, **vary
    )
    rounds = {f"{name}, n_rounds={n}": n for n in (1, 2) for name in ("RFRec", "LocALS")}
    assert dict(zip(costs.names, costs.costs, strict=True)) == rounds


# ------------------------------------------------------------------------------- cost


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_front_is_what_nothing_beats(pairs, greater):
    costs, scores = map(np.array, zip(*pairs, strict=True))
    names = [str(i) for i in range(len(pairs))]
    display = CostDisplay(names=names, costs=costs, scores=scores, greater_is_better=greater)
    gain = scores if greater else -scores

    def beaten(i):
        return any(
            costs[j] <= costs[i]
            and gain[j] >= gain[i]
            and (costs[j], gain[j]) != (costs[i], gain[i])
            for j in range(len(pairs))
        )

    unbeaten = {(costs[i], scores[i]) for i in range(len(pairs)) if not beaten(i)}
    front = [(costs[int(name)], scores[int(name)]) for name in display.pareto_]
    assert set(front) == unbeaten
    assert len(front) == len(unbeaten)
    assert [cost for cost, _ in front] == sorted(cost for cost, _ in front)


def test_points_are_means_of_the_folds_and_bars_their_spread(comparison):
    display = CostDisplay.from_results(comparison, score="ndcg@10")
    table = comparison.per_fold.assign(mb=lambda t: t["mb_up"] + t["mb_down"])
    mean = table.groupby("estimator")[["mb", "ndcg@10"]].mean()
    spread = table.groupby("estimator")["ndcg@10"].std(ddof=0)
    assert display.names == ["RFRec", "LocALS", "popular"]
    for name, bar in zip(["RFRec", "LocALS"], display.points_, strict=True):
        assert point(bar) == pytest.approx(tuple(mean.loc[name]))
    np.testing.assert_allclose(display.score_stds, spread[display.names])
    (line,) = display.baselines_
    assert line.get_ydata()[0] == pytest.approx(mean.loc["popular", "ndcg@10"])
    assert "popular (centralised)" in legend(display)
    assert display.ax_.get_xlabel() == "MB that a client sends and receives"
    assert display.ax_.get_ylabel() == "NDCG@10"


def test_bars_are_standard_errors_over_users():
    models = {"RFRec": RFRec(n_factors=3, n_rounds=4, random_state=0), "popular": Popularity()}
    comparison = compare(models, *RATINGS, cv=3, scoring=["ndcg@10", "mae"])
    users = comparison.per_user.groupby(["estimator", "user"])["ndcg@10"].mean()
    errors = users.groupby("estimator").agg(lambda own: own.std(ddof=0) / np.sqrt(len(own)))
    display = CostDisplay.from_results(comparison, score="ndcg@10")
    np.testing.assert_allclose(display.score_stds, errors[display.names], rtol=0.15)
    spread = comparison.per_fold.groupby("estimator")["ndcg@10"].std(ddof=0)
    folds = CostDisplay.from_results(comparison.per_fold, score="ndcg@10")
    np.testing.assert_allclose(folds.score_stds, spread[folds.names])


def test_errors_are_better_small(comparison):
    rows = [
        {"estimator": "good", "rmse": 0.9, "mb_up": 2.0},
        {"estimator": "bad", "rmse": 1.1, "mb_up": 3.0},
        {"estimator": "cheap", "rmse": 1.0, "mb_up": 1.0},
    ]
    display = CostDisplay.from_results(rows, score="rmse", x="mb_up")
    assert display.pareto_ == ["cheap", "good"]
    np.testing.assert_array_equal(display.front_.get_xydata(), [[1.0, 1.0], [2.0, 0.9]])
    assert legend(display) == ["good", "bad", "cheap", "Pareto front"]
    turned = CostDisplay.from_results(rows, score="rmse", x="mb_up", greater_is_better=True)
    assert turned.pareto_ == ["cheap", "bad"]
    with_minus = [row | {"rmse": -row["rmse"]} for row in rows]
    minus = CostDisplay.from_results(with_minus, score="rmse", x="mb_up").plot(
        marker="*", xerr=0.5, front_kw={"c": "red"}
    )
    assert minus.pareto_ == ["cheap", "good"]
    assert {bar[0].get_marker() for bar in minus.points_} == {"*"}
    assert minus.front_.get_color() == "red"
    assert minus.ax_.get_xscale() == "linear"
    wide = [row | {"mb_up": row["mb_up"] ** 6} for row in rows]
    assert CostDisplay.from_results(wide, score="rmse", x="mb_up").ax_.get_xscale() == "log"
    # Ranking models have no RMSE, and are left out.
    rated = CostDisplay.from_results(comparison, score="rmse")
    assert rated.names == ["RFRec", "no recommender"]
    with pytest.raises(ValueError, match="no column 'mb_up'; give the comparison itself; this has"):
        CostDisplay.from_results(comparison.summary)
    names = {"score": "mean_rmse", "x": "mean_mb_up"}
    assert CostDisplay.from_results(comparison.summary, **names).ax_.get_ylabel() == "RMSE"


# ------------------------------------------------------------------------- convergence


def test_curves_are_the_history():
    model = RFRec(n_factors=3, n_rounds=4, early_stopping=True, random_state=0).fit(*RATINGS)
    display = ConvergenceDisplay.from_results(model)
    (line,) = display.lines_
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
    np.testing.assert_array_equal(line.get_ydata(), model.loss_curve_)
    assert legend(display) == ["RFRec"]
    assert display.bands_ == []
    assert display.ax_.get_ylabel() == "Training loss"
    # A second display on the same axes takes other colours.
    other = ConvergenceDisplay.from_results({"b": [2, 1]}, ax=display.ax_)
    assert legend(other) == ["RFRec", "b"]
    assert line.get_color() != other.lines_[0].get_color()
    sent = ConvergenceDisplay.from_results({"RFRec": model.history_}, score="bytes_up")
    assert sent.lines_[0].get_ydata().tolist() == [row["bytes_up"] for row in model.history_]
    piped = make_pipeline(FunctionTransformer(), model).fit(*RATINGS)
    display = ConvergenceDisplay.from_results({"mine": piped}, score="validation_loss")
    expected = [row["validation_loss"] for row in model.history_]
    np.testing.assert_array_equal(display.lines_[0].get_ydata(), expected)
    assert legend(display) == ["mine"]


def test_folds_are_averaged_and_centralised_models_left_out(comparison):
    display = ConvergenceDisplay.from_results(comparison)
    assert legend(display) == ["RFRec", "LocALS"]
    curves = [model.loss_curve_ for model in comparison.estimators["LocALS"]]
    np.testing.assert_allclose(display.lines_[1].get_ydata(), np.mean(curves, axis=0))
    _, _, std = display.curves["LocALS"]
    np.testing.assert_allclose(std, np.std(curves, axis=0))
    assert len(display.bands_) == 2


def test_rounds_without_a_number_are_passed_over():
    display = ConvergenceDisplay.from_results({"a": [[3, np.inf, 1], [5, NAN]]}, score="RMSE")
    x, mean, std = display.curves["a"]
    assert (x.tolist(), mean.tolist(), std.tolist()) == ([1, 3], [4, 1], [1, 0])
    assert display.ax_.get_ylabel() == "RMSE"


def test_what_does_not_converge_is_named(comparison):
    with pytest.raises(TypeError, match="popular has no history_: Popularity does not learn in"):
        ConvergenceDisplay.from_results({"popular": Popularity().fit(RATINGS[0])})
    with pytest.raises(NotFittedError):
        ConvergenceDisplay.from_results(RFRec())
    with pytest.raises(ValueError, match="no column 'validation_loss'"):
        ConvergenceDisplay.from_results(comparison, score="validation_loss")
    with pytest.raises(ValueError, match="return_estimator=True"):
        ConvergenceDisplay.from_results(compare([Popularity()], *RATINGS, cv=2))


# -------------------------------------------------------------------------- robustness


def test_a_line_over_dropout():
    frame = pd.DataFrame(ROWS).iloc[::-1]
    display = RobustnessDisplay.from_results(frame)
    line = display.lines_[0]
    np.testing.assert_array_equal(line.get_xdata(), [0.0, 0.5])
    np.testing.assert_allclose(line.get_ydata(), [0.4, 0.25])
    np.testing.assert_allclose(display.curves["a"][2], [0, 0.05])
    assert len(display.bands_) == 2
    assert display.ax_.get_xlabel() == "Dropout rate"


def test_points_side_by_side_for_attacks():
    rows = [
        {"who": who, "attack": attack, "rmse": value}
        for who, value in (("a", 1.0), ("b", 2.0))
        for attack in ("nobody", "noise", None)
        if (who, attack) != ("a", None)
    ]
    display = RobustnessDisplay.from_results(pd.DataFrame(rows), x="attack", score="rmse", by="who")
    labels = [text.get_text() for text in display.ax_.get_xticklabels()]
    assert labels == ["nobody", "noise", "none"]
    a, b = (bar[0].get_xdata().astype(float) for bar in display.lines_)
    np.testing.assert_array_equal(np.round(a), [0, 1])
    np.testing.assert_array_equal(np.round(b), [0, 1, 2])
    assert not set(a) & set(b)


def test_the_worst_of_several_strengths_is_drawn():
    rows = [
        {"who": "a", "share": share, "strength": strength, "seed": seed, "s": value + seed}
        for share, strength, value in ((0.1, 1, 0.5), (0.1, 9, 0.2), (0.2, 1, 0.1), (0.2, 9, 0.3))
        for seed in (0, 1)
    ]
    arguments = {"x": "share", "score": "s", "by": "who", "over": "strength"}
    display = RobustnessDisplay.from_results(rows, **arguments)
    np.testing.assert_allclose(display.curves["a"][1], [0.7, 0.6])
    assert display.worst_ == {("a", 0.1): {"strength": 9}, ("a", 0.2): {"strength": 1}}
    highest = RobustnessDisplay.from_results(rows, **arguments, greater_is_better=False)
    np.testing.assert_allclose(highest.curves["a"][1], [1.0, 0.8])
    exposures = [{**row, "exposure": row["s"]} for row in rows]
    found = RobustnessDisplay.from_results(exposures, **arguments | {"score": "exposure"})
    np.testing.assert_allclose(found.curves["a"][1], [1.0, 0.8])
    with pytest.raises(ValueError, match="no column 'force'"):
        RobustnessDisplay.from_results(rows, **arguments | {"over": ["strength", "force"]})


@pytest.mark.filterwarnings("ignore:2 of 8 fits failed")
def test_the_worst_of_several_attacks_from_fits():
    weak, strong = RandomUpload(0.3, strength=1e-9), RandomUpload(0.3, strength=100.0)
    model = LocALS(n_factors=2, n_rounds=2, random_state=0)
    display = RobustnessDisplay.from_estimator(
        model,
        RATINGS[0],
        param_name="federation__adversary",
        param_range={"both": [weak, strong], "weak": weak, "broken": "no adversary"},
        compare_params={"cv": 2},
    )
    both, alone = display.curves["LocALS"][1]
    assert legend(display) == legend(display.plot()) == ["LocALS", "LocALS: 2 of 6 failed"]
    expected = compare([model.set_params(federation__adversary=strong)], RATINGS[0], cv=2).summary
    assert both == pytest.approx(min(alone, expected["mean_ndcg@10"][0]))
    chosen = weak if both == alone else strong
    assert display.worst_["LocALS", "both"] == {"variant": str(chosen)}
    with pytest.raises(ValueError, match="has an empty list"):
        RobustnessDisplay.from_estimator(
            model, RATINGS[0], param_name="federation__dropout", param_range={"none": []}
        )


# ----------------------------------------------------------------------------- privacy


def test_no_noise_is_a_line_across():
    table = {
        "estimator": ["a", "a", "a", "b", "central"],
        "epsilon": [10.0, 0.1, np.inf, np.inf, NAN],
        "rmse": [1.0, 2.0, 0.9, 0.8, 0.7],
    }
    display = PrivacyDisplay.from_results(pd.DataFrame(table), score="rmse")
    (line,) = display.lines_
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([0.1, 10.0], [2.0, 1.0])
    assert [base.get_ydata()[0] for base in display.baselines_] == [0.9, 0.8]
    assert display.baselines_[0].get_color() == line.get_color()
    assert legend(display) == ["a", "a, no noise", "b, no noise"]
    assert display.ax_.get_xscale() == "log"


def test_privacy_from_fits():
    mechanisms = {"none": None} | {str(s): LaplaceMechanism(clip=1, scale=s) for s in (1, 10)}
    public = {"rating_scale": (1, 5), "items": np.unique(RATINGS[0][:, 1])}
    model = RFRec(n_factors=2, n_rounds=2, **public, random_state=0)
    display = PrivacyDisplay.from_estimator(
        model,
        *RATINGS,
        param_name="federation__local_dp",
        param_range=mechanisms,
        score="rmse",
        compare_params={"cv": 2},
    )
    noisy = model.set_params(federation__local_dp=mechanisms["1"])
    expected = compare([noisy], *RATINGS, cv=2).summary
    epsilon, rmse, _ = display.curves["RFRec"]
    assert epsilon[2] == np.inf
    assert epsilon[0] == pytest.approx(epsilon[1] / 10)
    assert epsilon[1] == pytest.approx(expected["mean_epsilon"][0])
    assert rmse[1] == pytest.approx(expected["mean_rmse"][0])
    assert len(display.baselines_) == 1


def test_failures_are_in_the_legend_and_what_does_not_apply_is_not():
    rows = [
        {"estimator": "a", "epsilon": np.inf, "mb": 1.0, "rmse": 0.9, "error": ""},
        {"estimator": "a", "epsilon": NAN, "mb": NAN, "rmse": NAN, "error": "ValueError: clip"},
        {"estimator": "b", "epsilon": 2.0, "mb": 2.0, "rmse": 0.9, "error": NAN},
        {"estimator": "ranks", "epsilon": 1.0, "mb": 1.0, "rmse": NAN, "error": ""},
    ]
    display = PrivacyDisplay.from_results(pd.DataFrame(rows), score="rmse")
    assert legend(display) == ["b", "a, no noise", "a: 1 of 2 failed"]
    display = CostDisplay.from_results(rows, score="rmse")
    assert legend(display) == ["a", "b", "a: 1 of 2 failed"]
    display = RobustnessDisplay.from_results(rows[:2], x="estimator", score="rmse", over="mb")
    assert display.worst_ == {("a", "a"): {"mb": 1.0}}


cost, robustness, privacy, convergence = (
    Display.from_results
    for Display in (CostDisplay, RobustnessDisplay, PrivacyDisplay, ConvergenceDisplay)
)


def rows(**change):
    return [row | change for row in ROWS]


NOTHING = "Nothing to draw"
BAD = [
    (lambda: cost(ROWS, score="rmse"), ValueError, "no column 'rmse'; it has"),
    (lambda: cost(rows(mb=np.inf)), ValueError, "'mb' is infinite"),
    (lambda: cost(rows(**{"ndcg@10": "good"})), ValueError, "holds 'good', which is not a number"),
    (lambda: cost(rows(**{"ndcg@10": np.inf})), ValueError, "is infinite in row 0; did the fit"),
    (lambda: robustness(rows(dropout=np.inf)), ValueError, "'dropout' is infinite in some rows"),
    (lambda: cost(None), ValueError, "results must be a Comparison, or a table"),
    (lambda: cost(rows(**{"ndcg@10": NAN})), ValueError, "no row of the results has 'ndcg@10'"),
    (lambda: cost(rows(mb=-1.0)), ValueError, "negate them"),
    (lambda: CostDisplay(names=[], costs=[], scores=[]).plot(), ValueError, NOTHING),
    (
        lambda: CostDisplay(names=["a", "b"], costs=[1], scores=[1, 2]).plot(),
        ValueError,
        r"inconsistent numbers of samples: \[2, 1, 2\]",
    ),
    (lambda: robustness([]), ValueError, "at least one row"),
    (lambda: _vary(param_range=[]), ValueError, "param_range is empty"),
    (
        lambda: _vary(param_range=[0.0], reference=[Popularity()], compare_params={"cv": 2}),
        ValueError,
        "reference 'Popularity' has no 'rmse'",
    ),
    (lambda: _vary(param_range="12"), TypeError, "param_range must be a list of values"),
    (lambda: privacy(rows(epsilon=0.0)), ValueError, "'epsilon' must be positive"),
    (lambda: convergence({}), ValueError, NOTHING),
    (
        lambda: convergence([RFRec()]),
        TypeError,
        "a fitted model, a Comparison or a dict by name, got list",
    ),
    (lambda: convergence({"a": []}), ValueError, "a has no rounds"),
    (lambda: ConvergenceDisplay(curves={}).plot(), ValueError, NOTHING),
    (lambda: convergence({"a": 1.0}), TypeError, "numbers by round"),
    (lambda: convergence({"a": ["x"]}), ValueError, "holds 'x'"),
]


@pytest.mark.parametrize(("draw", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_results_are_named(draw, error, message):
    with pytest.raises(error, match=message):
        draw()


def _vary(**options):
    return RobustnessDisplay.from_estimator(
        RFRec(), *RATINGS, param_name="federation__dropout", score="rmse", **options
    )
