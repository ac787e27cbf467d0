"""The closed form for shuffled uploads, against the divergence of the theorem's worst case."""

import math

import numpy as np
import pytest
from scipy import stats

from fedrecsk.privacy import shuffled_epsilon


def delta_of_clones(epsilon0, n, epsilon):
    """Feldman, McMillan and Talwar 2021, theorem 3.2: numbers of clones of either kind.

    Of n - 1 others, C are clones, A of which look like the client's first data set. The client
    itself is the clone of its own data set with probability e^eps0 / (1 + e^eps0).
    """
    own = math.exp(epsilon0) / (1 + math.exp(epsilon0))
    clones = stats.binom(n - 1, math.exp(-epsilon0))
    total = 0.0
    for c in range(int(clones.ppf(1e-12)), int(clones.ppf(1 - 1e-12)) + 1):
        first = np.arange(c + 2)
        stays, moves = stats.binom.pmf(first, c, 0.5), stats.binom.pmf(first - 1, c, 0.5)
        p, q = own * moves + (1 - own) * stays, (1 - own) * moves + own * stays
        total += clones.pmf(c) * np.maximum(0, p - math.exp(epsilon) * q).sum()
    return total


@pytest.mark.parametrize(("epsilon0", "n"), [(0.2, 284), (1.0, 632), (2.0, 1716)])
def test_the_closed_form_is_a_bound(epsilon0, n):
    delta = 1e-6
    epsilon = shuffled_epsilon(epsilon0, n, delta)
    # So few clients that the theorem only just holds.
    assert delta_of_clones(epsilon0, n, epsilon) <= delta
    # But not one that anything would meet.
    assert delta_of_clones(epsilon0, n, epsilon / 8) > delta


def test_more_clients_hide_more():
    values = [shuffled_epsilon(1.0, n, 1e-6) for n in (10**3, 10**4, 10**5, 10**6)]
    assert values == sorted(values, reverse=True)
    assert values[0] <= 1.0
    # With the square root of their number.
    assert values[2] / values[3] == pytest.approx(math.sqrt(10), rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5.0, 943, 1e-6), "needs 34,453 clients or more"),
        ((1000.0, 943, 1e-6), "needs inf clients"),
        ((1.0, 1, 1e-6), "no proven effect"),
        ((1.0, 0, 1e-6), "'n_clients' parameter of shuffled_epsilon must be an int"),
        ((0.0, 943, 1e-6), "'epsilon' parameter of shuffled_epsilon must be a float"),
        (("1", 943, 1e-6), "'epsilon' parameter of shuffled_epsilon must be a float"),
        ((1.0, 943, 0.0), "'delta' parameter of shuffled_epsilon must be a float"),
    ],
)
def test_where_the_theorem_does_not_hold_it_says_so(arguments, message):
    with pytest.raises(ValueError, match=message):
        shuffled_epsilon(*arguments)


def test_the_bound_in_numbers():
    # log(1 + (e - 1) / (e + 1) (8 sqrt(e log(4e6)) / sqrt(1e4) + 8 e / 1e4)).
    assert shuffled_epsilon(1.0, 10_000, 1e-6) == pytest.approx(0.214026, abs=1e-6)
