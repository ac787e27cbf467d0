"""Metrics of score arrays against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from sklearn.metrics import ndcg_score, roc_auc_score

from fedrecsk import metrics
from fedrecsk.metrics._held_out import top_k
from tests.reference import ranking as reference

FUNCTIONS = {
    "ndcg": metrics.ndcg_at_k,
    "hit_rate": metrics.hit_rate_at_k,
    "precision": metrics.precision_at_k,
    "recall": metrics.recall_at_k,
    "mrr": metrics.reciprocal_rank_at_k,
    "map": metrics.average_precision_at_k,
}
every_metric = pytest.mark.parametrize("name", FUNCTIONS)


@st.composite
def rankings(draw):
    scores = st.sampled_from([-np.inf, 0.0, 1.0, 2.0, np.inf])
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 6)))
    gains = draw(arrays(float, shape, elements=st.sampled_from([-1.0, 0.0, 1.0, 3.0])))
    return gains, draw(arrays(float, shape, elements=scores))


@every_metric
@given(case=rankings(), data=st.data())
def test_metrics_are_the_mean_over_all_orders_of_ties(name, case, data):
    gains, scores = case
    k = data.draw(st.integers(1, scores.shape[1]))
    expected = [
        reference.expected(name, s, g, k)
        for s, g in zip(scores.tolist(), gains.tolist(), strict=True)
    ]
    values = FUNCTIONS[name](gains, scores, k=k, average=None)
    np.testing.assert_allclose(values, expected, atol=1e-12)
    if np.isfinite(expected).any():
        mean = FUNCTIONS[name](gains, scores, k=k)
        assert mean == pytest.approx(np.nanmean(expected))


@given(case=rankings())
def test_auc_is_the_mean_over_all_orders_of_ties(case):
    gains, scores = case
    expected = [
        reference.expected("auc", s, g, None)
        for s, g in zip(scores.tolist(), gains.tolist(), strict=True)
    ]
    np.testing.assert_allclose(metrics.user_auc(gains, scores, average=None), expected, atol=1e-12)
    if np.isfinite(expected).any():
        assert metrics.user_auc(gains, scores) == pytest.approx(np.nanmean(expected))
    else:
        with pytest.raises(ValueError, match="no AUC"):
            metrics.user_auc(gains, scores)


@given(seed=st.integers(0, 2**16), k=st.integers(1, 30), levels=st.sampled_from([3, 1000]))
def test_ndcg_and_auc_are_scikit_learns(seed, k, levels):
    rng = np.random.default_rng(seed)
    gains = rng.integers(0, 3, (5, 30)).astype(float)
    gains[:, :2] = [0, 1]
    scores = rng.integers(0, levels, (5, 30)).astype(float)
    assert metrics.ndcg_at_k(gains, scores, k=k) == pytest.approx(ndcg_score(gains, scores, k=k))
    expected = roc_auc_score(gains > 0, scores, average="samples")
    assert metrics.user_auc(gains, scores) == pytest.approx(expected)


@every_metric
def test_only_the_order_of_scores_matters(name):
    rng = np.random.default_rng(0)
    gains, scores = rng.integers(-1, 3, (40, 6)) * 1.0, rng.integers(0, 3, (40, 6)) * 1.0
    order = rng.permutation(6)
    values = FUNCTIONS[name](gains, scores, k=3, average=None)
    for others in (
        FUNCTIONS[name](gains[:, order], scores[:, order], k=3, average=None),
        FUNCTIONS[name](gains, np.exp(scores) - 5, k=3, average=None),
        FUNCTIONS[name](gains, scores.astype(np.float32), k=3, average=None),
        FUNCTIONS[name](sparse.csr_array(gains), scores, k=3, average=None),
    ):
        np.testing.assert_allclose(others, values)


@every_metric
def test_known_values(name):
    # Relevant at places 1 and 4 of 5, cut at 3; worked out by hand.
    value = FUNCTIONS[name]([[1, 0, 0, 1, 0]], [[5.0, 4.0, 3.0, 2.0, 1.0]], k=3)
    by_hand = {
        "ndcg": 1 / (1 + 1 / np.log2(3)),
        "hit_rate": 1,
        "precision": 1 / 3,
        "recall": 1 / 2,
        "mrr": 1,
        "map": 1 / 2,
    }
    assert value == pytest.approx(by_hand[name])


@pytest.mark.parametrize(
    ("y_true", "y_score", "k", "message"),
    [
        ([[1, 0]], [[1.0, 2.0]], 0, "k must be an integer of at least 1"),
        ([[1, 0]], [[1.0, 2.0]], True, "k must be an integer of at least 1"),
        ([[1, 0]], [[1.0, 2.0]], 3, "k=3 is more than the 2 candidates"),
        ([[1, 0, 1]], [[1.0, 2.0]], 1, r"y_true has shape \(1, 3\), but y_score has \(1, 2\)"),
        ([[1, 0]], [[np.nan, 2.0]], 1, "y_score is NaN for user 0, candidate 0"),
        ([[np.nan, 0]], [[1.0, 2.0]], 1, "y_true contains NaN"),
        ([[0, -1]], [[1.0, 2.0]], 1, "No user has a relevant candidate"),
    ],
)
def test_bad_input_is_named(y_true, y_score, k, message):
    with pytest.raises(ValueError, match=message):
        metrics.recall_at_k(y_true, y_score, k=k)
    with pytest.raises(ValueError, match="average must be 'macro' or None, got 'micro'"):
        metrics.ndcg_at_k([[1]], [[1.0]], k=1, average="micro")


@pytest.mark.parametrize("decimals", [0, 1, 8])
@pytest.mark.parametrize("k", [1, 25, 80])
@pytest.mark.parametrize("odd", [None, -np.inf, np.nan, np.inf])
def test_top_k_of_long_rows(decimals, k, odd):
    """With ties from everywhere to nowhere; what is not finite comes last."""
    rng = np.random.default_rng(decimals + k)
    scores = rng.normal(size=(6, 1003)).round(decimals)
    if odd is not None:
        scores[rng.random(scores.shape) < 0.3] = odd
        scores[5, 3:] = odd
    finite = np.where(np.isfinite(scores), scores, -np.inf)
    expected = np.argsort(-finite, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(top_k(scores, k), expected)
