import itertools

import numpy as np
import pytest

import fedrecsk
from benchmarks._variants import variant
from fedrecsk import (
    FCF,
    ExplicitFCF,
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedMF,
    FedSpectral,
    GlobSGD,
    LocALS,
    LocSGD,
    Popularity,
    RFRec,
    RFRecF,
    SemiDFEGL,
)
from fedrecsk.attacks import Adversary
from fedrecsk.audit import Reconstruction, measure_leak, register_inversion
from fedrecsk.audit._leakage import inversion_of
from fedrecsk.compression import TopK
from fedrecsk.privacy import CKKS
from tests.conftest import make_toy

READ = [
    (LocALS(4, reg_user=1.0, local_epochs=2, reg_item=0.0), 1),
    (LocALS(4, reg_user=1.0, aggregation="clients", reg_item=40.0), 2),
    (LocALS(4, reg_user=1.0, aggregation="holders"), 1),
    (LocSGD(4, reg_user=1.0, reg_item=40.0, prox=0.5), 2),
    (LocSGD(4, reg_user=1.0, aggregation="full", prox=0.5), 1),
    (GlobSGD(4, reg_user=1.0), 2),
    (GlobSGD(4, reg_user=1.0, aggregation="clients"), 1),
    (FCF(4, reg_user=1.0, upload="all"), 2),
    (FCF(4, reg_user=1.0, upload="local"), 1),
    (ExplicitFCF(4, upload="all", rating_scale=(1, 5)), 1),
    (ExplicitFCF(4, upload="local", biases=False, rating_scale=(1, 5)), 2),
    (FedEB(3, upload="all"), 2),
    (FedEB(3, implicit=False), 1),
    (FedEB(3, user_noise=False), 1),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("model", "n_rounds"), READ, ids=str)
def test_one_plaintext_upload_gives_everything(model, n_rounds):
    X, y = make_toy(n_users=30, n_items=20, density=0.4)
    model = variant(type(model), **model.get_params() | {"random_state": 0, "INIT_STD": 0.3})
    report = measure_leak(model, X, y, n_rounds=n_rounds, max_clients=10)
    assert report.method == type(model).__name__
    assert (report.n_clients, report.n_rounds) == (10, n_rounds)
    assert report.vectors == report.interactions == report.values == 1.0
    assert report.directions == 1.0 or isinstance(model, FedEB)


def test_rows_that_weigh_more_are_read_too():
    X, y = make_toy(n_users=20, n_items=9, seed=1)
    report = measure_leak(FedEB(3, random_state=0), np.tile(X, (2, 1)), np.tile(y, 2))
    assert report.vectors == report.interactions == report.values == 1.0


@pytest.mark.parametrize(
    "model",
    [
        FedEASE(upload="local"),
        FedSpectral(4, upload="all"),
        SemiDFEGL(4, n_groups=3, n_common=2, random_state=0),
        SemiDFEGL(4, n_groups=3, n_common=2, biases=False, random_state=0),
    ],
    ids=str,
)
def test_one_plaintext_upload_says_which_items_a_client_holds(model):
    X, y = make_toy(n_users=30, n_items=20, density=0.4)
    report = measure_leak(model, X, y - 2 * (model.__class__ is not SemiDFEGL))
    assert report.vectors == report.interactions == 1.0


def test_a_secure_sum_reveals_no_client():
    pytest.importorskip("tenseal", reason="needs fedrecsk[privacy]")
    X, _ = make_toy(n_users=30, n_items=20, density=0.3)
    federation = Federation(secure_aggregation=CKKS())
    model = LocALS(4, reg_user=1.0, upload="all", random_state=0, federation=federation)
    before = repr(model)
    report = measure_leak(model, X)
    # The model under attack is left alone.
    assert repr(model) == before
    assert not hasattr(model, "item_factors_")
    assert report.vectors == 0.0
    assert report.interactions == pytest.approx(len(X) / (30 * 20), abs=0.05)
    # The same guess for all clients; chance is the best such guess.
    assert report.interactions <= report.chance["interactions"]


class Mine(LocALS):
    """A user's own method."""


class Heir(Mine):
    """A method derived from it."""


class Unknown(LocALS):
    """A method whose uploads nobody has attacked."""


register_inversion(Unknown, None)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Popularity(), "Popularity is not federated: its data are in one place"),
        (Unknown(3), r"no attack on uploads of Unknown, which does not mean .* register_inversion"),
        (Mine(0), "The 'n_factors' parameter of Mine must be"),
        (RFRec(3), "This RFRec estimator requires y"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_cannot_be_inverted_is_named(model, message):
    with pytest.raises(ValueError, match=message):
        measure_leak(model, make_toy()[0])


def test_a_users_method_has_its_own_inversion():
    seen = []

    def invert(model, exchanges, n_items):
        seen.append((model, exchanges, n_items))
        return Reconstruction(None, np.arange(n_items)[exchanges[-1].upload["rows"].rows])

    register_inversion(Mine, invert)
    X, _ = make_toy(n_users=10)
    model = Heir(3, reg_user=1.0, reg_item=7.0, aggregation="clients", random_state=0)
    report = measure_leak(model, X, n_rounds=2, max_clients=4)
    assert report.interactions == 1.0
    text = "(Heir, n_clients=4, n_rounds=2: vectors 0.000 (no leak shown; without uploads 0.000)"
    assert text in repr(report)
    assert "<table" in report._repr_html_()
    assert len(seen) == 4
    bare, exchanges, n_items = seen[0]
    assert [one.key.round for one in exchanges] == [0, 1]
    (_, message, upload), (_, later, _) = exchanges
    assert isinstance(bare, Heir)
    assert not hasattr(bare, "item_factors_")
    # What was announced, and what is broadcast each round.
    assert message["reg_item"].values[0] == pytest.approx(7.0 / 10)
    assert message["item_factors"].values.shape == (n_items, 3)
    assert not np.array_equal(message["item_factors"].values, later["item_factors"].values)
    assert upload["rows"].change.shape == (len(upload["rows"].rows), 3)


def test_items_of_the_public_catalogue_without_interactions_do_not_matter():
    X, _ = make_toy(n_users=20)
    items = np.union1d(X[:, 1], np.arange(X[:, 1].min() - 20, X[:, 1].max() + 20))
    model = LocALS(3, reg_user=1.0, random_state=0)
    assert measure_leak(model.set_params(items=items), X).interactions == 1.0
    with pytest.raises(ValueError, match=r"X has items .* that are not in `items`"):
        measure_leak(model.set_params(items=items[:-30]), X)


def test_rejected_uploads_are_not_read():
    class Broken(Adversary):
        def _forged(self, view, upload, generator):
            return {name: u._replace(change=u.change * np.nan) for name, u in upload.items()}

    X, _ = make_toy(n_users=20)
    federation = Federation(adversary=Broken(clients=np.unique(X[:, 0])[3:8]))
    report = measure_leak(LocALS(3, reg_user=1.0, random_state=0, federation=federation), X)
    # Those of the others are still read as theirs.
    assert report.vectors == 15 / 20
    n_read = ~np.isin(X[:, 0], np.unique(X[:, 0])[3:8])
    assert report.interactions == n_read.sum() / len(X)


def test_compression_does_not_hide_who_has_what():
    """The server is given what it would see without; the report is an upper bound."""
    X, _ = make_toy(n_users=30)
    model = LocALS(3, reg_user=1.0, random_state=0, federation=Federation(compression=TopK(0.1)))
    assert measure_leak(model, X).interactions == 1.0


def test_chance_is_the_best_claim_that_is_the_same_for_all_clients():
    """Against all sets of items, and all sets of items with a rating each."""
    rng = np.random.default_rng(0)
    X = np.array([(u, i) for u in range(9) for i in range(5) if i == u % 5 or rng.random() < 0.5])
    y = rng.integers(1, 4, len(X)).astype(float)
    true = [set(zip(X[X[:, 0] == u, 1], y[X[:, 0] == u], strict=True)) for u in range(9)]

    def shares(said):
        items = {item for item, _ in said}
        own = [{item for item, _ in pairs} for pairs in true]
        either = sum(len(items | one) for one in own)
        return (
            sum(len(items & one) for one in own) / either,
            sum(len(said & pairs) for pairs in true) / either,
        )

    choices = itertools.product([None, 1.0, 2.0, 3.0], repeat=5)
    best = np.max([shares({(i, r) for i, r in enumerate(c) if r}) for c in choices], axis=0)
    chance = measure_leak(RFRec(2, rating_scale=(1, 3), random_state=0), X, y).chance
    assert (chance["interactions"], chance["values"]) == pytest.approx(best)
    implicit = measure_leak(LocALS(2, reg_user=1.0, random_state=0), X).chance
    assert implicit["interactions"] == implicit["values"] == pytest.approx(best[0])


def test_chance_is_that_of_the_clients_under_attack():
    """Two clients have all items, the best common claim; the others have one item each."""
    X = np.array([(u, i) for u in range(2) for i in range(4)] + [(u, u) for u in range(2, 4)])
    X = np.vstack([X, [(4, i) for i in range(4)]])
    model = LocALS(2, reg_user=1.0, random_state=0)
    two, one = (measure_leak(model, X, max_clients=n).chance for n in (2, 1))
    # The two are known completely, and the single one has no other client to compare with.
    shares = ("vectors", "directions", "interactions", "values")
    assert [two[name] for name in shares] == [1.0] * 4
    assert (one["vectors"], one["interactions"]) == (0.0, 1.0)
    all_of_them = measure_leak(model, X).chance
    assert all_of_them["interactions"] == pytest.approx(14 / 20)
    assert all_of_them["vectors"] == pytest.approx(2 / 4)


def test_dislikes_do_not_count_if_ratings_are_not_seen():
    X, y = make_toy(n_users=20, n_items=15, density=0.5)
    liked = y > 3
    model = LocALS(2, reg_user=1.0, random_state=0)
    counts = np.bincount(np.unique(X[:, 1], return_inverse=True)[1][liked])
    chance = measure_leak(model, X, liked.astype(float)).chance
    assert 1 > chance["interactions"] >= counts.sum() / (20 * 15)
    assert chance["interactions"] < measure_leak(model, X).chance["interactions"]


@pytest.mark.parametrize("parameters", [{"loss": "squared"}, {"n_negatives": 0}], ids=str)
def test_without_negatives_every_item_that_moves_is_the_users_own(parameters):
    X, y = make_toy(n_users=20, n_items=15, density=0.3)
    model = FedMF(4, random_state=0, **parameters)
    report = measure_leak(model, X, y)
    assert report.interactions == 1.0


def test_a_model_that_would_stop_early_or_uploads_nothing():
    X, y = make_toy(n_users=20)
    model = LocALS(3, reg_user=1.0, early_stopping=True, n_iter_no_change=1, tol=10, random_state=0)
    assert measure_leak(model, X, n_rounds=5).interactions == 1.0
    with pytest.raises(ValueError, match="RFRecF uploaded nothing in n_rounds=1"):
        measure_leak(RFRecF(3, aggregation_probability=1e-9, random_state=0), X, y)


def test_every_federated_method_has_an_inversion():
    """The package's own are listed by name, which a renamed class would lose."""
    methods = [getattr(fedrecsk, name) for name in fedrecsk.__all__]
    federated = [one for one in methods if hasattr(one, "_algorithm")]
    missing = {one.__name__ for one in federated if inversion_of(one).invert is None}
    assert missing == {"PrivFedEB"}
    assert inversion_of(RFRecF) is inversion_of(RFRec)


def test_a_sum_of_a_method_that_sends_vectors_is_not_taken_apart():
    X, _ = make_toy(n_users=12, n_items=20, density=0.3)
    assert measure_leak(FedFast(3, random_state=0), X, cohort=3).n_profiles == 0
