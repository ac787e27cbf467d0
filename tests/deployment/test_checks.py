"""What is refused before anything starts, and what server and nodes must agree on."""

import os
import pathlib
import re
import stat
import sys

import numpy as np
import pytest

from fedrecsk import EASE, Federation, LightFR, LocALS, RFRec, RFRecF, SemiDFEGL
from fedrecsk.aggregation import NormClipping
from fedrecsk.attacks import SignFlip
from fedrecsk.compression import TopK
from fedrecsk.deployment.checks import check_deployable, differences, digests
from fedrecsk.deployment.store import Store
from tests.conftest import make_toy
from tests.deployment.in_process import coordinator


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LocALS(), "LocALS needs the catalogue"),
        (RFRec(items=range(9)), "set rating_scale"),
        (RFRecF(items=range(9)), "set rating_scale"),
        (SemiDFEGL(items=range(9), n_common=0), "set rating_scale"),
        (LightFR(items=range(9), targets="ratings"), "set rating_scale"),
        (LocALS(items=[1, 1]), "items has item 1 more than once"),
        (LocALS(n_factors=0, items=range(9)), "The 'n_factors' parameter"),
        (
            LocALS(items=range(9), federation=Federation(dropout=0.1)),
            "federation.dropout simulates lost uploads",
        ),
        (
            LocALS(items=range(9), federation=Federation(adversary=SignFlip(0.1))),
            "set federation.adversary=None",
        ),
        (SemiDFEGL(items=range(9), rating_scale=(1, 5)), "talk to one another.*set n_common=0"),
        (
            RFRecF(
                items=range(9),
                rating_scale=(1, 5),
                aggregation="clients",
                federation=Federation(compression=TopK(0.5)),
            ),
            'aggregation="holders" or compression=None',
        ),
    ],
)
def test_what_cannot_be_deployed_is_refused_by_name(estimator, message):
    with pytest.raises(ValueError, match=message):
        check_deployable(estimator)


def test_only_unfitted_federated_estimators_are_deployed():
    with pytest.raises(TypeError, match="Only federated estimators"):
        check_deployable(EASE())
    fitted = LocALS(3, n_rounds=1, items=range(1000, 1030)).fit(make_toy()[0])
    with pytest.raises(ValueError, match=r"is fitted already.*clone"):
        check_deployable(fitted)


def test_parameters_agree_however_they_are_written_and_versions_must_be_the_same():
    one = RFRec(3, items=range(9), rating_scale=(1, 5), random_state=0)
    other = RFRec(np.int64(3), items=np.arange(9)[::-1], rating_scale=[1.0, 5.0], n_jobs=2)
    other.set_params(federation=Federation())
    ours = digests(one)
    assert differences(ours, digests(other)) is None
    text = differences(ours, ours | {"fedrecsk": "0.0.1"})
    assert "the server has 0.0.1; install the same version" in text


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (RFRec(4, items=range(9)), "n_factors"),
        (RFRec(3, items=range(8)), "items"),
        (RFRec(3, items=[str(i) for i in range(9)]), "items"),
        (RFRec(3, items=range(9), rating_scale=(1, 10)), "rating_scale"),
        (
            RFRec(3, items=range(9), federation=Federation(aggregator=NormClipping(0.2))),
            "federation__aggregator",
        ),
        (LocALS(3, items=range(9)), r"estimator here is a .*LocALS.* a .*RFRec"),
    ],
)
def test_differences_are_named(other, name):
    server = RFRec(3, items=range(9), federation=Federation(aggregator=NormClipping(0.1)))
    if "aggregator" not in name:
        server.set_params(federation=None)
    text = differences(digests(other), digests(server))
    assert text is not None
    assert re.search(name if type(other) is LocALS else f"in {name};", text)


def test_a_store_writes_whole_files_that_only_its_owner_reads(tmp_path):
    store = Store(tmp_path / "node")
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert store.load("state") is None
    store.save("state", {"a": 1})

    class Broken:
        def __reduce__(self):
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        store.save("state", Broken())
    assert store.load("state") == {"a": 1}
    (file,) = store.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    store.remove("state")
    assert store.load("state") is None


def test_a_damaged_file_of_a_store_is_named(tmp_path):
    store = Store(tmp_path)
    for place in (0, 40, -1):
        store.save("state", np.arange(9))
        content = bytearray((tmp_path / "state").read_bytes())
        content[place] ^= 1
        (tmp_path / "state").write_bytes(content)
        with pytest.raises(ValueError, match=r"state is damaged.* delete the folder"):
            store.load("state")


def test_the_result_of_an_earlier_fit_stays(tmp_path):
    store = Store(tmp_path)
    for model in ("first", "second", "third"):
        store.save_result("model.joblib", model)
    assert store.load("model.joblib") == "third"
    assert store.load("previous-model.joblib") == "second"


class Mine(LocALS):
    pass


def test_a_result_that_can_be_loaded_in_this_script_only(tmp_path, monkeypatch, caplog):
    """Of the class itself, and of one that a parameter has."""
    monkeypatch.setattr(Mine, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    store = Store(tmp_path)
    for result in (LocALS(4), Mine(4), LocALS(4, federation=Mine())):
        store.save_result("model.joblib", result)
    assert caplog.text.count("model.joblib needs Mine of the script") == 2


def test_a_store_that_others_may_write_into_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod go-w"):
        Store(folder)
    with pytest.raises(PermissionError, match=r"could replace .*; run chmod o-w"):
        Store(folder / "server")
    # As /tmp is.
    folder.chmod(0o1777)
    assert Store(folder / "server").load("state") is None


class Code:
    """Runs when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return pathlib.Path.touch, (self.trace,)


def prepare(folder):
    """A folder with code in place of a checkpoint, and the trace that the code leaves."""
    trace = folder.parent / "trace"
    Store(folder).save("checkpoint", Code(trace))
    return trace


@pytest.fixture
def as_another_user(monkeypatch):
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def test_code_in_another_users_folder_or_file_does_not_run(tmp_path, as_another_user):
    trace, store = prepare(tmp_path / "server"), Store(tmp_path / "server")
    as_another_user()
    with pytest.raises(PermissionError, match="checkpoint belongs to user"):
        store.load("checkpoint")
    with pytest.raises(PermissionError, match=r"belongs to user .*does not exist yet"):
        coordinator(LocALS(3, items=range(9)), {}, tmp_path, n_clients=1)
    assert not trace.exists()


def test_code_behind_a_link_or_in_a_file_that_others_may_change_does_not_run(tmp_path):
    trace, store = prepare(tmp_path / "other"), Store(tmp_path / "server")
    (store.folder / "checkpoint").symlink_to(tmp_path / "other" / "checkpoint")
    (tmp_path / "other" / "checkpoint").chmod(0o666)
    for one, message in ((store, "is a link"), (Store(tmp_path / "other"), "chmod go-w")):
        with pytest.raises(PermissionError, match=message):
            one.load("checkpoint")
    assert not trace.exists()


def test_another_users_link_to_a_folder_is_refused(tmp_path, as_another_user):
    (tmp_path / "link").symlink_to(tmp_path / "server")
    if os.getuid() == 0:
        os.lchown(tmp_path / "link", 1, 1)
    else:
        as_another_user()
    with pytest.raises(PermissionError, match="link"):
        Store(tmp_path / "link")
