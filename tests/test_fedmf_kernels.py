"""The visits of FedMF, CoLR and SCoLR at the level of arrays."""

import numpy as np
import pytest
from numba import njit

from fedrecsk.federated import _fedmf_kernels as fedmf
from tests.reference.colr import Stream

N_ITEMS, N_FACTORS = 150, 6


@njit
def _draws(n, stream, out):
    for k in range(len(out)):
        out[k] = fedmf_below(n, stream)


@njit
def _examples(layout, feedback, n_items, n_negatives, work):
    return fedmf_draw_examples(
        0, len(layout.indptr) - 1, layout, feedback, n_items, n_negatives, work
    )


# Numba looks functions up among the globals of the module.
fedmf_below, fedmf_draw_examples = fedmf.below, fedmf.draw_examples


class Setting:
    """Clients of one to three users with random ratings, in arrays as the kernels take them."""

    def __init__(self, n_clients=7, n_columns=N_FACTORS, dtype=np.float64, seed=0, **config):
        rng = np.random.default_rng(seed)
        n_users = rng.integers(1, 4, n_clients)
        client_indptr = np.concatenate([[0], np.cumsum(n_users)])
        rated = rng.random((client_indptr[-1], N_ITEMS)) < 0.1
        rated[:, 5] = True
        users, items = np.nonzero(rated)
        indptr = np.concatenate([[0], np.cumsum(rated.sum(axis=1))])
        self.rated, self.n_clients, self.n_columns = rated, n_clients, n_columns
        self.layout = fedmf.Layout(client_indptr, indptr, items.astype(np.int32))
        positive = (rng.random(len(users)) < 0.7).astype(dtype)
        self.feedback = fedmf.Feedback(positive, rng.uniform(0.5, 2, len(users)).astype(dtype))
        defaults = {
            "n_negatives": 2,
            "local_epochs": 2,
            "batch_size": 5,
            "learning_rate": 0.3,
            "reg": 0.01,
            "shrinkage": 0.2,
            "squared": False,
            "frozen": False,
        }
        self.config = fedmf.Config(**defaults | config)
        self.items = rng.standard_normal((N_ITEMS, N_FACTORS)).astype(dtype)
        self.users = rng.standard_normal((client_indptr[-1], N_FACTORS)).astype(dtype)
        self.seeds = rng.integers(0, 2**63, n_clients).astype(np.uint64)
        self.columns = np.ones((n_clients, n_columns), dtype=bool)
        self.scale = np.ones(n_clients, dtype=dtype)
        self.active = np.ones(n_clients, dtype=bool)
        self.delivers = np.ones(n_clients, dtype=bool)

    def _arguments(self):
        self.is_finite, self.new_users = np.zeros(self.n_clients, dtype=bool), self.users.copy()
        return (
            self.layout,
            self.feedback,
            fedmf.Cohort(self.active, self.delivers, self.seeds, self.is_finite),
            self.config,
            self.items,
            fedmf.Moving(0.2, self.columns, self.scale),
            self.new_users,
            fedmf.scratch(self.layout, self.active, self.config, self.items),
        )

    def summed(self, n_count_columns=1):
        sums = np.zeros((N_ITEMS, self.n_columns))
        n_visits = np.zeros((N_ITEMS, n_count_columns), dtype=np.int64)
        rows, values = np.empty(0, np.int32), np.empty((0, self.n_columns), self.items.dtype)
        indptr = np.zeros(self.n_clients + 1, dtype=np.int64)
        out = fedmf.Upload(False, indptr, rows, values, sums, n_visits)
        loss = fedmf.visit(*self._arguments(), out)
        return sums, n_visits, loss

    def each(self):
        """A dict of (rows, values) by client, and the loss; whatever is not written is NaN."""
        n = N_ITEMS * self.n_clients
        indptr = np.full(self.n_clients + 1, -1)
        indptr[0] = 0
        rows = np.full(n, -1, dtype=np.int32)
        values = np.full((n, self.n_columns), np.nan, self.items.dtype)
        sums, n_visits = np.zeros((0, self.n_columns)), np.zeros((0, 1), dtype=np.int64)
        out = fedmf.Upload(True, indptr, rows, values, sums, n_visits)
        loss = fedmf.visit(*self._arguments(), out)
        spans = [slice(*indptr[c : c + 2]) for c in range(self.n_clients)]
        assert np.isnan(values[indptr[-1] :]).all()
        return [(rows[span], values[span]) for span in spans], loss


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("n_columns", [N_FACTORS, 2])
def test_uploads_one_by_one_add_up_to_the_sums(n_columns, squared, dtype):
    setting = Setting(n_columns=n_columns, dtype=dtype, squared=squared)
    setting.active[[1, 4]] = False
    setting.delivers[[2, 4]] = False
    setting.scale[:] = np.arange(1, 8)
    sums, n_visits, loss = setting.summed()
    users, is_finite = setting.new_users, setting.is_finite
    uploads, same_loss = setting.each()
    np.testing.assert_array_equal(setting.new_users, users)
    np.testing.assert_array_equal(setting.is_finite, is_finite)
    assert same_loss == loss
    expected, counts = np.zeros_like(sums), np.zeros_like(n_visits)
    for c, (rows, values) in enumerate(uploads):
        assert (len(rows) > 0) == setting.active[c]
        assert (np.diff(rows) > 0).all()
        if setting.delivers[c]:
            expected[rows] += values
            counts[rows] += 1
    np.testing.assert_allclose(sums, expected, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(n_visits, counts)
    assert np.abs(sums).max() > 0.01


def test_clients_move_their_own_columns_only():
    setting = Setting(n_columns=4)
    setting.columns[:] = np.random.default_rng(1).random((7, 4)) < 0.5
    setting.columns[0] = [True, False, True, False]
    sums, n_visits, _ = setting.summed(n_count_columns=4)
    uploads, _ = setting.each()
    expected, counts = np.zeros_like(sums), np.zeros_like(n_visits)
    for (rows, values), own in zip(uploads, setting.columns, strict=True):
        assert (values[:, ~own] == 0).all()
        assert (values[:, own] != 0).any(axis=0).all()
        expected[rows] += values
        counts[rows] += own
    np.testing.assert_allclose(sums, expected, atol=1e-14)
    np.testing.assert_array_equal(n_visits, counts)


def test_all_columns_of_a_client_equal_a_full_update():
    """Which columns come first does not matter to those who move all of them."""
    whole, part = Setting(n_columns=N_FACTORS), Setting(n_columns=N_FACTORS)
    part.columns[1:] = False
    for one, other in zip(whole.each()[0][:1], part.each()[0][:1], strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_the_order_of_coordinates_does_not_matter():
    setting, permuted = Setting(n_columns=N_FACTORS), Setting(n_columns=N_FACTORS)
    order = np.random.default_rng(2).permutation(N_FACTORS)
    columns = np.random.default_rng(1).random((7, N_FACTORS)) < 0.5
    setting.columns[:], permuted.columns[:] = columns, columns[:, order]
    permuted.items = np.ascontiguousarray(setting.items[:, order])
    permuted.users = np.ascontiguousarray(setting.users[:, order])
    sums, _, _ = setting.summed()
    np.testing.assert_allclose(permuted.summed()[0], sums[:, order], atol=1e-12)
    np.testing.assert_allclose(permuted.new_users, setting.new_users[:, order], atol=1e-12)


def test_visited_items_are_the_rated_and_the_drawn_ones():
    setting = Setting()
    uploads, _ = setting.each()
    for c, (rows, _) in enumerate(uploads):
        first, last = setting.layout.client_indptr[c : c + 2]
        stream, visited = Stream(setting.seeds[c]), set()
        for u in range(first, last):
            unseen = np.flatnonzero(~setting.rated[u])
            for k in range(setting.layout.indptr[u], setting.layout.indptr[u + 1]):
                visited.add(int(setting.layout.items[k]))
                if setting.feedback.targets[k] > 0:
                    visited.update(int(unseen[stream.below(len(unseen))]) for _ in range(2))
        assert rows.tolist() == sorted(visited)


def test_clients_that_have_diverged_are_told_and_not_added():
    setting = Setting(squared=True)
    sums, _, _ = setting.summed()
    others = Setting(squared=True)
    others.active[3] = False
    left, _, _ = others.summed()
    for broken in (np.nan, np.inf):
        setting.users[setting.layout.client_indptr[3]] = broken
        np.testing.assert_array_equal(setting.summed()[0], left)
        np.testing.assert_array_equal(np.flatnonzero(~setting.is_finite), [3])
        setting.each()
        np.testing.assert_array_equal(np.flatnonzero(~setting.is_finite), [3])
    assert np.abs(sums - left).max() > 0.01


def test_idle_clients_are_left_as_they_are():
    setting = Setting()
    setting.active[:] = False
    sums, n_visits, loss = setting.summed()
    assert not sums.any()
    assert not n_visits.any()
    assert loss == (0.0, 0)
    np.testing.assert_array_equal(setting.new_users, setting.users)


def test_a_fit_of_users_alone_leaves_items_and_other_users():
    setting = Setting(frozen=True)
    # A kernel that wrote into them would not compile.
    setting.items.flags.writeable = False
    setting.active[1:] = False
    sums, n_visits, _ = setting.summed()
    moved = (setting.new_users != setting.users).any(axis=1)
    own = np.arange(setting.layout.client_indptr[1])
    np.testing.assert_array_equal(np.flatnonzero(moved), own)
    assert not sums.any()
    assert not n_visits.any()


def test_draws_are_uniform_and_independent():
    stream, draws = np.array([7], dtype=np.uint64), np.empty(16000, dtype=np.int64)
    _draws(8, stream, draws)
    counts = np.bincount(draws, minlength=8)
    # Chi-squared with 7 degrees of freedom; .999 quantile.
    assert ((counts - 2000) ** 2 / 2000).sum() < 24.3
    later = np.bincount(8 * draws[:-1] + draws[1:], minlength=64)
    assert ((later - 250) ** 2 / 250).sum() < 103.4


def test_ranks_run_through_what_the_user_has_not_rated():
    seen = np.array([0, 1, 4, 9], dtype=np.int32)
    unseen = np.setdiff1d(np.arange(12), seen)
    ranks, users = np.arange(len(unseen)), np.zeros(len(unseen), dtype=np.int64)
    found = np.empty(len(unseen), dtype=np.int32)
    fedmf.unseen_items(ranks, users, np.array([0, len(seen)]), seen, found)
    np.testing.assert_array_equal(found, unseen)


def test_nobody_trains_on_an_item_as_positive_and_negative():
    setting = Setting()
    setting.feedback.targets[:] = 1
    n_users = len(setting.layout.indptr) - 1
    # All users as if they were one client's.
    layout = setting.layout._replace(client_indptr=np.array([0, n_users]))
    work = fedmf.scratch(layout, np.ones(1, dtype=bool), setting.config, setting.items)
    work.stream[0] = 1
    n = _examples(layout, setting.feedback, N_ITEMS, 2, work)
    assert n == 3 * len(layout.items) == len(work.what)
    np.testing.assert_array_equal(setting.rated[work.whose, work.what], work.target == 1)
