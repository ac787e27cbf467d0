"""The same fits through the two halves: a coordinator and nodes, whose messages are bytes."""

import secrets
import tempfile
from pathlib import Path
from unittest import mock

import joblib
import numpy as np
from sklearn.base import clone

from fedrecsk.data.interactions import encode
from fedrecsk.deployment import device
from fedrecsk.deployment.keys import write_identities
from fedrecsk.protocol.early_stopping import hold_out
from tests.deployment.in_process import coordinator, make_nodes, simulated_key
from tests.life import settings as S
from tests.life.oracle import TOLERANCE


class Deployment:
    """Nodes beside a model of this process, which must be theirs after a fit and each update."""

    def __init__(self, side):
        self.side = side
        self.home = tempfile.TemporaryDirectory()
        self.n_fits, self.identities = 0, None

    def run(self, rows):
        """Run a fit, or an update, of nodes that have these rows, and compare with the model."""
        side, folder = self.side, Path(self.home.name)
        X, y, clients = self.rows_of(rows)
        key = side.model._run.server.key
        others = {}
        if side.setting["federation"] == "SecAggPlus":
            if self.identities is None:
                self.identities = self.new_identities()
            others["identities"] = self.identities
        estimator = S.estimator_of(side.setting)
        with (
            mock.patch.object(secrets, "randbits", return_value=key.seed),
            # Files outlive processes, which is all that matters here.
            mock.patch("os.fsync"),
        ):
            nodes = make_nodes(estimator, X, y, clients, folder, **others)
            settings = {"update": self.n_fits > 0, "key": key}
            server = coordinator(estimator, nodes, folder, **settings).run()
        self.n_fits += 1
        self.compare(server, nodes, side)

    def rows_of(self, rows):
        """Return X, y and the clients of rows."""
        rows = rows.reset_index(drop=True)
        X, _ = self.side.arguments(rows)
        y = rows["value"].to_numpy()
        if self.side.setting["method"] not in S.RATES:
            y = np.ones(len(rows))
        return X, y, self.side.clients(rows)

    def new_identities(self):
        everybody = range(S.MOST_USERS + S.N_SILOS)
        return write_identities(everybody, Path(self.home.name) / "identities", fewest=3)

    def search(self, rows, search):
        """Fit a search here, and by nodes that have these rows; raise unless they find the same."""
        setting, folder = self.side.setting, Path(self.home.name)
        X, y, clients = self.rows_of(rows)
        given = {"y": y} if setting["method"] in S.RATES else {}
        simulated = clone(search)
        users = encode(X, y, clients=clients).user_ids

        def hold_out_as_simulated(data, share, key, **others):
            return hold_out(data, share, key, users.codes(data.user_ids.values), **others)

        with (
            mock.patch.object(device, "hold_out", hold_out_as_simulated),
            mock.patch("os.fsync"),
        ):
            others = {"private": simulated_key(search)}
            if setting["federation"] == "SecAggPlus":
                others["identities"] = self.new_identities()
            nodes = make_nodes(search, X, y, clients, folder, **others)
            options = {"patience": 30.0, "gathering": 30.0}
            found = coordinator(search, nodes, folder, **options).run()
        search.__dict__.update(vars(simulated.fit(X, clients=clients, **given)))
        assert found.best_params_ == search.best_params_, "nodes find another winner"
        whole = type(self.side)(setting)
        whole.model = search.best_estimator_
        self.compare(found.best_estimator_, nodes, whole)

    def compare(self, server, nodes, whole):
        """Raise unless each node's model scores as that of a side in this process."""
        setting = whole.setting
        items = sorted(whole.codes("item"))
        for node in nodes.values():
            own = type(whole)(setting)
            own.model = joblib.load(node.store.folder / "model.joblib")
            users = sorted(own.codes("user"))
            here, there = own.scores(users, items), whole.scores(users, items)
            # Masked numbers are rounded, and each round goes on from them. Uploads of norm 1, as
            # PrivFedEB's, have smaller numbers.
            masked = 5e-2 if setting["method"] == "PrivFedEB" else 1e-2
            close = masked if setting["federation"] == "SecAggPlus" else 1e-4
            close = TOLERANCE.get(setting["federation"], close)
            difference = np.abs(here - there).max() / max(1.0, np.abs(there).max())
            assert difference < close, f"a node's scores differ by {difference:.3g}"
        phases = [entry["phase"] for entry in server.communication_.entries]
        ours = [entry["phase"] for entry in whole.model.communication_.entries]
        assert phases == ours, f"phases are {phases}, not {ours}"
