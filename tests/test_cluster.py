"""Fits to Dask DataFrames, whose clients live on the workers of a cluster of real processes."""

import copy
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from dask.distributed import Client, LocalCluster
from distributed.utils import get_mp_context
from sklearn.base import clone

from fedrecsk import (
    EASE,
    FCF,
    FedEASE,
    FedEB,
    FedMF,
    LightFR,
    LocALS,
    RFRec,
)
from fedrecsk.aggregation import (
    Aggregator,
    GeometricMedian,
    HierarchicalClipping,
    Krum,
    RowClipping,
    plain_sum,
)
from fedrecsk.attacks import SignFlip
from fedrecsk.cluster import checkpoints, gather
from fedrecsk.cluster._checkpoints import Checkpoint
from fedrecsk.compression import Quantization
from fedrecsk.datasets import make_ratings
from fedrecsk.federated.locals import LocALSAlgorithm
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.privacy import CKKS, CentralDP, GaussianMechanism, SecAggPlus
from fedrecsk.protocol import Federation
from fedrecsk.protocol.keys import Key
from fedrecsk.simulation import both_sides, dask_run
from fedrecsk.simulation.dask_workers import NOTHING, Sum, add_node

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:y looks like ratings"),
    pytest.mark.filterwarnings("ignore:.*delta"),
]

IDS = ["user", "item"]


def frame_of(n_users=90, cuts=(20, 21, 60), empty=1):
    """Ratings by user as one DataFrame, and cut at some users as a Dask DataFrame."""
    X, y = make_ratings(n_users, 40, 1800, random_state=0)
    frame = pd.DataFrame({"user": X[:, 0].astype(int), "item": X[:, 1].astype(int), "rating": y})
    frame = frame.sort_values("user", kind="stable").reset_index(drop=True)
    places = np.searchsorted(frame["user"], cuts)
    parts = [frame.iloc[a:b] for a, b in zip([0, *places], [*places, len(frame)], strict=True)]
    parts[empty:empty] = [frame.iloc[:0]]
    return frame, dask_of(parts)


def dask_of(parts):
    delayed = [dask.delayed(one) for one in parts]
    return dd.from_delayed(delayed, meta=parts[0].iloc[:0], verify_meta=False)


FRAME, PARTED = frame_of()


@contextmanager
def started():
    """Start two processes, as on two machines."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    # They fork from a process that has imported what they need, which takes them seconds.
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload(["distributed", "fedrecsk.federated"])
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            yield client


@pytest.fixture(scope="module")
def client():
    """Two workers."""
    with started() as client:
        yield client


@pytest.fixture
def mortals():
    """Two workers of which one will be killed."""
    # A busy worker's part might be stolen by another before it is read, and stay there.
    with dask.config.set({"distributed.scheduler.work-stealing": False}), started() as client:
        yield client


def fitted(model, frame, **columns):
    """Fit a model to a frame, in this process or on the cluster."""
    others = {name: frame[column] for name, column in columns.items()}
    return clone(model).fit(frame[IDS], frame["rating"], **others)


def assert_same(ours, expected, X=FRAME[IDS]):
    """Raise unless a model of the cluster is that of a fit in this process, up to rounding."""
    here = gather(ours)
    assert vars(here).keys() ^ vars(expected).keys() <= {"_parts", "_run", "_added"}
    np.testing.assert_array_equal(here.user_ids_, expected.user_ids_)
    np.testing.assert_array_equal(here.item_ids_, expected.item_ids_)
    np.testing.assert_allclose(here.predict(X), expected.predict(X), rtol=1e-5, atol=1e-6)
    lists = [model.recommend(expected.user_ids_[:30], 5) for model in (here, expected)]
    np.testing.assert_array_equal(lists[0][0], lists[1][0])
    assert ours.communication_ == expected.communication_
    np.testing.assert_allclose(ours.loss_curve_, expected.loss_curve_, rtol=1e-6)


# Before any test that starts a cluster.
def test_without_a_cluster(monkeypatch):
    def none_found():
        raise ValueError("No global client found and no address provided")

    # Another test of this process may have one.
    monkeypatch.setattr(distributed, "get_client", none_found)
    with pytest.raises(ValueError, match=r"needs a cluster: make a dask.distributed.Client"):
        fitted(RFRec(), PARTED)


# ------------------------------------------------------------------------ equal results


class Short(Aggregator):
    """Adds up the uploads that are not too long."""

    def combine(self, uploads, shapes):
        """Add them up."""

        def length(upload):
            return sum(float(np.square(update.change).sum()) for update in upload.values())

        lengths = [length(one) for one in uploads]
        middle = np.median(lengths)
        return plain_sum([u for u, n in zip(uploads, lengths, strict=True) if n < middle], shapes)


MODELS = {
    "RFRec": RFRec(n_rounds=4),
    "FedEB": FedEB(n_rounds=3),
    "FedEASE": FedEASE(reg=50.0),
    "LightFR": LightFR(n_rounds=3),
    "cohorts": RFRec(n_rounds=7, client_fraction=0.1),
    "rotating": LocALS(
        n_factors=4, n_rounds=6, client_fraction=0.25, federation=Federation(sampling="rotating")
    ),
    "lost uploads": FedEB(n_rounds=4, federation=Federation(dropout=0.4)),
    "stale": LocALS(
        n_factors=4, n_rounds=4, federation=Federation(dropout=0.4, dropout_mode="stale")
    ),
    "offline": FedMF(
        n_factors=4, n_rounds=4, federation=Federation(dropout=0.4, dropout_mode="offline")
    ),
    "compression": FCF(
        n_factors=4, n_rounds=3, federation=Federation(compression=Quantization("int8"))
    ),
    "early stopping": RFRec(n_rounds=30, early_stopping=True, n_iter_no_change=1, tol=0.5),
    "cohorts stop": FedEB(n_rounds=8, early_stopping=True, client_fraction=0.5),
    "masks": FCF(
        n_factors=4,
        n_rounds=3,
        upload="all",
        federation=Federation(secure_aggregation=SecAggPlus(), dropout=0.2),
    ),
    "ciphertexts": RFRec(
        n_rounds=2, federation=Federation(secure_aggregation=CKKS(audit=1)), early_stopping=True
    ),
    "clipping": RFRec(
        n_rounds=3, client_fraction=0.3, federation=Federation(aggregator=RowClipping())
    ),
    "held back": FedMF(
        n_factors=4, n_rounds=3, federation=Federation(aggregator=HierarchicalClipping(share=0.5))
    ),
    "geometric median": LocALS(
        n_factors=4, n_rounds=2, federation=Federation(aggregator=GeometricMedian())
    ),
    "own aggregator": RFRec(n_rounds=2, federation=Federation(aggregator=Short())),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_is_that_of_one_process(name, client):
    model = MODELS[name].set_params(random_state=0)
    ours, expected = fitted(model, PARTED), fitted(model, FRAME)
    assert_same(ours, expected)
    if model._setting().secure_aggregation is not None:
        reports = [vars(one.encryption_).copy() for one in (ours, expected)]
        for random in ("client_seconds", "server_seconds", "max_error"):
            assert {bool(one.pop(random, True)) for one in reports} == {True}
        assert reports[0] == reports[1]
    if model.early_stopping:
        assert ours.best_round_ == expected.best_round_
        curves = [[row["validation_loss"] for row in one.history_[:-1]] for one in (ours, expected)]
        np.testing.assert_allclose(*curves, rtol=1e-6)


PUBLIC = {"items": range(40), "rating_scale": (1, 5), "random_state": 0}


NOISY = {
    "server": {"central_dp": CentralDP(epsilon=200.0)},
    "clients": {"central_dp": CentralDP(epsilon=200.0, noise="clients")},
    "masked": {
        "central_dp": CentralDP(epsilon=200.0, noise="clients"),
        "secure_aggregation": SecAggPlus(),
    },
    "local": {"local_dp": GaussianMechanism(clip=0.5, noise_multiplier=0.2)},
}


@pytest.mark.parametrize("noise", NOISY)
def test_noise_is_drawn_as_in_one_process(noise, client, monkeypatch):
    # The secret depends on the rows, which nobody has together.
    monkeypatch.setattr(both_sides, "secret_of", lambda *given: Key(5))
    parts = NOISY[noise]
    model = RFRec(n_rounds=3, federation=Federation(**parts), **PUBLIC)
    assert_same(fitted(model, PARTED), fitted(model, FRAME))


def test_the_secret_of_central_noise_depends_on_the_rows(client):
    federation = Federation(central_dp=CentralDP(epsilon=200.0))
    model = RFRec(n_rounds=1, federation=federation, **PUBLIC)
    other = PARTED.assign(rating=PARTED["rating"].clip(upper=4))
    items = [fitted(model, frame).item_factors_ for frame in (PARTED, PARTED, other)]
    np.testing.assert_array_equal(items[0], items[1])
    assert np.abs(items[0] - items[2]).max() > 1e-3


def test_silos_weights_and_names(client):
    def changed(frame):
        return frame.assign(
            client="shop " + (frame["user"] // 7).astype(str),
            weight=1.0 + (frame["item"] % 3),
            user="u" + frame["user"].astype(str),
            item="i" + frame["item"].astype(str),
        )

    cuts = 21, 49, 70
    columns = {"clients": "client", "sample_weight": "weight"}
    frame, parted = map(changed, frame_of(cuts=cuts))
    model = FedEB(n_rounds=3, random_state=0)
    ours, expected = fitted(model, parted, **columns), fitted(model, frame, **columns)
    assert_same(ours, expected, frame[IDS])
    assert list(ours.feature_names_in_) == IDS
    predicted = ours.predict(parted[IDS], return_std=True).compute()
    theirs = expected.predict(frame[IDS], return_std=True)
    for column, one in zip(("y_pred", "y_std"), theirs, strict=True):
        np.testing.assert_allclose(predicted[column], one, rtol=1e-5)


def added_up(sums, n_leaves):
    totals = {}
    for node, one in sums.items():
        add_node(totals, node, one, n_leaves)
    return totals


@pytest.mark.parametrize("n_leaves", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
def test_sums_do_not_depend_on_who_adds_them(n_leaves, n_workers):
    rng = np.random.default_rng(0)
    leaves = {(0, n): Sum(None, rng.normal(size=2), 1.0) for n in range(n_leaves)}
    (expected,) = added_up(leaves, n_leaves).values()
    assert expected.seconds == n_leaves
    np.testing.assert_allclose(expected.loss, sum(one.loss for one in leaves.values()))
    totals = {}
    for share in np.array_split(np.arange(n_leaves), n_workers):
        own = added_up({(0, n): leaves[0, n] for n in share.tolist()}, n_leaves)
        assert len(own) <= 2 * np.ceil(np.log2(n_leaves + 1))
        totals |= own
    (total,) = added_up(totals, n_leaves).values()
    np.testing.assert_array_equal(total.loss, expected.loss)
    assert NOTHING.seconds == 0


# ------------------------------------------------------------------------- lost workers


class InRound:
    """A callback that calls a function when a round begins."""

    def __init__(self, round, function):
        self.round, self.function, self.n_rounds = round, function, 0

    def setup(self, estimator, context):
        """Nothing to prepare, to clean up, or to do in the end of a task."""

    teardown = on_fit_task_end = setup

    def on_fit_task_begin(self, estimator, context):
        """A round, or the fit, begins."""
        if context.task_name == "round":
            if self.n_rounds == self.round:
                self.function()
            self.n_rounds += 1


def interrupt():
    raise KeyboardInterrupt


def kill_a_worker(client):
    pids = client.run(os.getpid)
    os.kill(pids[max(pids)], signal.SIGKILL)


def n_actors(dask_worker):
    return len(dask_worker.state.actors)


@pytest.mark.parametrize("name", ["cohorts stop", "FedEASE"])
def test_a_lost_worker_changes_nothing(name, mortals):
    model = MODELS[name].set_params(random_state=0)
    other = fitted(model, PARTED)
    expected = other.predict(PARTED[IDS]).compute()
    killer = InRound(0 if name == "FedEASE" else 2, lambda: kill_a_worker(mortals))
    with pytest.warns(UserWarning, match="A worker was lost.*goes back to its start"):
        ours = fitted(clone(model).set_callbacks(killer), PARTED)
    assert killer.n_rounds > killer.round
    np.testing.assert_array_equal(ours.predict(PARTED[IDS]).compute(), expected)
    with pytest.raises(RuntimeError, match=r"held the users of partition .* is gone.*fit again"):
        other.predict(PARTED[IDS]).compute()
    assert ours.communication_ == other.communication_
    # No worker keeps rows, not even those of the fit before the loss.
    while sum(mortals.run(n_actors).values()):
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["cohorts stop", "stale", "LightFR"])
def test_a_fit_that_loses_a_worker_goes_back_to_its_checkpoint(
    name, mortals, monkeypatch, tmp_path
):
    model, rounds, run_one = MODELS[name].set_params(random_state=0), [], dask_run.ClusterRun.round

    def noted(run):
        rounds.append(run.server.round)
        return run_one(run)

    monkeypatch.setattr(dask_run.ClusterRun, "round", noted)
    killer = InRound(2, lambda: kill_a_worker(mortals))
    lost = pytest.warns(UserWarning, match="A worker was lost.*checkpoints to the last one")
    with checkpoints(tmp_path), lost:
        ours = fitted(clone(model).set_callbacks(killer), PARTED)
    # Only the round in which it was lost is repeated, and it is reported once.
    assert rounds[:4] == [0, 1, 2, 2]
    assert rounds[3:] == sorted(set(rounds[3:]))
    assert killer.n_rounds == len(set(rounds))
    expected = fitted(model, PARTED)
    predicted = [one.predict(PARTED[IDS]).compute() for one in (ours, expected)]
    np.testing.assert_array_equal(*predicted)
    assert ours.communication_ == expected.communication_
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "what"), [("RFRec", "call"), ("clipping", "each")])
def test_a_worker_lost_amid_a_call_changes_nothing(name, what, mortals, monkeypatch):
    model = MODELS[name].set_params(random_state=0)
    expected, asked, calls = fitted(model, PARTED), dask_run.Cluster._asked, []

    def kill_amid(cluster, name, args_of=lambda holder: (), holders=None):
        def args_or_death(holder):
            calls.append(name)
            if name == what and calls.count(what) == 6:
                kill_a_worker(mortals)
            return args_of(holder)

        return asked(cluster, name, args_or_death, holders)

    monkeypatch.setattr(dask_run.Cluster, "_asked", kill_amid)
    with pytest.warns(UserWarning, match="A worker was lost"):
        ours = fitted(model, PARTED)
    np.testing.assert_array_equal(ours.item_factors_, expected.item_factors_)


def test_an_added_worker_takes_the_place_of_a_lost_one(mortals):
    model = RFRec(n_rounds=5, random_state=0)
    expected, before = fitted(model, PARTED), set(mortals.scheduler_info()["workers"])

    def add():
        mortals.cluster.scale(3)
        mortals.wait_for_workers(3)

    def kill():
        os.kill(mortals.run(os.getpid)[min(before)], signal.SIGKILL)

    with pytest.warns(UserWarning, match="A worker was lost"):
        ours = fitted(clone(model).set_callbacks(InRound(1, add), InRound(3, kill)), PARTED)
    np.testing.assert_array_equal(ours.item_factors_, expected.item_factors_)
    assert ours.communication_ == expected.communication_
    who = {one for where in mortals.who_has(ours._parts.models).values() for one in where}
    assert len(who) >= 2
    assert who - before


@contextmanager
def processes(commands):
    """Start programs of Dask; the list may grow."""
    running = []

    def start(*commands):
        for one in commands:
            command = [sys.executable, "-m", f"distributed.cli.dask_{one[0]}", *one[1:]]
            command += ["--no-dashboard"]
            running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    try:
        start(*commands)
        yield running, start
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait()


def answers(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_scheduler_that_ends(comes_back, client, monkeypatch, tmp_path):
    monkeypatch.setattr(dask_run, "PATIENCE", 600.0 if comes_back else 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    address = f"127.0.0.1:{port}"
    cluster = [("scheduler", "--host", "127.0.0.1", "--port", port)]
    cluster += 2 * [("worker", address, "--nthreads", "1")]
    model = RFRec(n_rounds=5, random_state=0)
    seconds = "600s" if comes_back else "20s"
    timeouts = dask.config.set({"distributed.comm.timeouts.connect": seconds})
    with timeouts, processes(cluster) as (running, start), checkpoints(tmp_path):
        while not answers(int(port)):
            assert running[0].poll() is None
            time.sleep(0.1)
        with Client(address) as mortals:
            mortals.wait_for_workers(2)

            def end():
                running[0].kill()
                running[0].wait()
                if comes_back:
                    start(*cluster)

            restless = clone(model).set_callbacks(InRound(2, end))
            if comes_back:
                with pytest.warns(UserWarning, match="A worker was lost"):
                    ours = gather(fitted(restless, PARTED))
            else:
                with pytest.raises(RuntimeError, match=r"were lost, or its scheduler; start oth"):
                    fitted(restless, PARTED)
        if not comes_back:
            with client.as_current():
                ours = gather(fitted(model, PARTED))
    np.testing.assert_allclose(
        ours.predict(FRAME[IDS]), fitted(model, FRAME).predict(FRAME[IDS]), rtol=1e-5
    )


def test_workers_that_are_lost_again_and_again_end_the_fit(mortals, monkeypatch):
    monkeypatch.setattr(dask_run, "MOST_LOSSES", 1)
    killers = [InRound(round, lambda: kill_a_worker(mortals)) for round in (1, 3)]
    model = RFRec(n_rounds=5).set_callbacks(*killers)
    lost = pytest.raises(RuntimeError, match="lost 2 times in this fit")
    with pytest.warns(UserWarning, match="A worker was lost"), lost:
        model.fit(PARTED[IDS], PARTED["rating"])


@pytest.mark.parametrize("name", ["RFRec", "stale", "cohorts stop"])
def test_an_interrupted_fit_goes_on_after_its_checkpoint(name, client, tmp_path):
    model = MODELS[name].set_params(random_state=0)
    expected, here = fitted(model, PARTED), tmp_path / "here"
    for round in (1, 1):
        killer = InRound(round, interrupt)
        with checkpoints(here), pytest.raises(KeyboardInterrupt):
            fitted(clone(model).set_callbacks(killer), PARTED)
        assert killer.n_rounds == round
    other = clone(model).set_params(random_state=1)
    for one, frame in (other, PARTED), (model, PARTED.assign(rating=2.0)):
        with checkpoints(here), pytest.raises(ValueError, match="here has an interrupted fit of"):
            fitted(one, frame)
    with checkpoints(here):
        ours = fitted(model, PARTED)
    np.testing.assert_array_equal(ours.item_factors_, expected.item_factors_)
    predicted = [one.predict(PARTED[IDS]).compute() for one in (ours, expected)]
    np.testing.assert_array_equal(*predicted)
    assert ours.communication_ == expected.communication_
    assert not list(here.iterdir())


def test_workers_are_found_while_dask_asks_for_none(client):
    cluster, asking = dask_run.Cluster(client, [], 1), True

    def ask():
        # As Dask does by itself every two seconds.
        while asking:
            client.scheduler_info(n_workers=0)

    with ThreadPoolExecutor() as threads:
        threads.submit(ask)
        try:
            counts = {len(cluster._workers()) for _ in range(300)}
        finally:
            asking = False
    assert counts == {2}


def test_an_interrupt_leaves_the_cluster_as_it_was(client):
    with pytest.raises(KeyboardInterrupt):
        RFRec().set_callbacks(InRound(0, interrupt)).fit(PARTED[IDS], PARTED["rating"])
    model = RFRec(n_rounds=2, random_state=0)
    assert_same(fitted(model, PARTED), fitted(model, FRAME))


# ------------------------------------------------------------------- predictions, lists


@pytest.fixture(scope="module")
def models(client):
    """A model of ratings and one of likes, on the cluster and in this process."""
    rates, ranks = RFRec(n_rounds=3, random_state=0), LocALS(n_factors=4, random_state=0)
    return [(fitted(one, PARTED), fitted(one, FRAME)) for one in (rates, ranks)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("n_partitions", [1, 4, 6])
def test_rows_find_their_users(which, n_partitions, models):
    ours, expected = models[which]
    rows = FRAME.sample(frac=0.5, random_state=0)
    rows.iloc[:3, 0] = [1001, 1002, 1001]
    rows.iloc[3:5, 1] = 2000
    rows.index = pd.Index(np.arange(len(rows)) * 3, name="row")
    frame = dd.from_pandas(rows, npartitions=n_partitions, sort=False)
    predicted = ours.predict(frame[IDS]).compute()
    assert predicted.index.name == "row"
    np.testing.assert_allclose(
        predicted.loc[rows.index], expected.predict(rows[IDS]), rtol=1e-5, atol=1e-6
    )
    score = ours.score(frame[IDS], frame["rating"])
    assert score == pytest.approx(expected.score(rows[IDS], rows["rating"]), rel=1e-5)
    weights = frame["item"] + 1.0
    weighted = ours.score(frame[IDS], frame["rating"], sample_weight=weights)
    by_hand = expected.score(rows[IDS], rows["rating"], sample_weight=rows["item"] + 1.0)
    assert weighted == pytest.approx(by_hand, rel=1e-5)


def test_effects_of_days_are_added_where_the_rows_are(client):
    parts = [FRAME[FRAME["user"] < 40], FRAME[FRAME["user"] >= 40]]
    parts = [one.assign(when=86_400.0 * (one["item"] % 5)) for one in parts]
    here, parted, columns = pd.concat(parts), dask_of(parts), [*IDS, "when"]
    model = FedEB(4, n_rounds=3, timestamps="when", random_state=0)
    expected = clone(model).fit(here[columns], here["rating"])
    ours = model.fit(parted[columns], parted["rating"])
    predicted = ours.predict(parted[columns]).compute()
    np.testing.assert_allclose(predicted, expected.predict(here[columns]), rtol=1e-5)


@pytest.mark.parametrize("which", [0, 1])
def test_lists(which, models):
    ours, expected = models[which]
    users = pd.DataFrame({"user": [*range(0, 90, 4), 1001]})
    frame = dd.from_pandas(users, npartitions=3)
    # `unique` makes a Series with a row in its `_meta`.
    twice = dd.from_pandas(pd.concat([users, users]), npartitions=3)["user"].unique()
    for asked in (frame, frame["user"], twice):
        lists = ours.recommend(asked, 4, candidates=range(5, 30)).compute()
        theirs = expected.recommend(users["user"], 4, candidates=range(5, 30), as_frame=True)
        lists, theirs = (
            one.sort_values(["user", "rank"]).reset_index(drop=True) for one in (lists, theirs)
        )
        pd.testing.assert_frame_equal(lists, theirs, check_exact=False, rtol=1e-5)


@pytest.mark.parametrize("which", [0, 1])
def test_users_are_folded_in(which, models):
    ours, expected = map(copy.copy, models[which])
    rows = FRAME[FRAME["user"].isin([3, 50, 80, 81])].copy()
    rows["user"] = rows["user"].map({3: 3, 50: 1050, 80: 1080, 81: 80})
    frame = dd.from_pandas(rows, npartitions=3, sort=False)
    with pytest.raises(ValueError, match="already known"):
        ours.fold_in(frame[IDS], frame["rating"])
    ours.fold_in(frame[IDS], frame["rating"], replace=True)
    expected.fold_in(rows[IDS], rows["rating"], replace=True)
    assert set(ours.user_ids_) == set(expected.user_ids_)
    asked = pd.concat([FRAME, rows])
    predicted = ours.predict(dd.from_pandas(asked[IDS].reset_index(drop=True), npartitions=2))
    np.testing.assert_allclose(
        predicted.compute().sort_index(), expected.predict(asked[IDS]), rtol=1e-5, atol=1e-6
    )
    lists = [one.recommend([3, 1050, 7], 5)[0] for one in (gather(ours), expected)]
    np.testing.assert_array_equal(*lists)


@pytest.mark.parametrize("method", [RFRec(3), FedEB(3), LocALS(3), FedEASE(50.0)], ids=repr)
def test_items_are_added(method, client):
    ids, rng = np.unique(FRAME["item"]), np.random.default_rng(0)
    features = pd.DataFrame(rng.random((len(ids), 2)), index=ids)
    new = pd.DataFrame(rng.random((2, 2)), index=[777, 888])
    rounds = {} if isinstance(method, FedEASE) else {"n_rounds": 3}
    method.set_params(random_state=0, item_features=features, **rounds)
    ours, expected = fitted(method, PARTED), fitted(method, FRAME)
    assert_same(ours, expected)
    for one in (ours, expected):
        one.add_items(new[:1]).add_items(new[1:])
    pairs = FRAME[IDS].assign(item=777)
    for n_partitions in (5, 2):
        frame = dd.from_pandas(pairs, npartitions=n_partitions)
        predicted = ours.predict(frame).compute().sort_index()
        np.testing.assert_allclose(predicted, expected.predict(pairs), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gather(ours).predict(pairs), expected.predict(pairs), rtol=1e-5)


def test_a_model_of_this_process_takes_frames(client):
    model = EASE(reg=50.0).fit(FRAME[IDS])
    np.testing.assert_allclose(model.predict(PARTED[IDS]).compute(), model.predict(FRAME[IDS]))
    users = dd.from_pandas(pd.DataFrame({"user": range(30)}), npartitions=2)
    lists = model.recommend(users, 3).compute()
    pd.testing.assert_frame_equal(
        lists.reset_index(drop=True), model.recommend(range(30), 3, as_frame=True)
    )
    with pytest.raises(TypeError, match=r"call score with X.compute\(\)"):
        model.score(PARTED[IDS])


def test_what_is_elsewhere_is_not_here(models):
    ours, expected = models[1]
    with pytest.raises(AttributeError, match="gather"):
        ours.user_factors_  # noqa: B018
    assert not hasattr(ours, "user_bias_")
    calls = (
        lambda: ours.predict(FRAME[IDS]),
        lambda: ours.recommend([3]),
        lambda: evaluate_ranking(ours, FRAME[IDS]),
    )
    for call in calls:
        with pytest.raises(AttributeError, match="on the workers of a Dask cluster"):
            call()
    with pytest.raises(TypeError, match="gather"):
        pickle.dumps(ours)
    restored = pickle.loads(pickle.dumps(gather(ours)))
    np.testing.assert_array_equal(restored.item_factors_, ours.item_factors_)
    assert len(ours.similar_items([3], 2)[0][0]) == 2
    # After a fit in this process they are here.
    back = copy.copy(ours).fit(FRAME[IDS], FRAME["rating"])
    np.testing.assert_array_equal(back.user_factors_, expected.user_factors_)


# ------------------------------------------------------------------------------- errors


def test_a_user_or_a_client_in_two_partitions(client):
    halves = dask_of([FRAME.iloc[::2], FRAME.iloc[1::2]])
    message = r"User \d+ has rows in partitions 0 and 1 of X .*shuffle\('user'\)"
    with pytest.raises(ValueError, match=message):
        fitted(RFRec(), halves)
    # Each counts once, in however many partitions its rows are.
    thirds = [FRAME.iloc[k::3] for k in range(3)]
    n_cut = np.count_nonzero(sum(np.isin(np.arange(90), part["user"]) for part in thirds) > 1)
    with pytest.raises(ValueError, match=rf"\({n_cut} users have rows in several\)"):
        fitted(RFRec(), dask_of(thirds))
    with pytest.raises(ValueError, match=r"Client 0 has rows in partitions .*shuffle\('client'\)"):
        fitted(RFRec(), PARTED.assign(shop=PARTED["user"] % 2), clients="shop")
    whole = halves.shuffle("user", npartitions=3)
    model = RFRec(n_rounds=2, random_state=0)
    assert_same(fitted(model, whole), fitted(model, FRAME))


def test_an_error_on_a_worker_says_where_it_was_raised(client):
    class BrokenAlgorithm(LocALSAlgorithm):
        def user_attributes(self, *given):
            return {}["what is not there"]

    class Broken(LocALS):
        _kind = BrokenAlgorithm

    # A KeyError, which is not taken for a lost worker.
    with pytest.raises(KeyError, match="what is not there") as error:
        fitted(Broken(n_factors=4, n_rounds=1), PARTED)
    assert "in user_attributes" in error.value.__notes__[0]


def test_what_needs_more_than_sums_is_refused(client):
    for name, model in (
        ("Krum", RFRec(federation=Federation(aggregator=Krum()))),
        ("adversary", RFRec(federation=Federation(adversary=SignFlip(0.1)))),
        ("warm_start", RFRec(warm_start=True)),
        ("predict_with", RFRec(predict_with="local")),
    ):
        with pytest.raises(ValueError, match=f"only sums leave the workers, and {name}.*FedSpec"):
            fitted(model, PARTED)


def test_wrong_columns_are_named(client):
    y, rating = PARTED["rating"], FRAME["rating"]
    half, broken = FRAME["user"] < 40, PARTED.assign(rating=y.where(PARTED["user"] != 70))
    mixed = dask_of([FRAME[half].astype({"item": str}), FRAME[~half]])
    empty = dask_of([FRAME.iloc[:0], FRAME.iloc[:0]])
    for X, ratings, kind, message in (
        (PARTED[IDS], rating, TypeError, r"y is a Series; .*frame\['y'\]"),
        (PARTED[IDS], y.repartition(npartitions=2), ValueError, "5 partitions and y has 2"),
        (PARTED[IDS], None, ValueError, "requires y to be passed"),
        (broken[IDS], broken["rating"], ValueError, "In partition 4 of X: Input y contains NaN"),
        (empty[IDS], empty["rating"], ValueError, "no row with a weight above zero"),
        (mixed[IDS], mixed["rating"], ValueError, "some partitions of X are strings"),
    ):
        with pytest.raises(kind, match=message):
            RFRec().fit(X, ratings)
    with pytest.raises(TypeError, match="EASE has no clients"):
        EASE().fit(PARTED[IDS])


def checkpointed(folder, content="content"):
    """Leave a checkpoint in a folder."""
    with checkpoints(folder):
        checkpoint = Checkpoint()
    checkpoint.save("identity", content)
    return checkpoint


def test_a_checkpoint_is_its_owners_and_leaves_no_file_behind(tmp_path):
    folder, existing = tmp_path / "fits" / "one", tmp_path / "existing"
    existing.mkdir(mode=0o755)
    checkpointed(existing)
    checkpoint = checkpointed(folder)
    assert folder.stat().st_mode & 0o077 == 0
    for file in (*folder.iterdir(), *existing.iterdir()):
        assert file.stat().st_mode & 0o077 == 0
    (folder / ".fit-draft").touch()
    with checkpoints(folder):
        again = Checkpoint()
    with pytest.raises(ValueError, match="interrupted fit of other rows"):
        again.load("another")
    assert again.load("identity") == "content"
    checkpoint.remove()
    assert list(folder.iterdir()) == []
    assert again.load("identity") is None
    for every in (0, 1.5, "2"):
        with pytest.raises((TypeError, ValueError), match="every"), checkpoints(folder, every):
            pass


def test_checkpoints_are_made_every_few_rounds(tmp_path):
    with checkpoints(tmp_path, every=3):
        checkpoint = Checkpoint()
    assert [round for round in range(1, 8) if checkpoint.is_due(round)] == [3, 6]
    assert not Checkpoint().is_due(3)
    assert Checkpoint().load("identity") is None


class Code:
    """Leaves a trace if it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_a_checkpoint_that_others_can_change_is_refused(tmp_path, monkeypatch):
    folder, trace = tmp_path / "fit", tmp_path / "trace"
    checkpointed(folder, Code(trace))

    def load():
        with checkpoints(folder):
            Checkpoint().load("identity")

    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(PermissionError, match="belongs to user"):
            load()
    for path, mode in ((folder, 0o777), (folder / "fit", 0o622)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(PermissionError, match="chmod go-w"):
            load()
        path.chmod(before)
    (folder / "fit").rename(tmp_path / "other")
    (folder / "fit").symlink_to(tmp_path / "other")
    with pytest.raises(PermissionError, match="is a link"):
        load()
    assert not trace.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 3],
        lambda content: content[:9] + bytes([content[9] ^ 1]) + content[10:],
    ],
    ids=["empty", "cut", "flipped"],
)
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    checkpoint, file = checkpointed(tmp_path), tmp_path / "fit"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=f"{file} is damaged.*delete"):
        checkpoint.load("identity")
