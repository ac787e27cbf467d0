"""Central privacy for each user of clients that have many: CentralDP(unit="user")."""

import itertools

import numpy as np
import pytest

from fedrecsk import (
    FCF,
    CoLR,
    FedEASE,
    Federation,
    FedItemKNN,
    FedMF,
    FedSpectral,
    LocALS,
    PrivFedEB,
    RFRec,
    RFRecF,
    SCoLR,
)
from fedrecsk.attacks import SignFlip
from fedrecsk.audit import audit_privacy
from fedrecsk.privacy import CentralDP, SecAggPlus
from fedrecsk.protocol.evaluation import Scoring
from fedrecsk.selection import FederatedSearch, federated_evaluate
from fedrecsk.selection._noise import Noise
from fedrecsk.simulation.run import watch
from tests.conftest import make_toy

pytestmark = pytest.mark.filterwarnings("ignore:CentralDP.delta=", "ignore:y looks like ratings")

N_USERS, N_ITEMS = 20, 9
X, Y = make_toy(N_USERS, N_ITEMS, seed=1)
# Neither in the order of the users, nor of one size.
SILOS = np.array(["north", "south", "east", "south", "south"])[X[:, 0] % 5]
ITEMS = np.arange(N_ITEMS) * 3 + 1000
RATED = {"items": ITEMS, "rating_scale": (1, 5), "n_rounds": 3, "random_state": 0}
LIKED = {"items": ITEMS, "n_rounds": 3, "random_state": 0, "client_fraction": 1.0}
METHODS = [
    RFRec(3, aggregation="clients", **RATED),
    RFRecF(3, aggregation="clients", **RATED),
    PrivFedEB(3, **RATED),
    LocALS(3, upload="all", **LIKED),
    FCF(3, **LIKED),
    FedMF(3, **LIKED),
    CoLR(2, **LIKED),
    SCoLR(3, **LIKED),
    FedEASE(upload="all", items=ITEMS, random_state=0),
    FedItemKNN(upload="all", items=ITEMS, random_state=0),
    FedSpectral(3, upload="all", items=ITEMS, random_state=0),
]


def private(noise_multiplier=0.0, unit="user", federation=None, **parameters):
    parameters = {"clip": 0.5, "delta": 1e-3} | parameters
    mechanism = CentralDP(noise_multiplier=noise_multiplier, unit=unit, **parameters)
    return Federation(central_dp=mechanism, **(federation or {}))


def fitted(estimator, federation, clients=SILOS, **parameters):
    model = type(estimator)(**estimator.get_params(deep=False) | {"federation": federation})
    return model.set_params(**parameters).fit(X, Y, clients=clients)


@pytest.mark.parametrize("estimator", METHODS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("clip", [0.05, 50.0])
def test_the_model_is_that_of_users_as_clients(estimator, clip):
    federation = private(clip=clip)
    alone, silos = (fitted(estimator, federation, clients) for clients in (None, SILOS))
    np.testing.assert_allclose(silos.predict(X), alone.predict(X), rtol=1e-6, atol=1e-7)
    # Each silo downloads and uploads once where each user did.
    assert len(silos.communication_.client_bytes_up) == 3
    one_silo, one_user = (one.communication_.bytes_up / n for one, n in ((silos, 3), (alone, 20)))
    # Only SCoLR's clients send other columns than their neighbours.
    assert one_silo == one_user or isinstance(estimator, SCoLR)


@pytest.mark.parametrize("households", [X[:, 0], X[:, 0] // 30, np.maximum(X[:, 0], 170)])
def test_clients_may_have_one_user_or_many(households):
    for estimator in (FedMF(3, **LIKED), FedEASE(upload="all", items=ITEMS, random_state=0)):
        alone = fitted(estimator, private(unit="client"), None)
        silos = fitted(estimator, private(), households)
        np.testing.assert_allclose(silos.predict(X), alone.predict(X), rtol=1e-6, atol=1e-7)
        assert len(silos.communication_.client_bytes_up) == len(np.unique(households))


def test_a_silo_clips_each_user_and_adds_up():
    """Against a loop over users, each the only one of its client."""
    estimator = PrivFedEB(3, federation=private(clip=0.03), **RATED)
    names = np.unique(SILOS)
    alone, silos = (
        next(watch(estimator, estimator._prepared(X, Y, clients), 1)) for clients in (None, SILOS)
    )
    of_users = {}
    for tile in alone[2].tiles():
        for place, code in enumerate(tile.clients.tolist()):
            of_users[code] = tile.whole(place)
            norm = np.sqrt(sum(np.sum(one**2) for one in of_users[code].values()))
            assert norm <= 0.03 * (1 + 1e-9)
    silo_of_user = dict(zip(X[:, 0].tolist(), SILOS, strict=True))
    users = sorted(silo_of_user)
    sent = [(tile.clients, tile) for tile in silos[2].tiles()]
    found = {code: tile.whole(n) for codes, tile in sent for n, code in enumerate(codes.tolist())}
    assert sorted(found) == [0, 1, 2]
    for silo, name in enumerate(names):
        members = [code for code, user in enumerate(users) if silo_of_user[user] == name]
        for field, values in found[silo].items():
            total = sum(of_users[code][field] for code in members)
            np.testing.assert_allclose(values, total, atol=1e-12)


@pytest.mark.parametrize("noise", ["server", "clients"])
@pytest.mark.parametrize("scheme", [None, SecAggPlus(max_dropout=0.4, max_colluding=0.0)])
def test_noise_is_that_of_one_user_and_epsilon_too(noise, scheme):
    if scheme is not None:
        pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    federation = private(1.5, noise=noise, federation={"secure_aggregation": scheme})
    model = fitted(PrivFedEB(3, **RATED), federation)
    alone = fitted(PrivFedEB(3, **RATED), private(1.5, noise=noise), None)
    report = model.privacy_
    assert report.neighbours == "one user more or less"
    assert report.trust.startswith("each client, by its own users; beyond it ")
    assert report.epsilon == pytest.approx(alone.privacy_.epsilon, rel=1e-3)
    assert "one user more or less" in repr(report)


def test_the_report_says_that_whole_silos_are_hidden():
    report = fitted(PrivFedEB(3, **RATED), private(1.5, unit="client")).privacy_
    assert report.neighbours == "one client with all its users more or less"


@pytest.mark.parametrize("noise", ["server", "clients"])
def test_sums_have_the_planned_noise(noise):
    size, z, clip = N_ITEMS * 3, 40.0, 0.5
    estimator = RFRec(3, aggregation="clients", **RATED)
    federation = private(z, noise=noise, clip=clip)
    estimator.set_params(federation=federation, n_rounds=60)
    noises = []
    for server, _, seen in watch(estimator, estimator._prepared(X, Y, SILOS), 60):
        centers = server.algorithm.centers(seen.message)
        for name, total in seen.upload.items():
            exact = server.releases.expected * centers.get(name, 0.0)
            # Before clients add their shares.
            tiles = [one.before(noise == "clients").tiles() for one in seen.held]
            held = sum(tile.added_up().fields[name] for tile in itertools.chain(*tiles))
            noises.append(np.ravel(total.sum - exact - held))
        assert server.releases.expected == N_USERS
    found = np.std(np.concatenate(noises)) / clip
    # Shares are drawn for the two silos beside a client's own, and three answer.
    expected = z * (np.sqrt(3 / 2) if noise == "clients" else 1.0)
    n = len(noises) * size
    assert found == pytest.approx(expected, rel=5 / np.sqrt(n))


def test_sampled_silos_bring_all_their_users():
    """So that secret cohorts of silos amplify nothing for users."""
    given = {"federation": {"sampling": "poisson"}}
    estimator = PrivFedEB(3, client_fraction=0.5, **RATED)
    of_users, of_clients = (
        fitted(estimator, private(2.0, unit=unit, **given)).privacy_ for unit in ("user", "client")
    )
    assert "in secret" in of_clients.sampling
    assert "in secret" not in of_users.sampling
    assert of_users.epsilon > of_clients.epsilon


def test_cohorts_are_of_whole_silos():
    model = fitted(LocALS(3, upload="all", **LIKED), private(1.0), client_fraction=0.34, n_rounds=6)
    rounds = [one for one in model.communication_.entries if one["phase"] == "round"]
    assert [one["participants"] for one in rounds] == [1] * 6


def test_rounds_are_planned_for_users():
    """So that the number of rounds is that of the same fit with each user a client."""
    estimator = PrivFedEB(3, **RATED | {"n_rounds": "auto"}).set_params(federation=private(1500.0))
    alone, silos = (fitted(estimator, estimator.federation, who) for who in (None, SILOS))
    assert silos.n_rounds_ == alone.n_rounds_
    planned = estimator.planned_privacy(3, n_users=N_USERS)
    assert planned.epsilon == pytest.approx(silos.privacy_.epsilon)
    assert planned.neighbours == silos.privacy_.neighbours


def test_the_server_divides_by_the_users_of_the_cohort():
    federation = private(federation={"sampling": "rotating"})
    estimator = RFRec(
        3, aggregation="clients", client_fraction=0.34, federation=federation, **RATED
    )
    data = estimator._prepared(X, Y, SILOS)
    n_users, expected = np.diff(data.client_indptr), []
    for server, _, _ in watch(estimator, data, 3):
        rounds = [one for one in server.ledger.entries if one["phase"] == "round"]
        assert rounds[-1]["participants"] == 1
        expected.append(server.releases.expected)
    assert sorted(expected) == sorted(n_users)


def test_masks_hold_the_sums_of_large_silos_or_the_fit_is_refused():
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    rows, values = make_toy(300, N_ITEMS, seed=1)
    federation = private(1.0, federation={"secure_aggregation": SecAggPlus()})
    model = RFRec(3, aggregation="clients", federation=federation, **RATED)
    with pytest.raises(
        ValueError, match=r"100 users, .* add up to 50, .*set max_abs to at least 50"
    ):
        model.fit(rows, values, clients=rows[:, 0] % 3)
    model.set_params(federation__secure_aggregation__max_abs=50.0)
    model.fit(rows, values, clients=rows[:, 0] % 3)
    model.set_params(
        federation__secure_aggregation=SecAggPlus(), federation__central_dp__noise="clients"
    )
    model.fit(rows, values, clients=rows[:, 0] % 3)


def test_a_broken_score_of_one_user_leaves_out_no_other(monkeypatch):
    federation = private(None, epsilon=1e6, clip=50.0)
    estimator = PrivFedEB(3, **RATED).set_params(federation=federation)
    search = FederatedSearch(estimator, {"n_factors": [2, 3]}, epsilon_scores=5e5, random_state=0)
    search.set_params(validation_fraction=0.5)
    measure, score, n_scored = Scoring.measure, Noise.score, []

    def counting(self, total, server):
        (sums,) = (one for name, one in total.sums.items() if name.endswith("by client"))
        n_scored.append(sums[2:].sum())
        return score(self, total, server)

    def broken(self, *given, **others):
        found = measure(self, *given, **others)
        for sums in found.values():
            sums[0] = np.nan
        return found

    monkeypatch.setattr(Noise, "score", counting)
    search.fit(X, Y, clients=SILOS)
    monkeypatch.setattr(Scoring, "measure", broken)
    search.fit(X, Y, clients=SILOS)
    # The first user of the one block that has all silos.
    whole, rest = np.split(np.array(n_scored), 2)
    np.testing.assert_array_equal(rest, whole - 1)


def test_evaluations_of_other_silos_have_other_noise():
    """Otherwise the noise of two with the same seed could be subtracted."""
    model = fitted(PrivFedEB(3, **RATED), private(1e-3))
    values = []
    for clients in (np.minimum(X[:, 0], 160), np.minimum(X[:, 0], 180)):
        kind = {"metrics": "rmse", "epsilon": 0.5, "random_state": 0, "clients": clients}
        values.append(federated_evaluate(model, X, Y, **kind).values["rmse"])
    assert values[0] != values[1]


def test_what_does_not_go_with_it_is_refused():
    with pytest.raises(ValueError, match=r"cannot adapt the clip.*set quantile=None"):
        fitted(METHODS[0], private(1.0, quantile=0.5))
    attack = {"adversary": SignFlip(fraction=0.4)}
    with pytest.raises(ValueError, match=r"SignFlip forges the uploads of clients.*set unit"):
        fitted(METHODS[0], private(1.0, federation=attack))


def test_an_update_of_silos_is_that_of_single_users():
    for estimator in (LocALS(3, upload="all", **LIKED), RFRec(3, aggregation="clients", **RATED)):
        models = []
        for clients in (None, SILOS):
            given = {"federation": private(), "warm_start": True}
            model = type(estimator)(**estimator.get_params(deep=False) | given)
            few = np.arange(len(X)) < len(X) - 12
            first, later = (None if clients is None else clients[part] for part in (few, ~few))
            model.fit(X[few], Y[few], clients=first)
            model.partial_fit(X[~few], Y[~few], clients=later, n_rounds=2)
            models.append(model)
        alone, silos = (one.predict(X) for one in models)
        np.testing.assert_allclose(silos, alone, rtol=1e-6, atol=1e-7)


def test_scores_of_a_search_and_an_evaluation_are_those_of_single_users():
    searches, reports = [], []
    for clients in (None, SILOS):
        estimator = PrivFedEB(3, **RATED).set_params(
            federation=private(None, epsilon=1e6, clip=50.0)
        )
        search = FederatedSearch(estimator, {"n_factors": [2, 3]}, epsilon_scores=5e5)
        searches.append(search.set_params(random_state=0).fit(X, Y, clients=clients))
        model = fitted(PrivFedEB(3, **RATED), private(1e-3, clip=50.0), clients)
        kind = {"metrics": ["rmse", "ndcg@3"], "epsilon": 1e6, "random_state": 0}
        reports.append(federated_evaluate(model, X, Y, clients=clients, **kind))
    alone, silos = searches
    scores = [one.cv_results_["mean_test_score"] for one in (alone, silos)]
    np.testing.assert_allclose(*scores, atol=0.05)
    for name, value in reports[0].values.items():
        assert reports[1].values[name] == pytest.approx(value, abs=0.05)
    assert len(reports[1].communication.client_bytes_up) == 3
    assert reports[1].privacy.neighbours == "one user more or less"


def test_a_canary_in_a_silo_is_not_found_beyond_the_promise():
    estimator = RFRec(6, aggregation="clients", federation=private(1.0), **RATED)
    rows, values = make_toy(30, 30, seed=2)
    estimator.set_params(items=np.unique(rows[:, 1]))
    audit = audit_privacy(estimator, rows, values, clients=rows[:, 0] % 3, random_state=0)
    assert audit.lower_bound <= audit.promised
    assert audit.longest_upload <= 1 + 1e-6
