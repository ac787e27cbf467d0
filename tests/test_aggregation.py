import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import Federation, FedMF, LocALS
from fedrecsk.aggregation import (
    Aggregator,
    CoordinateMedian,
    FLTrust,
    GeometricMedian,
    HierarchicalClipping,
    Krum,
    NormClipping,
    PopularityFilter,
    RowClipping,
    TrimmedMean,
    Update,
    plain_sum,
)
from fedrecsk.aggregation._base import as_round
from fedrecsk.aggregation._comparison import stacks
from fedrecsk.attacks import Promotion, SignFlip
from fedrecsk.datasets import make_interactions
from fedrecsk.metrics import exposure
from fedrecsk.updates import FieldSpec, HeldUpdates, RoundUpdates, SparseRows, as_integers
from tests.conftest import make_toy
from tests.reference import aggregation as reference
from tests.updates.making import updates_of

EVERYTHING = slice(None)


def uploads_of(changes):
    return [{"x": Update(EVERYTHING, change)} for change in changes]


@pytest.fixture
def changes():
    return list(np.random.default_rng(0).standard_normal((9, 4, 3)))


def combined(aggregator, changes):
    return aggregator.combine(uploads_of(changes), {"x": changes[0].shape})["x"]


def test_norm_clipping_equals_the_naive_reference(changes):
    for bound in (0.5, 3.0, 100.0):
        expected = reference.clipped_sum(changes, bound)
        np.testing.assert_allclose(combined(NormClipping(bound), changes), expected)
    bound = 1.5 * np.median([np.linalg.norm(change) for change in changes])
    expected = reference.clipped_sum(changes, bound)
    np.testing.assert_allclose(combined(NormClipping(multiple=1.5), changes), expected)


@pytest.mark.parametrize("n_clients", [1, 2, 8, 9])
def test_order_statistics_equal_the_naive_reference(changes, n_clients):
    changes = changes[:n_clients]
    expected = n_clients * reference.median(changes)
    np.testing.assert_allclose(combined(CoordinateMedian(), changes), expected)
    n_cut = min(int(np.ceil(0.3 * n_clients)), (n_clients - 1) // 2)
    expected = n_clients * reference.trimmed_mean(changes, n_cut)
    np.testing.assert_allclose(combined(TrimmedMean(0.3), changes), expected)


@pytest.mark.parametrize(("f", "n_selected"), [(0, 1), (2, 1), (3, 1), (1, 4)])
def test_krum_equals_the_naive_reference(changes, f, n_selected):
    expected = len(changes) * reference.krum(changes, f, n_selected)
    np.testing.assert_allclose(combined(Krum(f, n_selected=n_selected), changes), expected)


@pytest.mark.parametrize(
    ("f", "numbers"), [(1, [0, 0, 10, 11, 12]), (2, [0, 0, 0, 10, 11, 12, 13])]
)
def test_krum_adds_up_n_minus_f_minus_2_distances(f, numbers):
    # With one distance fewer the zeros would have the lowest scores, with one more the 10.
    changes = [np.array([[float(x)]]) for x in numbers]
    assert combined(Krum(f), changes)[0, 0] == 11 * len(numbers)


@pytest.mark.parametrize(
    ("aggregator", "n_needed"),
    [
        (Krum(2), 7),
        (Krum(0), 3),
        (Krum(1, n_selected=4), 7),
        (GeometricMedian(), 3),
        (PopularityFilter(), 5),
    ],
    ids=str,
)
def test_one_upload_too_few_changes_nothing_and_one_client_too_few_is_refused(
    changes, aggregator, n_needed
):
    uploads, shapes = uploads_of(changes), {"x": changes[0].shape}
    few, enough = uploads[: n_needed - 1], uploads[:n_needed]
    for those, is_missing in ((few, True), (enough, False)):
        assert (aggregator.combine(those, shapes) is None) == is_missing
    X, _ = make_toy(n_users=20, density=0.9)
    model = LocALS(n_rounds=1, federation=Federation(aggregator=aggregator), client_fraction=1.0)
    with pytest.raises(ValueError, match=f"{n_needed} clients per round.*are {n_needed - 1};"):
        model.fit(X, clients=X[:, 0] % (n_needed - 1))


@pytest.mark.parametrize("aggregator", [CoordinateMedian(), TrimmedMean(), Krum()], ids=str)
def test_comparisons_are_refused_where_most_clients_are_silent(aggregator):
    X, _ = make_toy(n_users=20, density=0.2)
    with pytest.raises(ValueError, match=r"fewer than half of the 20 clients.*silos.*NormClipping"):
        LocALS(federation=Federation(aggregator=aggregator)).fit(X)


# ------------------------------------------------------------------ defences by row and by whole


@pytest.fixture
def rounds():
    """Three rounds of nine clients' changes of eight rows; a client has some of them."""
    rng = np.random.default_rng(1)
    changes = rng.standard_normal((3, 9, 8, 3)) * rng.lognormal(size=(3, 9, 1, 1))
    # So that popular rows have a direction in common, and two clients push row 7.
    changes += rng.standard_normal(3)
    changes[:, :, 5:] *= rng.random((3, 9, 3, 1)) < 0.4
    changes[:, :2, 7] = [[30.0, 25.0, 20.0], [25.0, 30.0, 20.0]]
    changes[:, 8] = 0
    return [list(of_round) for of_round in changes]


@pytest.mark.parametrize("multiple", [0.3, 1.0, 4.0])
def test_row_clipping_equals_the_naive_reference(rounds, multiple):
    changes = rounds[0]
    expected = reference.row_clipped_sum(changes, multiple)
    found = combined(RowClipping(multiple=multiple), changes)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    clipped = reference.with_rows_clipped(changes, 0.7)
    expected = reference.clipped_at_the_median(clipped, multiple)
    found = combined(RowClipping(0.7, multiple=multiple), changes)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_only_fields_with_a_row_for_each_item_are_clipped_by_row(rounds):
    wholes, uploads, shapes = two_fields(rounds[0])
    expected = reference.clipped_at_the_median([one["square"] for one in wholes])
    for aggregator in (RowClipping(), HierarchicalClipping(), PopularityFilter()):
        found = aggregator.combine(uploads, shapes)
        np.testing.assert_allclose(found["square"], expected)
        assert found["items"].shape == (8, 3)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"multiple": 0.5, "total_multiple": 0.7},
        {"share": 0.5},
        {"share": 0.3, "total_multiple": 2.0},
    ],
    ids=str,
)
def test_hierarchical_clipping_equals_the_naive_reference_over_rounds(rounds, parameters):
    aggregator = HierarchicalClipping(**parameters)
    expected = reference.hierarchical_totals(rounds, **aggregator.get_params())
    memory = aggregator._start(np.arange(9))
    for changes, total in zip(rounds, expected, strict=True):
        found = aggregator._combine(round_of(uploads_of(changes)), memory)["x"]
        np.testing.assert_allclose(found, total, atol=1e-12)


def round_of(uploads, n_items=8):
    shapes = {name: (n_items, *update.change.shape[1:]) for name, update in uploads[0].items()}
    return as_round(uploads, shapes)


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 3.0])
def test_the_popularity_filter_equals_the_naive_reference(rounds, tolerance):
    all_suspicious = set()
    for changes in rounds:
        changes = [change for change in changes if change.any()]
        kept, suspicious = reference.filtered_by_popularity(changes, tolerance, 0.4)
        found = combined(PopularityFilter(tolerance, popular=0.4), changes)
        np.testing.assert_allclose(found, reference.clipped_at_the_median(kept), atol=1e-12)
        all_suspicious |= set(suspicious)
    assert tolerance > 0 or 7 in all_suspicious


def two_fields(changes):
    """Whole uploads of two fields, as a dict of arrays and as uploads, and the shapes."""
    rng = np.random.default_rng(0)
    wholes = [{"items": one, "square": 100 * rng.standard_normal((3, 3))} for one in changes]
    uploads = [{name: Update(EVERYTHING, x) for name, x in one.items()} for one in wholes]
    return wholes, uploads, {"items": (8, 3), "square": (3, 3)}


@pytest.mark.parametrize("n_iterations", [1, 2, 6])
def test_the_geometric_median_equals_the_naive_reference(rounds, n_iterations):
    wholes, uploads, shapes = two_fields(rounds[0])
    found = GeometricMedian(n_iterations).combine(uploads, shapes)
    for name, expected in reference.geometric_median(wholes, n_iterations).items():
        np.testing.assert_allclose(found[name], 9 * expected, rtol=1e-9)


def test_an_upload_without_any_change_does_not_hold_the_geometric_median_back(changes):
    changes = [change + 5 for change in changes]
    middle = combined(GeometricMedian(), [*changes, np.zeros((4, 3))]) / 10
    assert np.abs(middle - np.mean(changes, axis=0)).max() < 1


def test_fl_trust_equals_the_naive_reference(rounds):
    wholes, uploads, shapes = two_fields(rounds[0][:8])
    aggregator = FLTrust("c")
    memory = aggregator._start(np.array(list("abcdefgh")))
    found = aggregator._combine(as_round(uploads, shapes), memory)
    for name, expected in reference.fl_trust(wholes, 2).items():
        np.testing.assert_allclose(found[name], 8 * expected, rtol=1e-9)
    assert aggregator._combine(as_round(uploads[:2], shapes), memory) is None


def test_fl_trust_says_what_is_wrong_with_its_reference():
    X, _ = make_toy(n_users=20, density=0.9)
    silos = X[:, 0] % 5

    def fit(reference, clients=silos, adversary=None):
        federation = Federation(aggregator=FLTrust(reference), adversary=adversary)
        LocALS(federation=federation, n_rounds=1).fit(X, clients=clients)

    for other in (77, "3", None, [3]):
        with pytest.raises(ValueError, match=r"FLTrust\(.*\) is not a client of this fit"):
            fit(other)
    with pytest.raises(ValueError, match=r"The adversary controls client 3, the reference"):
        fit(3, adversary=SignFlip(clients=[1, 3]))
    fit(3, adversary=SignFlip(clients=[1, 2]))
    X, _ = make_toy(n_users=20, density=0.3)
    few = rf"with that of client {X[0, 0]}, but only \d+% of the rows of X.*silos"
    with pytest.raises(ValueError, match=few):
        fit(X[0, 0], clients=None)
    with pytest.raises(ValueError, match="does not say whose they are"):
        FLTrust(3).combine([], {})


def test_rows_are_held_back_only_where_they_are_steps():
    X, _ = make_toy(n_users=20, density=0.9)
    federation = Federation(aggregator=HierarchicalClipping(share=0.5))
    with pytest.raises(ValueError, match=r"'others', from which its server .*set share=1"):
        LocALS(4, federation=federation).fit(X)
    LocALS(4, federation=federation, aggregation="clients", n_rounds=1).fit(X)


def test_means_are_held_back_where_the_server_divides_by_the_senders_of_a_round():
    aggregator = HierarchicalClipping(multiple=100.0, total_multiple=100.0, share=0.5)
    sums, memory = [], aggregator._start(np.arange(4))
    for changes in ([[10.0, 1.0]] * 4, [[0.0, 1.0]]):
        updates = [Update(EVERYTHING, np.array([c]).T) for c in changes]
        both = round_of([{"x": update, "n_visits": update} for update in updates], n_items=2)
        both.all_specs["n_visits"] = replace(both.all_specs["n_visits"], learned=False)
        sums.append(aggregator._combine(both, memory)["x"].ravel())
    # In the second round the server divides by 1 sender, who counts as the four of the first.
    np.testing.assert_allclose(sums, [[40, 0], [0, 2]])


def test_what_is_held_back_outlives_a_warm_start():
    X, _ = make_toy(n_users=20, density=0.9)
    federation = Federation(aggregator=HierarchicalClipping(share=0.4))
    whole = FedMF(4, federation=federation, n_rounds=4, client_fraction=1.0, random_state=0).fit(X)
    parts = clone(whole).set_params(warm_start=True, n_rounds=2).fit(X)
    parts = pickle.loads(pickle.dumps(parts)).set_params(n_rounds=4).fit(X)
    np.testing.assert_array_equal(whole.item_factors_, parts.item_factors_)
    everything = clone(whole).set_params(federation__aggregator__share=1.0).fit(X)
    assert np.abs(whole.item_factors_ - everything.item_factors_).max() > 1e-4


def test_a_promotion_that_norm_clipping_lets_through_is_stopped_by_row():
    X = make_interactions(n_users=200, n_items=150, n_interactions=6000, random_state=0)
    items, counts = np.unique(X[:, 1], return_counts=True)
    cold, users = items[counts.argmin()], np.unique(X[:, 0])
    reached = {}
    for aggregator in (None, NormClipping(), RowClipping(), HierarchicalClipping()):
        adversary = Promotion(0.05, item=cold, strength=100.0)
        federation = Federation(adversary=adversary, aggregator=aggregator)
        model = LocALS(8, federation=federation, random_state=0).fit(X)
        honest = users[~np.isin(users, model.compromised_clients_)]
        reached[type(aggregator).__name__] = exposure(model, cold, honest)
    assert reached["NormClipping"] > 0.1
    assert reached["RowClipping"] < 0.02
    assert reached["HierarchicalClipping"] < 0.02


# ------------------------------------------------------ updates of blocks, of many kinds

N_ITEMS, WIDTH = 7, 3
FORMS = {
    "followed": FieldSpec((N_ITEMS, WIDTH)),
    "sparse": FieldSpec((N_ITEMS, WIDTH)),
    "held": FieldSpec((N_ITEMS, WIDTH), "held"),
    "picked": FieldSpec((N_ITEMS, 2), "chosen"),
    "votes": FieldSpec((N_ITEMS, 2), "held", dtype="int8"),
    "bias": FieldSpec((N_ITEMS,), "held"),
    "gram": FieldSpec((WIDTH, WIDTH)),
    "bits": FieldSpec((N_ITEMS, 2), "held", bits=True),
}
AGGREGATORS = [
    NormClipping(1.5),
    NormClipping(multiple=0.5),
    CoordinateMedian(),
    TrimmedMean(0.25),
    Krum(2),
    Krum(1, n_selected=3),
    GeometricMedian(4),
    RowClipping(0.9),
    RowClipping(multiple=0.5),
    HierarchicalClipping(multiple=0.5, total_multiple=0.8, share=0.6),
    PopularityFilter(0.0, popular=0.3),
]


def make_block(codes, seed, specs):
    """Updates of some clients, of all kinds of fields."""
    rng, n = np.random.default_rng(seed), len(codes)
    held = [np.sort(rng.choice(N_ITEMS, rng.integers(1, N_ITEMS), replace=False)) for _ in codes]
    indptr = np.concatenate([[0], np.cumsum([len(rows) for rows in held])])
    rows, fields = np.concatenate(held), {}
    for name, spec in specs.items():
        values = rng.standard_normal((len(rows), *spec.shape[1:]))
        if name == "gram":
            fields[name] = SparseRows.stacked(rng.standard_normal((n, *spec.shape)))
            continue
        if spec.is_integer:
            values = as_integers(5 * values, spec)
        default = rng.standard_normal(spec.shape) if name == "followed" else None
        fields[name] = SparseRows(indptr, rows, values, default=default)
    return replace(updates_of(fields, specs), clients=np.array(codes))


def make_round(specs=FORMS):
    """Two blocks whose clients' codes interleave; two clients are not accepted."""
    blocks = [make_block([8, 1, 5, 3, 11], 0, specs), make_block([2, 9, 4, 6, 7], 1, specs)]
    accepted = np.arange(5) != 3
    return RoundUpdates([HeldUpdates(block, [], accepted) for block in blocks])


def dense(updates, name):
    """All clients' changes in the order of their codes."""
    return np.stack([one.fields[name].whole()[0] for _, one in updates.single()])


class Returning(Aggregator):
    def __init__(self, change=None):
        self.change = change

    def combine(self, uploads, shapes):
        return self.change(plain_sum(uploads, shapes))


@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=str)
def test_blocks_are_combined_as_their_clients_one_by_one(aggregator):
    updates = make_round()
    uploads = [one.upload(0) for _, one in updates.single()]
    expected = aggregator.combine(uploads, {name: spec.shape for name, spec in FORMS.items()})
    found = aggregator._combine(updates, {})
    for name, spec in FORMS.items():
        assert found[name].dtype == spec.sum_dtype
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("max_bytes", [1, 8 * 3 * 8 * 2, 10**6])
def test_stacks_cut_up_all_clients_changes(max_bytes):
    updates = make_round()
    for name, spec in FORMS.items():
        rows, parts = zip(*stacks(updates, name, max_bytes), strict=True)
        whole = dense(updates, name)
        stack = np.concatenate(parts, axis=1)
        np.testing.assert_allclose(stack, whole.reshape(len(whole), spec.shape[0], -1))
        assert max_bytes > 1 or len(rows) == spec.shape[0]


def test_a_users_own_combine_gets_the_accepted_uploads_in_the_order_of_the_codes():
    updates, seen = make_round(), []

    class Looking(Aggregator):
        def combine(self, uploads, shapes):
            seen.extend([len(uploads), uploads[0], uploads[-1], uploads[1:3], list(uploads)])
            with pytest.raises(IndexError):
                uploads[8]
            return plain_sum(uploads, shapes)

    sums = Looking()._combine(updates, {})
    n, first, last, some, everyone = seen
    grams = [upload["gram"].change for upload in everyone]
    assert n == len(grams) == 8
    np.testing.assert_allclose(grams, dense(updates, "gram"))
    for one, place in ((first, 0), (last, -1), (some[1], 2)):
        np.testing.assert_array_equal(one["gram"].change, grams[place])
    for name, spec in FORMS.items():
        assert sums[name].dtype == spec.sum_dtype
        np.testing.assert_allclose(sums[name], updates.sum(name), atol=1e-9)


def test_integers_are_rounded_whatever_a_users_own_combine_returns():
    updates = make_round({"votes": FORMS["votes"]})
    half = Returning(lambda sums: {"votes": sums["votes"] / 2 + 0.1})
    found = half._combine(updates, {})["votes"]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.rint(updates.sum("votes") / 2 + 0.1))
    huge = Returning(lambda sums: {"votes": sums["votes"] * 0 + 1e40})
    assert (huge._combine(updates, {})["votes"] == 2**62).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"gram": s["gram"]}, r"Returning.combine returned \['gram'\];.*'bias', 'gram'"),
        (lambda s: s["gram"], "Returning.combine returned ndarray"),
        (
            lambda s: {**s, "gram": s["gram"][0]},
            r"Returning.combine .*shape \(3,\) .*'gram'; return numbers of shape \(3, 3\)",
        ),
        (lambda s: {**s, "bias": s["bias"] * np.nan}, r"NaN or infinite .*'bias' of shape \(7,\)"),
    ],
)
def test_what_an_aggregator_must_not_return_is_named(change, message):
    updates = make_round({name: FORMS[name] for name in ("bias", "gram")})
    with pytest.raises(ValueError, match=message):
        Returning(change)._combine(updates, {})


def test_a_users_combine_takes_precedence_over_an_inherited_one():
    class Few(NormClipping):
        def combine(self, uploads, shapes):
            return super().combine(uploads[:3], shapes)

    updates = make_round({"gram": FORMS["gram"]})
    first = list(dense(updates, "gram")[:3])
    bound = np.median([np.linalg.norm(change) for change in first])
    expected = reference.clipped_sum(first, bound)
    np.testing.assert_allclose(Few()._combine(updates, {})["gram"], expected)


@pytest.mark.filterwarnings("error")
def test_uploads_too_large_for_their_squares_do_not_stop_robust_aggregators():
    huge = [{"gram": Update(EVERYTHING, np.full((3, 3), 1e200))}]
    honest = [one.upload(0) for _, one in make_round({"gram": FORMS["gram"]}).single()][:7]
    updates = as_round(huge + honest, {"gram": (3, 3)})
    defences = [NormClipping(), CoordinateMedian(), TrimmedMean(0.25), Krum(1), Krum(2)]
    defences += [GeometricMedian(), RowClipping(), HierarchicalClipping(), PopularityFilter()]
    for aggregator in defences:
        assert np.abs(aggregator._combine(updates, {})["gram"]).max() < 1e3
    expected = sum(upload["gram"].change for upload in honest)
    np.testing.assert_allclose(NormClipping(10.0)._combine(updates, {})["gram"], expected)
