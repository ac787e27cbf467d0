"""What noise a fit adds and reports, against dp-accounting and formulas with numbers."""

from types import SimpleNamespace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy.stats import binom

from fedrecsk import Federation, PrivFedEB, RFRec
from fedrecsk.privacy import CentralDP, central_dp
from fedrecsk.privacy.central_dp import clip_updates, round_updates
from fedrecsk.protocol.central_noise import CentralNoise, PlannedUploads, noise_multipliers
from fedrecsk.protocol.keys import Key
from fedrecsk.updates import FieldSpec, SparseRows
from tests.updates.making import updates_of

pytestmark = pytest.mark.filterwarnings("ignore:CentralDP.delta=")

PUBLIC = {"items": np.arange(9), "rating_scale": (1, 5)}


def gaussian_epsilon(noise_multipliers, delta):
    """The epsilon of Gaussian sums in the usual definition, by privacy loss distributions."""
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    for one in noise_multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(one))
    return accountant.get_epsilon(delta)


def releases_of(model, n_clients):
    return CentralNoise.of(model._plan(), n_clients, Key(0), Key(1))


# ------------------------------------------------------------------------ the adaptive clip


def test_noise_on_uploads_and_on_counts_cost_what_is_reported():
    # Andrew et al. (2021), theorem 1 and section 3: the count has noise of a 20th of the cohort,
    # and one client moves it by half a client.
    n_clients, n_rounds, delta = 200, 4, 1e-3
    mechanism = CentralDP(clip=3.0, noise_multiplier=15.0, quantile=0.5, delta=delta)
    model = RFRec(
        n_rounds=n_rounds,
        aggregation="clients",
        federation=Federation(central_dp=mechanism),
        random_state=0,
        **PUBLIC,
    )
    releases = releases_of(model, n_clients)
    _, std = releases._noisy("item_vectors", np.zeros((9, 21)), Key(0).at(0), None)
    on_uploads, on_counts = std / 3.0, n_clients / 20 / 0.5
    assert on_uploads == pytest.approx(22.678, abs=0.001)
    exact = gaussian_epsilon([on_uploads, on_counts] * n_rounds, delta)
    assert releases.planned("exact sums").epsilon == pytest.approx(exact, rel=1e-3)


def test_the_count_of_short_uploads_is_as_noisy_as_accounted():
    mechanism = CentralDP(clip=3.0, noise_multiplier=15.0, quantile=0.3, delta=1e-3)
    model = RFRec(aggregation="clients", federation=Federation(central_dp=mechanism), **PUBLIC)
    releases = releases_of(model, 200)
    shares = []
    for number in range(2000):
        before = releases._round.clip
        releases._adapt(10, Key(0).at(number))
        shares.append(0.3 - np.log(releases._round.clip / before) / 0.2)
    # 10 short uploads more than half of 200; the noise has a standard deviation of 10.
    assert np.mean(shares) == pytest.approx(0.55, abs=4 * 0.05 / np.sqrt(2000))
    assert np.std(shares) == pytest.approx(0.05, rel=4 * np.sqrt(0.5 / 2000))


@pytest.mark.parametrize(
    ("share", "fraction", "sampling", "uses"), [(0.1, 1.0, "auto", 7), (0.6, 0.25, "rotating", 2)]
)
def test_the_setup_spends_its_share(share, fraction, sampling, uses):
    mechanism = CentralDP(epsilon=3.0, setup_share=share, delta=1e-3)
    federation = Federation(central_dp=mechanism, sampling=sampling)
    model = PrivFedEB(n_rounds=7, client_fraction=fraction, federation=federation, **PUBLIC)
    releases = releases_of(model, 40)
    # One exchange before the rounds.
    setup, in_rounds = (releases.exchange(Key(0).at(n)).noise_multiplier for n in (-1, 0))
    spent = setup**-2, uses * in_rounds**-2
    assert spent[0] / sum(spent) == pytest.approx(share)
    assert gaussian_epsilon([setup] + [in_rounds] * uses, 1e-3) == pytest.approx(3.0, rel=2e-3)
    assert releases.planned("exact sums").epsilon == pytest.approx(3.0, rel=1e-6)


def test_secret_cohorts_count_as_often_as_they_are_expected():
    mechanism = CentralDP(noise_multiplier=2.0, setup_share=0.25, delta=1e-3)
    federation = Federation(central_dp=mechanism, sampling="poisson")
    model = PrivFedEB(n_rounds=10, client_fraction=0.6, federation=federation, **PUBLIC)
    setup = releases_of(model, 40).exchange(Key(0).at(-1)).noise_multiplier
    # 0.6 times 10 rounds of 1 / 2^2 are three quarters.
    assert setup == pytest.approx(np.sqrt(2))


def test_several_exchanges_before_the_rounds_share_their_part():
    mechanism = CentralDP(noise_multiplier=2.0, setup_share=0.2)
    sizes = {"setup": 5, "round": 5}
    uploads = PlannedUploads(
        40, sizes, n_setups=3, n_rounds=8, uses=8, probability=1.0, cohort=40.0, n_users=40
    )
    setup, in_rounds = noise_multipliers(mechanism, uploads)
    # 8 / 2^2 = 2 are four fifths, so that each of the three has a sixth.
    assert (setup, in_rounds) == (pytest.approx(np.sqrt(6)), 2.0)


# ------------------------------------------------------------------------ clients' shares


@pytest.mark.parametrize("number", [2621.5, 255.5])
def test_rounding_lengthens_uploads_by_no_more_than_is_hidden(number):
    # Odd numbers and a half are rounded up: no upload of as many numbers grows by more.
    size = int((central_dp.STEPS / number) ** 2)
    rows = SparseRows.stacked(np.full((1, size), number))
    updates = updates_of({"x": rows}, {"x": FieldSpec((size,))})
    clipped, is_short = clip_updates(updates, float(central_dp.STEPS), {})
    assert is_short.all()
    rounded = round_updates(clipped, float(central_dp.STEPS), {}, 0.0, Key(0, 3))
    growth = np.linalg.norm(rounded.fields["x"].whole()[0]) - central_dp.STEPS
    assert 0.8 * np.sqrt(size) / 2 < growth <= central_dp.sensitivity(size) - central_dp.STEPS


def test_a_clients_own_share_hides_nothing_from_it():
    mechanism = CentralDP(epsilon=3.0, noise="clients", delta=1e-3)
    model = PrivFedEB(n_rounds=4, federation=Federation(central_dp=mechanism), **PUBLIC)
    releases = releases_of(model, 8)
    for number in (-1, 0):
        noise = releases.exchange(Key(0).at(number)).noise_multiplier
        everything = (noise * central_dp.sensitivity(max(releases.uploads.sizes.values()))) ** 2
        # The shares of the other 7 are the noise that is promised.
        assert 7 * releases.variance_of_share(Key(0).at(number)) == pytest.approx(everything)


@pytest.mark.parametrize(
    ("sampling", "n_answers"), [("random", binom(24, 0.5)), ("poisson", binom(40, 0.3))]
)
def test_shares_are_planned_for_those_that_nearly_always_answer(sampling, n_answers):
    mechanism = CentralDP(epsilon=3.0, noise="clients", delta=1e-3)
    federation = Federation(central_dp=mechanism, sampling=sampling, dropout=0.5)
    model = PrivFedEB(client_fraction=0.6, federation=federation, **PUBLIC)
    n_shares = releases_of(model, 40).exchange(Key(0).at(0)).n_shares
    # The client's own is not among them.
    assert n_answers.cdf(n_shares) < 1e-3 <= n_answers.cdf(n_shares + 1)


@pytest.mark.parametrize("weight", [0.25, 4.0])
def test_shares_of_weighted_fields(weight):
    clip, variance, size = 2.0, 1e9, 20_000
    rows = SparseRows.stacked(np.zeros((1, size)))
    updates = updates_of({"x": rows}, {"x": FieldSpec((size,))})
    clipped, _ = clip_updates(updates, clip, {"x": weight})
    noisy = round_updates(clipped, clip, {"x": weight}, variance, Key(0, 3)).fields["x"].whole()[0]
    steps = noisy / (clip / central_dp.STEPS / weight)
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)
    assert steps.var() == pytest.approx(variance, rel=4 * np.sqrt(2 / size))


@pytest.mark.parametrize("noise", ["server", "clients"])
def test_noise_on_weighted_fields(noise):
    mechanism = CentralDP(
        clip=2.0,
        noise_multiplier=3.0,
        delta=1e-3,
        noise=noise,
        field_weights={"item_vectors": 4.0},
    )
    model = RFRec(aggregation="clients", federation=Federation(central_dp=mechanism), **PUBLIC)
    counts = SimpleNamespace(n_without_share=40, n_shares=40)
    noisy, std = releases_of(model, 40)._noisy(
        "item_vectors", np.zeros(20_000), Key(0).at(0), counts
    )
    # Shares are 40 39ths of it, because a client's own does not count.
    expected = 3.0 * 2.0 / 4.0 * (np.sqrt(40 / 39) if noise == "clients" else 1)
    assert std == pytest.approx(expected, rel=1e-4)
    assert noisy.std() == pytest.approx(expected, rel=4 * np.sqrt(0.5 / 20_000))


def test_public_parts_are_added_for_all_expected_clients():
    mechanism = CentralDP(clip=1.0, noise_multiplier=0.0)
    federation = Federation(central_dp=mechanism, dropout=0.5)
    model = RFRec(aggregation="clients", federation=federation, **PUBLIC)
    releases, specs = releases_of(model, 40), {"item_vectors": FieldSpec((2,))}
    sums, centers = {"item_vectors": np.array([1.0, 2.0])}, {"item_vectors": np.array([0.5, 0.1])}
    upload = releases.publish(sums, specs, Key(0).at(0), None, centers)
    # Half of 40 clients are expected.
    np.testing.assert_allclose(upload["item_vectors"].sum, [11.0, 4.0])
    assert upload["item_vectors"].n_clients == 20


@pytest.mark.parametrize(("size", "expected"), [(4, 262145.0), (10**6, 262644.0)])
def test_the_sensitivity_in_numbers(size, expected):
    assert central_dp.sensitivity(size) == expected
    # 3 times that, in the sum of 8 shares.
    assert 8 * central_dp.share_variance(3.0, size, 8) == pytest.approx(9 * expected**2)
