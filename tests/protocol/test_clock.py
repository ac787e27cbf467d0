"""The simulated clock: hours, deadlines, and asynchronous rounds beside a loop over events."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from fedrecsk import (
    FCF,
    CoLR,
    FedEASE,
    FedEB,
    Federation,
    FedFast,
    FedMF,
    GlobSGD,
    LightFR,
    LocALS,
    LocSGD,
    RFRec,
)
from fedrecsk.aggregation import Krum
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import Quantization, TopK
from fedrecsk.datasets import make_ratings
from fedrecsk.deployment.checks import check_deployable
from fedrecsk.deployment.device_server import DeviceServer
from fedrecsk.metrics import hours_scorer
from fedrecsk.model_selection import compare
from fedrecsk.privacy import CentralDP, SecAggPlus
from fedrecsk.protocol import (
    Asynchronous,
    DeviceProfile,
    Synchronous,
    estimate_training_time,
)
from fedrecsk.protocol.clock import Clock
from fedrecsk.protocol.devices import Devices
from fedrecsk.protocol.keys import Key
from fedrecsk.simulation.both_sides import fresh
from tests.reference.clock import fedbuff

N_CLIENTS, N_ITEMS = 60, 30
X, y = make_ratings(n_users=N_CLIENTS, n_items=N_ITEMS, n_ratings=600, random_state=0)
UNEQUAL = DeviceProfile(speed=1.5, bandwidth=1.0)
METHODS = {
    "FedEB": FedEB(4),
    "FedMF": FedMF(4),
    "FedMF, all items": FedMF(4, loss="squared", aggregation="data_size", averaging=False),
    "FCF": FCF(4),
    "LocALS": LocALS(4),
    "LocSGD": LocSGD(4),
    "GlobSGD": GlobSGD(4),
    "PrivRec": FedMF(4, aggregation="reptile"),
}


def fitted(method, schedule=None, devices=UNEQUAL, n_rounds=12, federation=None, **parameters):
    federation = Federation(devices=devices, schedule=schedule, **(federation or {}))
    parameters = {"client_fraction": 0.4, "random_state": 0, "n_rounds": n_rounds} | parameters
    model = clone(method).set_params(**parameters, federation=federation)
    return model.fit(X, y)


def hours(model):
    return np.array([row["hours"] for row in model.history_])


def same(one, other):
    return np.array_equal(one.predict(X), other.predict(X))


# ---------------------------------------------------------------------------------- devices


def test_speeds_are_drawn_with_median_1_and_the_deviation_given():
    devices = DeviceProfile(speed=1.5, bandwidth=0.5).draw(np.arange(20_000), Key(0))
    for drawn, sigma in ((devices.speed, 1.5), (devices.bandwidth, 0.5)):
        logarithms = np.log(drawn)
        assert abs(logarithms.mean()) < 0.03
        assert logarithms.std() == pytest.approx(sigma, rel=0.02)
    assert abs(np.corrcoef(np.log(devices.speed), np.log(devices.bandwidth))[0, 1]) < 0.02


def test_a_client_is_online_in_its_window():
    ids, night = np.array(["a", "b", "c"]), {"a": (22, 6), "b": (8, 20), "c": (0, 24)}
    devices = DeviceProfile(online=night).draw(ids, Key(0))
    hour = 3600.0
    np.testing.assert_allclose(devices.waits(0), [0, 8 * hour, 0])
    np.testing.assert_allclose(devices.waits(12 * hour), [10 * hour, 0, 0])
    np.testing.assert_allclose(devices.waits((24 + 21) * hour), [1 * hour, 11 * hour, 0])
    drawn = DeviceProfile(online=6.0).draw(np.arange(4000), Key(0))
    assert np.mean(drawn.waits(5 * hour) == 0) == pytest.approx(0.25, abs=0.02)


def test_a_client_takes_its_work_and_bytes_over_its_speeds():
    profile = DeviceProfile(100, 10, 2, 5, client_seconds=3)
    devices = Devices(*np.array([[1.0, 4.0], [1.0, 0.5], [0, 12], [24, 12]]))
    clock = Clock(profile, devices, np.array([10, 30]))
    both = np.array([True, True])
    seconds = clock.seconds(0.0, np.array([200, 200]), np.array([10, 20]), both)
    # The second waits until noon. Work is in proportion to rows, whose mean is 20.
    expected = [2 + 1 + 5 + 2 * 1.5, 12 * 3600 + (2 + 2) / 0.5 + (5 + 2 * 4.5) / 4]
    np.testing.assert_allclose(seconds, expected)
    assert clock.seconds(0.0, np.zeros(2), np.zeros(2), ~both).tolist() == [0, 0]


# ------------------------------------------------------------------------- synchronous rounds


@pytest.mark.parametrize("method", ["FedEB", "FedMF"])
def test_a_clock_changes_no_model_and_no_byte(method):
    timed, plain = fitted(METHODS[method]), fitted(METHODS[method], devices=None)
    assert same(timed, plain)
    for one, other in zip(timed.communication_.entries, plain.communication_.entries, strict=True):
        assert one.pop("seconds") > 0
        assert one == other
    assert "hours" not in plain.history_[0]
    assert np.isnan(plain.communication_.hours)


def test_a_round_takes_as_long_as_its_slowest_client():
    # One client with one speed each, and FedMF's known bytes.
    speeds = {client: 1.0 + client % 7 for client in range(N_CLIENTS)}
    profile = DeviceProfile(1000, 500, 7, 10, client_seconds=0.0, speed=speeds)
    model = fitted(FedMF(4), devices=profile, n_rounds=3, client_fraction=1.0)
    nbytes = 4 * N_ITEMS * 4
    slowest = nbytes / 1000 + (nbytes + N_ITEMS) / 500 + 10 / 1.0
    np.testing.assert_allclose(np.diff(hours(model)) * 3600, slowest)
    entries = model.communication_.entries
    before = sum(e["seconds"] for e in entries if e["phase"] in ("catalogue", "setup"))
    assert hours(model)[0] * 3600 == pytest.approx(before + slowest)
    after = entries[-1]["seconds"]
    assert model.communication_.hours * 3600 == pytest.approx(before + 3 * slowest + after)


def test_the_estimate_is_the_closed_form_of_the_clock():
    table = {client: float(np.exp(np.sin(client))) for client in range(N_CLIENTS)}
    profile = DeviceProfile(1000, 500, client_seconds=0.0, speed=table, bandwidth=table)
    everyone = fitted(FedMF(4), devices=profile, client_fraction=1.0)
    estimate = estimate_training_time(everyone, profile, client_seconds=0.0)
    assert estimate.seconds == pytest.approx(everyone.communication_.hours * 3600)
    # Cohorts at random: the expected slowest of them.
    cohorts = fitted(FedMF(4), devices=profile, client_fraction=0.2, n_rounds=400)
    estimate = estimate_training_time(cohorts, profile, client_seconds=0.0)
    assert estimate.seconds == pytest.approx(cohorts.communication_.hours * 3600, rel=0.01)
    # Devices that are drawn are those of a fit with the same random_state.
    drawn = fitted(FedMF(4), client_fraction=1.0, random_state=3)
    given = {"client_seconds": UNEQUAL.client_seconds, "random_state": 3}
    estimate = estimate_training_time(fitted(FedMF(4), devices=None), UNEQUAL, **given)
    assert estimate.seconds < drawn.communication_.hours * 3600
    estimate = estimate_training_time(drawn, UNEQUAL, **given)
    assert estimate.seconds == pytest.approx(drawn.communication_.hours * 3600, rel=1e-3)


def test_hours_go_on_with_warm_start_and_are_seen_by_callbacks():
    whole = fitted(FedMF(4), n_rounds=8)
    model = fitted(FedMF(4), n_rounds=5, warm_start=True)
    model.set_params(n_rounds=8).fit(X, y)
    assert hours(model).tolist() == hours(whole).tolist()
    assert (np.diff(hours(whole)) > 0).all()
    np.testing.assert_array_equal(hours(pickle.loads(pickle.dumps(whole))), hours(whole))


def test_late_clients_are_dropped_and_counted():
    plain = fitted(FedMF(4), client_fraction=1.0)
    model = fitted(FedMF(4), Synchronous(30), client_fraction=1.0)
    ledger = model.communication_
    rounds = [entry for entry in ledger.entries if entry["phase"] == "round"]
    # Devices keep their speed, and nobody else is lost.
    late = rounds[0]["late"]
    assert 0 < late < N_CLIENTS
    for entry in rounds:
        assert entry["seconds"] == 30
        assert entry["late"] == entry["dropped"] == late == N_CLIENTS - entry["messages_up"]
        assert entry["bytes_late"] == late * (2 * 4 * N_ITEMS * 4 + N_ITEMS)
    # They have sent all the same.
    assert ledger.bytes_up == plain.communication_.bytes_up
    assert not same(plain, model)
    assert same(plain, fitted(FedMF(4), Synchronous(1e9), client_fraction=1.0))


def test_a_round_ends_with_its_quorum():
    model = fitted(FedMF(4), Synchronous(quorum=0.75), n_rounds=30)
    ends = [entry for entry in model.communication_.entries if entry["phase"] == "round"]
    assert {entry["messages_up"] for entry in ends} == {18}
    assert hours(model)[-1] < hours(fitted(FedMF(4), n_rounds=30))[-1] / 2
    # Of a cohort that loses clients, all others are awaited if they are too few.
    lost = fitted(FedMF(4), Synchronous(quorum=0.9), federation={"dropout": 0.5})
    assert np.isfinite(hours(lost)).all()


# ------------------------------------------------------------------------ asynchronous rounds


def seconds_of(model, profile, down, up):
    """What each client needs, by the formula."""
    devices = profile.draw(np.arange(N_CLIENTS), fresh(model)[0])
    rows = np.bincount(X[:, 0].astype(int), minlength=N_CLIENTS)
    work = profile.overhead + profile.slowdown * profile.client_seconds * rows / rows.mean()
    network = down / profile.download + up / profile.upload
    return network / devices.bandwidth + work / devices.speed


@pytest.mark.parametrize("staleness", ["sqrt", "none"])
@pytest.mark.parametrize("method", METHODS)
def test_the_rounds_are_those_of_a_loop_over_events(method, staleness):
    schedule = Asynchronous(7, staleness=staleness)
    model = fitted(METHODS[method], schedule, warm_start=True)
    run = model._run
    data, key = run.data, run.server.key
    (first, *_) = (e for e in model.communication_.entries if e["phase"] == "round")
    n_held = np.bincount(X[:, 0].astype(int), minlength=N_CLIENTS)
    algorithm = run.server.algorithm
    message = algorithm.broadcast(run.server.state, key.at(0))
    down = message.sizes(n_held, "float32")[0]
    up = sum(spec.sizes("float32", n_held)[0] for spec in algorithm.fields(N_ITEMS).values())
    assert first["bytes_down"] == down[run.server.timetable.begun(0).clients].sum()
    before = [e for e in model.communication_.entries if e["phase"] in ("catalogue", "setup")]
    start = sum(entry["seconds"] for entry in before)
    seconds = seconds_of(model, UNEQUAL, down, up)
    given = algorithm, data, key, seconds, start, 12, 24, 7
    turns = method == "FedEB"
    state, times = fedbuff(*given, damped=staleness == "sqrt", turns=turns)
    np.testing.assert_allclose(hours(model) * 3600, times)
    final = algorithm.final(state)
    for name, field in algorithm.final(run.server.state).items():
        np.testing.assert_allclose(field.values, final[name].values, rtol=2e-4, atol=2e-6)
    # Uploads are from several models.
    clients, arrivals = run.server.timetable.begun(0)
    assert len(set(arrivals)) > 2
    assert len(clients) == len(set(clients))


@pytest.mark.parametrize("method", ["FedEB", "FedMF"])
def test_asynchronous_rounds_are_equal_bit_for_bit(method, monkeypatch):
    schedule = Asynchronous(0.5)
    one = fitted(METHODS[method], schedule)
    assert same(one, fitted(METHODS[method], schedule, n_jobs=3))
    assert one.history_ == fitted(METHODS[method], schedule, n_jobs=3).history_
    # A fit that goes on is the one that never stopped, with uploads on their way.
    model = fitted(METHODS[method], schedule, n_rounds=5, warm_start=True)
    model.set_params(n_rounds=12).fit(X, y)
    assert same(one, model)
    assert one.communication_ != fitted(METHODS[method], schedule, random_state=1).communication_
    monkeypatch.setattr("fedrecsk.protocol.blocks.RATINGS_PER_BLOCK", 50)
    several = fitted(METHODS[method], schedule)
    np.testing.assert_allclose(several.predict(X), one.predict(X), rtol=1e-4)


def test_a_buffer_for_all_clients_is_a_synchronous_round():
    asynchronous = fitted(FedMF(4), Asynchronous(1.0), client_fraction=1.0)
    synchronous = fitted(FedMF(4), client_fraction=1.0)
    assert hours(asynchronous) == pytest.approx(hours(synchronous))
    np.testing.assert_allclose(asynchronous.predict(X), synchronous.predict(X), rtol=1e-4)
    up = [m.communication_.bytes_up for m in (asynchronous, synchronous)]
    assert up[0] == up[1]


def test_uploads_are_counted_when_they_arrive():
    model = fitted(FedMF(4), Asynchronous(6), n_rounds=20, federation={"dropout": 0.3})
    rounds = [e for e in model.communication_.entries if e["phase"] == "round"]
    assert {entry["messages_up"] for entry in rounds} == {6}
    assert rounds[0]["participants"] > 24 - 1
    # Lost uploads are sent, and do not fill the buffer.
    each = 4 * N_ITEMS * 4 + N_ITEMS
    sent = np.array([entry["bytes_up"] for entry in rounds]) / each
    assert (sent >= 6).all()
    assert (sent > 6).any()
    assert sum(entry["dropped"] for entry in rounds) > 0


def test_whoever_is_offline_is_not_asked():
    profile = DeviceProfile(overhead=600.0, online=8.0)
    model = fitted(FedMF(4), Asynchronous(0.5), profile, n_rounds=40, client_fraction=0.1)
    waiting = fitted(FedMF(4), None, profile, n_rounds=40, client_fraction=0.1)
    assert hours(model)[-1] < hours(waiting)[-1] / 5


def test_early_stopping_goes_by_steps_of_the_server():
    parameters = {"early_stopping": True, "n_iter_no_change": 2, "tol": 0.05, "n_rounds": 200}
    model = fitted(FedEB(4), Asynchronous(0.5), **parameters)
    assert model.n_rounds_ < 200
    assert len(hours(model)) == model.n_rounds_
    assert model.communication_.hours > hours(model)[-1]
    assert np.isfinite([row["validation_loss"] for row in model.history_]).any()


def test_compressed_uploads_arrive_as_they_were_sent():
    federation = {"compression": Quantization("int8", direction="up")}
    model = fitted(FedMF(4), Asynchronous(0.5), federation=federation, n_rounds=30)
    plain = fitted(FedMF(4), Asynchronous(0.5), n_rounds=30)
    assert model.communication_.bytes_up < plain.communication_.bytes_up / 2
    # They take less time.
    assert hours(model)[-1] < hours(plain)[-1]
    np.testing.assert_allclose(model.predict(X), plain.predict(X), atol=0.1)


# -------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("method", [RFRec(), CoLR(1), FedFast(), FedEASE(), LightFR()])
def test_methods_whose_uploads_only_fit_their_round_are_refused(method):
    with pytest.raises(ValueError, match=r"rounds cannot be asynchronous; set schedule=None"):
        fitted(method, Asynchronous(0.5))


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"devices": None}, "Asynchronous needs to know how long clients take; set devices"),
        ({"central_dp": CentralDP(epsilon=10)}, "does not go with central_dp: which uploads"),
        ({"secure_aggregation": SecAggPlus()}, "does not go with secure_aggregation: the bytes"),
        ({"aggregator": Krum()}, "does not go with aggregator: uploads of different rounds"),
        ({"adversary": SignFlip()}, "does not go with adversary: attacks are on rounds"),
        ({"compression": TopK()}, 'clients do not follow the changes.*set direction="up"'),
        ({"dropout": 0.5, "dropout_mode": "stale"}, 'set dropout_mode="upload"'),
        ({"sampling": "poisson"}, 'have no cohorts; set sampling="random"'),
        ({"schedule": "fast"}, "takes an object, such as Synchronous"),
        ({"devices": "5g"}, "devices='5g' is unknown; use a DeviceProfile or one of"),
        ({"devices": DeviceProfile(speed={0: 1.0})}, "no entry for 59 of 60 clients, such as 1"),
        ({"devices": DeviceProfile(speed={0: 0.0})}, "has 0.0 for client 0; give a number from"),
        ({"devices": DeviceProfile(bandwidth={0: 1e10})}, "give a number from 1e-09 to 1e.09"),
        ({"devices": DeviceProfile(speed=11)}, "is the standard deviation of a logarithm, at most"),
        ({"devices": DeviceProfile(bandwidth=1000.0)}, "Set bytes per second by download and up"),
        ({"devices": DeviceProfile(online={0: (3, 3)})}, "give two different hours of a day"),
        ({"devices": DeviceProfile(upload=0.0)}, "The 'upload' parameter of DeviceProfile must"),
        ({"schedule": Asynchronous(0)}, "The 'buffer_size' parameter of Asynchronous must"),
        ({"schedule": Synchronous(-1.0)}, "The 'deadline' parameter of Synchronous must"),
    ],
)
def test_what_does_not_go_together_is_refused(parts, match):
    federation = {"devices": UNEQUAL, "schedule": Asynchronous(0.5)} | parts
    with pytest.raises(ValueError, match=match):
        FedMF(4, federation=Federation(**federation)).fit(X)


@pytest.mark.parametrize(
    "extreme",
    [
        {"speed": 10, "bandwidth": 10, "slowdown": 1e9, "overhead": 1e9, "client_seconds": 1e9},
        {"download": 1, "upload": 1.0, "speed": dict.fromkeys(range(60), 1e-9)},
    ],
)
@pytest.mark.parametrize("schedule", [None, Synchronous(60.0)])
def test_the_slowest_devices_have_finite_hours(extreme, schedule):
    devices = DeviceProfile(**extreme, online=8.0)
    federation = Federation(devices=devices, schedule=schedule)
    model = FedMF(4, n_rounds=3, random_state=0, federation=federation).fit(X)
    assert np.isfinite([row["hours"] for row in model.history_]).all()
    assert np.isfinite(estimate_training_time(model, devices).seconds)


def test_parameters_can_be_searched():
    model = FedMF(4, federation=Federation(devices=clone(UNEQUAL), schedule=Synchronous(60)))
    model.set_params(federation__schedule__deadline=30, federation__devices__speed=0.0)
    assert clone(model).federation.schedule.deadline == 30
    assert clone(model).federation.devices.speed == 0.0


def test_what_has_a_clock_of_its_own_refuses_a_simulated_one():
    federation = Federation(devices=UNEQUAL, schedule=Asynchronous(0.5))
    model = FedMF(4, federation=federation, items=np.arange(N_ITEMS))
    with pytest.raises(
        ValueError, match="Asynchronous goes by a simulated clock, and real devices"
    ):
        DeviceServer.of(model).register([])
    with pytest.raises(ValueError, match=r"federation\.devices simulates a clock"):
        check_deployable(model)


# --------------------------------------------------------------- displays and comparisons


def test_comparisons_and_displays_have_hours():
    pytest.importorskip("matplotlib").use("Agg")
    from fedrecsk.plotting import ConvergenceDisplay, CostDisplay

    schedules = {"synchronous": None, "asynchronous": Asynchronous()}
    federations = {n: Federation(devices=UNEQUAL, schedule=one) for n, one in schedules.items()}
    given = {"n_rounds": 5, "client_fraction": 0.4, "random_state": 0}
    models = {n: FedEB(4, **given, federation=one) for n, one in federations.items()}
    models["plain"] = FedEB(4, **given)
    result = compare(models, X, y, scoring="rmse", return_estimator=True)
    table = result.summary.set_index("estimator")
    fits = result.estimators["asynchronous"]
    own = np.mean([model.communication_.hours for model in fits])
    assert table.loc["asynchronous", "mean_hours"] == pytest.approx(own)
    assert np.isnan(table.loc["plain", "mean_hours"])
    assert "Simulated hours" in result.to_html()
    assert "hours" not in compare({"plain": models["plain"]}, X, y, scoring="rmse").per_fold
    del result.estimators["plain"]
    display = ConvergenceDisplay.from_results(
        {"synchronous": result.estimators["synchronous"], "asynchronous": fits}, x="hours"
    )
    assert display.ax_.get_xlabel() == "Hours by the simulated clock"
    np.testing.assert_allclose(
        display.lines_[1].get_xdata(), np.mean([hours(model) for model in fits], axis=0)
    )
    assert CostDisplay.from_results(result, score="rmse", x="hours").costs[1] == own
    with pytest.raises(ValueError, match="has no column 'hours'"):
        ConvergenceDisplay.from_results(models["plain"].fit(X, y), x="hours")
    assert hours_scorer(fits[0], None) == -fits[0].communication_.hours


def test_a_line_says_the_hours():
    ledger = fitted(FedMF(4), Synchronous(30)).communication_
    assert f"; {ledger.hours:.3g} simulated hours)" in repr(ledger)
    assert "of them late" in ledger._repr_html_()
