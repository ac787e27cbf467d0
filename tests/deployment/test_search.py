"""A search whose clients are nodes: equal to the simulated one, whatever happens on the way."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from fedrecsk import FedEASE, FedEB, Federation, LocALS, RFRec
from fedrecsk.deployment import device
from fedrecsk.deployment.checks import fits_of
from fedrecsk.deployment.exchanges import NotEnough
from fedrecsk.deployment.keys import write_identities
from fedrecsk.deployment.records import bundle, bundled, pack, unpack
from fedrecsk.deployment.search import SearchCoordinator
from fedrecsk.deployment.server_model import send_new_items
from fedrecsk.deployment.side_by_side import Together
from fedrecsk.deployment.store import Store
from fedrecsk.preprocessing import IdEncoder
from fedrecsk.privacy import CKKS, CentralDP, LaplaceMechanism, SecAggPlus
from fedrecsk.protocol import blocks
from fedrecsk.protocol.early_stopping import hold_out
from fedrecsk.selection import FederatedSearch, _halving
from tests.conftest import make_toy
from tests.deployment.in_process import (
    InProcess,
    Killed,
    coordinator,
    make_nodes,
    prepared,
    simulated_key,
)
from tests.deployment.test_fit import assert_same, load_models, look_at_uploads

X, Y = make_toy(8, density=0.8)
SILOS = X[:, 0] % 4
DIGITS = Federation(wire_dtype="float64")
SEARCHES = {
    "RFRec": (
        RFRec(3, n_rounds=12),
        {"reg_user": [0.01, 0.04, 0.16], "learning_rate": [0.05, 0.1]},
    ),
    "FedEB": (FedEB(3, n_rounds=8), {"learning_rate": [0.5, 1.0, 2.0]}),
    "LocALS": (LocALS(3, n_rounds=6), {"alpha": [0.5, 1.0, 2.0], "reg_user": [10.0, 30.0]}),
    "FedEASE": (FedEASE(), {"reg": [10.0, 100.0, 1000.0]}),
    "cohorts": (
        RFRec(3, n_rounds=12, client_fraction=0.5),
        {"reg_user": [0.01, 0.04, 0.16]},
    ),
}


@pytest.fixture(autouse=True)
def as_simulated(monkeypatch):
    """Let the simulator add up single updates, and devices hold out the rows that it does."""
    monkeypatch.setattr(blocks, "block_size", lambda *_: 1)
    look_at_uploads(monkeypatch)
    monkeypatch.setattr(device, "hold_out", hold_out_as_simulated)


def hold_out_as_simulated(data, share, key, **others):
    """Hold out by the codes of users in the fit, where silos have theirs one after the other."""
    users = np.unique(X[:, 0])
    is_silo = len(data.user_ids.values) > 1
    order = np.argsort(users % 4 if is_silo else users, kind="stable")
    codes = np.argsort(order)[np.searchsorted(users, data.user_ids.values)]
    return hold_out(data, share, key, codes, **others)


def searched(name="RFRec", federation=DIGITS, **parameters):
    method, grid = SEARCHES[name]
    method = prepared(clone(method).set_params(federation=federation, random_state=0), X, Y)
    options = {"random_state": 0, "validation_fraction": 0.3} | parameters
    return FederatedSearch(method, grid, **options)


def deployed(search, folder, silos=SILOS, identities=None, rows=X, **settings):
    """A coordinator, and its nodes."""
    key = simulated_key(search)
    nodes = make_nodes(search, rows, Y, silos, folder, private=key, identities=identities)
    return coordinator(
        search, nodes, folder, **{"patience": 5.0, "gathering": 20.0} | settings
    ), nodes


def assert_found_the_same(found, nodes, expected):
    ours, theirs = found.cv_results_, expected.cv_results_
    assert ours.keys() == theirs.keys()
    for name in ("iter", "n_resources", "params", "mean_test_score", "rank_test_score"):
        assert list(ours[name]) == list(theirs[name]), name
    for name in (
        "best_params_",
        "best_index_",
        "n_rounds_",
        "refit_",
        "scoring_",
        "n_resources_",
        "n_features_in_",
    ):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.communication_ == expected.communication_
    assert repr(found.history_) == repr(expected.history_)
    assert found.privacy_ == expected.privacy_
    assert_same(load_models(nodes), found.best_estimator_, expected.best_estimator_)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_deployed_search_is_the_simulated_one(name, tmp_path, monkeypatch):
    # Let a part of the clients evaluate, as if there were many.
    monkeypatch.setattr(_halving, "FEWEST", 2)
    scoring = "ndcg@5" if name in ("LocALS", "FedEASE") else None
    search = searched(name, scoring=scoring)
    silos = X[:, 0] if name == "LocALS" else SILOS
    one, nodes = deployed(search, tmp_path, silos)
    found = one.run()
    assert_found_the_same(found, nodes, clone(search).fit(X, Y, clients=silos))
    assert not list(tmp_path.glob("server/*.sums"))
    assert not (tmp_path / "server" / "search").exists()
    # States of the candidates go with the search.
    assert {len(node.store.names("*.state")) for node in nodes.values()} == {1}


def test_nodes_hold_out_their_latest_rows(tmp_path):
    timed = np.column_stack([X, np.random.default_rng(0).permutation(len(X))])
    search = searched("LocALS", scoring="ndcg@5", validation_rows="latest")
    search.estimator.set_params(history_half_life=2.0)
    one, nodes = deployed(search, tmp_path, rows=timed)
    found = one.run()
    expected = clone(search).fit(timed, Y, clients=SILOS)
    # The server sees no columns.
    found.n_features_in_ = expected.n_features_in_
    assert_found_the_same(found, nodes, expected)
    other = nodes[1002]
    other.estimator = clone(search).set_params(validation_rows="random")
    theirs, ours = (fits_of(each)[0].digests() for each in (search, other.estimator))
    assert [name for name in ours if ours[name] != theirs[name]] == ["validation_rows"]


# ----------------------------------------------------------------------- lost, late, killed


def steps_of(request):
    """Kind and number of each request in a message."""
    heads = [head for head, _ in bundled(*unpack(request.content))]
    return {(head["kind"], head.get("number")) for head in heads}


def carrier_of(one):
    return one.carrier.carrier


def kill(one, step, node):
    """Let the server be killed when it has received this reply."""

    def tamper(request, reply):
        if step in steps_of(request) and request.node == node:
            raise Killed
        return reply

    carrier_of(one).tamper = tamper


# Whether in the rounds of the search or in the last ones, and where.
KILLED = [
    (False, ("setup", 0)),
    (False, ("round", 0)),
    (False, ("validate", 3)),
    (False, ("round", 3)),
    (False, ("validate", 9)),
    (True, ("setup", 0)),
    (True, ("round", 2)),
    (True, ("finish", 3)),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that nothing has stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "hold_out", hold_out_as_simulated)
        return deployed(searched(), tmp_path_factory.mktemp("whole"))[0].run()


@pytest.mark.sampled
@pytest.mark.parametrize(("in_last_rounds", "step"), KILLED, ids=str)
def test_a_killed_server_goes_on_from_its_checkpoint(in_last_rounds, step, tmp_path, whole):
    first, _ = deployed(searched(), tmp_path)
    end = first._end

    def kill_later():
        kill(first, step, 1001)
        return end()

    if in_last_rounds:
        first._end = kill_later
    else:
        kill(first, step, 1001)
    with pytest.raises(Killed):
        first.run()
    again, _ = deployed(searched(), tmp_path)
    assert again.is_resumed == (in_last_rounds or step != ("setup", 0))
    found = again.run()
    assert found.best_params_ == whole.best_params_
    assert repr(found.cv_results_) == repr(whole.cv_results_)
    assert found.communication_ == whole.communication_
    np.testing.assert_array_equal(
        found.best_estimator_.item_factors_, whole.best_estimator_.item_factors_
    )
    assert (tmp_path / "server" / "search.txt").exists()
    assert not (tmp_path / "server" / "search").exists()


def test_a_checkpoint_of_another_search_or_fit_is_refused(tmp_path):
    first, _ = deployed(searched(), tmp_path)
    kill(first, ("round", 1), 1001)
    with pytest.raises(Killed):
        first.run()
    with pytest.raises(
        ValueError, match=r"search is of a search that has not ended.* another factor"
    ):
        deployed(searched(factor=2), tmp_path)
    folder = tmp_path / "other"
    one = coordinator(
        searched().estimator, make_nodes(searched().estimator, X, Y, SILOS, folder), folder
    )

    def die(request, reply):
        if request.kind == "round":
            raise Killed
        return reply

    one.exchanges.carrier.tamper = die
    with pytest.raises(Killed):
        one.run()
    with pytest.raises(ValueError, match="checkpoint is of a fit that has not ended; let it end"):
        deployed(searched(), folder)


@pytest.mark.full
def test_a_killed_node_does_not_stop_the_search(tmp_path):
    one, nodes = deployed(searched(), tmp_path, quorum=0.5, patience=1.0)
    carrier, lost = carrier_of(one), max(nodes)

    def die(request, reply):
        if ("round", 2) in steps_of(request) and request.node == lost:
            carrier.connected.pop(lost, None)
        return reply if request.node in carrier.connected else None

    carrier.tamper = die
    found = one.run()
    entries = [e for e in found.communication_.entries if e["phase"] == "round"]
    assert [entry["dropped"] for entry in entries][:5] == [0, 0, 1, 1, 1]
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()
    assert np.isfinite(found.best_estimator_.item_factors_).all()
    assert not (nodes[lost].store.folder / "model.joblib").exists()


def test_a_late_node_joins_all_candidates(tmp_path):
    search = searched()
    nodes = make_nodes(search, X, Y, SILOS, tmp_path, private=simulated_key(search))
    late = nodes.pop(1003)
    one = coordinator(search, nodes, tmp_path, patience=5.0, gathering=20.0)
    carrier = carrier_of(one)

    def watch(request):
        if ("round", 1) in steps_of(request):
            carrier.connected[1003] = late

    carrier.watch = watch
    found = one.run()
    entries = [e for e in found.communication_.entries if e["phase"] == "round"]
    # In the cut after round 3 they answer twice.
    assert [entry["messages_up"] for entry in entries][:5] == [3, 3, 3, 8, 4]
    assert len(found.communication_.client_ids) == 4
    (_, catalogue) = (
        e["bytes_down"] for e in found.communication_.entries if e["phase"] == "catalogue"
    )
    assert catalogue == 4 * searched().estimator.items.nbytes
    assert (late.store.folder / "model.joblib").exists()


def test_late_replies_are_forgotten(tmp_path):
    one, nodes = deployed(searched(), tmp_path, quorum=0.5, patience=0.5)
    carrier, together, slow = carrier_of(one), one.carrier, max(nodes)
    n_sent = itertools.count()
    # Each second message is answered after the next one, when nobody looks for that any more.
    carrier.is_slow = lambda request: (
        request.node == slow and request.kind == "together" and next(n_sent) % 2 == 1
    )
    save, kept = one._save, []

    def look():
        kept.append((len(together._replies), len(together._sent)))
        save()

    one._save = look
    one.run()
    assert next(n_sent) > 10
    # What has come, or not come, since the last requests: of six candidates, of one node.
    assert np.max(kept, axis=0).tolist() <= [6, 1]


def test_threads_do_not_wait_for_one_that_cannot_start(monkeypatch):
    together, submit = Together(InProcess({})), ThreadPoolExecutor.submit

    def fail_later(pool, take, number):
        if number == 2:
            raise RuntimeError("can't start new thread")
        return submit(pool, take, number)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", fail_later)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        together.side_by_side(lambda _: together.pause(), range(4))


@pytest.mark.full
def test_a_node_that_loses_its_folder_is_told_so(tmp_path):
    one, nodes = deployed(searched(), tmp_path, quorum=0.5, patience=1.0)
    lost = nodes[1002]

    def forget(request):
        if request.node == 1002 and ("round", 2) in steps_of(request):
            for name in lost.store.names("*.state"):
                lost.store.remove(name)

    carrier_of(one).watch = forget
    found = one.run()
    assert np.isfinite(found.best_estimator_.item_factors_).all()


# ------------------------------------------------------------------------------ protection


@pytest.mark.full
def test_masked_sums_find_what_the_simulation_finds(tmp_path):
    pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")
    scheme = SecAggPlus(max_dropout=0.4, max_colluding=0.0)
    search = searched("RFRec", Federation(secure_aggregation=scheme))
    identities = write_identities(range(4), tmp_path / "identities")
    one, _ = deployed(search, tmp_path, identities=identities)
    kill(one, ("round unmask", 2), 1001)
    with pytest.raises(Killed):
        one.run()
    one, _ = deployed(search, tmp_path, identities=identities)
    found, expected = one.run(), clone(search).fit(X, Y, clients=SILOS)
    assert found.best_params_ == expected.best_params_
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-5
    )
    assert found.privacy_.server_sees == "exact sums"
    np.testing.assert_allclose(
        found.best_estimator_.item_factors_, expected.best_estimator_.item_factors_, atol=1e-4
    )
    # An exchange of a masked sum is one message for all candidates, too.
    kinds = [kind for kind, *_ in carrier_of(one).crossed]
    assert set(kinds) <= {"together", "register"}


def test_the_report_can_be_read(tmp_path):
    one, _ = deployed(searched(), tmp_path)
    found = one.run()
    text = (tmp_path / "server" / "search.txt").read_text()
    assert "RFRec: 6 candidates, 12 rounds" in text
    assert str(found.best_params_) in text
    assert f"own parameters: {found.gain_:.6g}" in text
    assert f"{found.communication_.bytes_up:,} bytes up" in text
    table = text.partition("param_learning_rate")[2]
    assert table.count("\n") >= len(found.cv_results_["iter"])
    saved = joblib.load(tmp_path / "server" / "search.joblib")
    assert saved.best_params_ == found.best_params_
    newcomer = saved.best_estimator_.fold_in([["zoe", saved.best_estimator_.item_ids_[0]]], [5.0])
    assert newcomer.n_users_ == 1


def test_nodes_with_the_winner_are_sent_new_items(tmp_path):
    features = pd.DataFrame(
        {"x": np.linspace(0, 1, 9), "z": np.sin(np.arange(9))}, np.unique(X[:, 1])
    )
    search = searched()
    search.estimator.set_params(item_features=features, warm_start=True)
    one, nodes = deployed(search, tmp_path)
    found = one.run()
    winner = clone(search.estimator).set_params(**found.best_params_)
    nodes = make_nodes(winner, X, Y, SILOS, tmp_path)
    new = pd.DataFrame({"x": [0.3], "z": [0.1]}, [99])
    settings = {"n_clients": 4, "patience": 1.0, "gathering": 5.0}
    send_new_items(winner, new, InProcess(nodes), Store(tmp_path / "server"), **settings)
    assert {model.item_ids_[-1] for model in load_models(nodes)} == {99}


def test_one_round_is_one_message_to_each_node(tmp_path):
    one, nodes = deployed(searched(), tmp_path)
    sent = []
    carrier_of(one).watch = lambda request: sent.append((request.node, steps_of(request)))
    found = one.run()
    for node in nodes:
        own = [steps for to, steps in sent if to == node]
        n_rounds, n_last = 9, 3
        # Registration, set-up, rounds, two cuts; then those of the last fit, and its end.
        assert len(own) == (2 + n_rounds + 2) + (2 + n_last + 1)
    assert found.n_rounds_ == 12


# ---------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"random_state": None}, "All machines must draw the same candidates; set random_state=0"),
        ({"refit": False}, "ends with a model on all machines; set refit=True"),
        ({"estimator": make_pipeline(IdEncoder(), RFRec(3))}, "is one of a federated method alone"),
        ({"scoring": "ndcg@99"}, "the catalogue has 9 items"),
        ({"min_rounds": 1}, "min_rounds=1, but the first cut must come after 2 to 12"),
        ({"estimator__early_stopping": True}, "set early_stopping=False"),
        ({"estimator__items": None}, "needs the catalogue"),
        ({"estimator__federation": Federation(dropout=0.2)}, "a real network loses its own"),
        (
            {"estimator__federation": Federation(secure_aggregation=CKKS())},
            "CKKS is for simulations",
        ),
        (
            {"estimator__federation": Federation(local_dp=LaplaceMechanism(0.2, 0.1))},
            "local_dp does not protect",
        ),
        (
            {
                "estimator__federation": Federation(central_dp=CentralDP(epsilon=20.0)),
                "epsilon_scores": 1.0,
            },
            "cannot calibrate central_dp's noise to all its fits.*or search by fit",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_sent(change, message, tmp_path):
    search = searched()
    if "estimator" in change:
        search = FederatedSearch(
            change["estimator"], {"rfrec__reg_user": [0.1, 0.2]}, random_state=0
        )
    else:
        search.set_params(**change)
    with pytest.raises((TypeError, ValueError), match=message):
        SearchCoordinator(search, None, Store(tmp_path), n_clients=3)


def test_a_search_does_not_update(tmp_path):
    with pytest.raises(ValueError, match="A search always begins anew"):
        coordinator(searched(), {}, tmp_path, n_clients=3, update=True)


@pytest.mark.parametrize("node_searches", [True, False])
def test_a_search_and_a_method_alone_do_not_fit_together(node_searches, tmp_path):
    search, method = searched(), clone(searched().estimator).set_params(n_factors=2)
    estimator, other = (search, method) if node_searches else (method, search)
    node = make_nodes(estimator, X, Y, SILOS, tmp_path)[1000]
    head = {"kind": "register", "fit": "0" * 16, "parameters": fits_of(other)[0].digests()}
    refused = unpack(node.answer(pack(head, {})))[0]["refused"]
    side, other = ("client_app", "server_app")[:: 1 if node_searches else -1]
    assert f"{side} was given a FederatedSearch, and {other} a method alone" in refused


def test_a_node_reads_its_data_once_for_all_candidates(tmp_path):
    search = searched()
    node = make_nodes(search, X, Y, SILOS, tmp_path)[1000]
    read, n_reads = node.load_data, []
    node.load_data = lambda: n_reads.append(1) or read()
    heads = [
        {"kind": "register", "fit": f"{number:016x}", "parameters": one.digests(), "search": True}
        for number, one in enumerate(fits_of(search)[:6])
    ]
    message = bundle([pack(head, {}) for head in heads])
    answers = bundled(*unpack(node.answer(message)))
    assert all("token" in head for head, _ in answers)
    assert len(n_reads) == 1


def test_a_node_that_cannot_read_its_data_logs_it_once(tmp_path, caplog):
    search = searched()
    node, n_reads = make_nodes(search, X, Y, SILOS, tmp_path)[1000], []

    def fail():
        n_reads.append(1)
        raise OSError("the disk is gone")

    node.load_data = fail
    heads = [
        {"kind": "register", "fit": f"{number:016x}", "parameters": one.digests(), "search": True}
        for number, one in enumerate(fits_of(search)[:6])
    ]
    message = bundle([pack(head, {}) for head in heads])
    for n_messages in (1, 2):
        answers = bundled(*unpack(node.answer(message)))
        assert [head for head, _ in answers] == [{"failed": "OSError"}] * 6
        said = [record for record in caplog.records if "the disk is gone" in record.getMessage()]
        assert len(said) == len(n_reads) == n_messages


def test_states_of_another_search_are_deleted(tmp_path):
    one, nodes = deployed(searched(), tmp_path)
    kill(one, ("round", 1), 1001)
    with pytest.raises(Killed):
        one.run()
    assert {len(node.store.names("*.state")) for node in nodes.values()} == {6}
    before = set(nodes[1000].store.names("*.state"))
    one.store.remove("search")
    other, nodes = deployed(searched(), tmp_path)
    kill(other, ("round", 1), 1001)
    with pytest.raises(Killed):
        other.run()
    assert {len(node.store.names("*.state")) for node in nodes.values()} == {6}
    assert not before & set(nodes[1000].store.names("*.state"))
    # Nor do they outlive a fit of one method that begins.
    other.store.remove("search")
    method = searched().estimator
    coordinator(method, make_nodes(method, X, Y, SILOS, tmp_path), tmp_path).run()
    assert {len(node.store.names("*.state")) for node in nodes.values()} == {1}


@pytest.mark.full
def test_a_node_of_another_search_is_refused(tmp_path):
    one, nodes = deployed(searched(), tmp_path, gathering=2.0)
    nodes[1002].estimator = searched(validation_fraction=0.2)
    with pytest.raises(NotEnough, match=r"differs from the server's in validation_fraction"):
        one.run()


def test_a_node_with_another_grid_is_refused(tmp_path):
    search = searched()
    grid = search.param_distributions | {"reg_user": [0.01, 0.04, 0.32]}
    search.set_params(param_distributions=grid)
    node = make_nodes(search, X, Y, SILOS, tmp_path)[1000]
    # Both sides have the first candidate.
    server, ours = fits_of(searched())[0].digests(), fits_of(search)[0].digests()
    assert [name for name in ours if ours[name] != server[name]] == ["the candidates' reg_user"]
    head = {"kind": "register", "fit": "0" * 16, "parameters": server, "search": True}
    refused = unpack(node.answer(pack(head, {})))[0]["refused"]
    assert "differs from the server's in the candidates' reg_user;" in refused


def test_what_messages_have_alike_is_sent_once():
    rng = np.random.default_rng(0)
    model, own = rng.random(1000), [rng.random(10) for _ in range(5)]
    contents = [pack({"fit": n}, {"model": model, "own": one}) for n, one in enumerate(own)]
    message = bundle(contents)
    assert len(message) < 1.5 * len(contents[0])
    for (head, arrays), number in zip(bundled(*unpack(message)), range(5), strict=True):
        assert head == {"fit": number}
        np.testing.assert_array_equal(arrays["model"], model)
        np.testing.assert_array_equal(arrays["own"], own[number])


def test_messages_in_messages_are_checked(tmp_path):
    _, nodes = deployed(searched(), tmp_path)
    node = nodes[1000]
    junk, ones = {"kind": "register", "fit": "junk"}, {"0": np.ones(3)}
    (answer,) = bundled(*unpack(node.answer(pack({"kind": "together", "parts": [[junk, {}]]}, {}))))
    assert "'fit' of a request must be the name of a fit" in answer[0]["refused"]
    nested = {"kind": "together", "parts": [[{"kind": "together", "parts": [[junk, {}]]}, {}]]}
    (answer,) = bundled(*unpack(node.answer(pack(nested, {}))))
    assert "refused" in answer[0]
    for parts in (
        None,
        3,
        [junk],
        [[junk, {"x": "1"}]],
        [[junk, ["0"]]],
        [[3, {}]],
        [[junk, {"head": "0"}]],
        # A short message that would be a long one.
        [[junk, {"x": "0", "z": "0"}]],
    ):
        answer, _ = unpack(node.answer(pack({"kind": "together", "parts": parts}, ones)))
        assert "cannot be told apart" in answer["refused"]
    assert "refused" in unpack(node.answer(b"junk"))[0]


@pytest.mark.parametrize("is_search", [True, False])
def test_only_fits_of_a_search_draw_alike(is_search, tmp_path):
    """Or a server could subtract the noise of one fit from that of another."""
    search = searched()
    estimator = search if is_search else search.estimator
    parts = fits_of(estimator)[0].digests()
    node, names = make_nodes(estimator, X, Y, SILOS, tmp_path)[1000], ("0" * 16, "0" * 15 + "1")
    for name in names:
        head = {"kind": "register", "fit": name, "parameters": parts, "search": True}
        assert "token" in unpack(node.answer(pack(head, {})))[0]
    keys = {node.store.load(f"{name}.state").device.keys.private.seed for name in names}
    assert len(keys) == (1 if is_search else 2)
