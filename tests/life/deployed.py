"""The same fits through the two halves: a coordinator and nodes, whose messages are bytes."""

import secrets
import tempfile
from pathlib import Path
from unittest import mock

import joblib
import numpy as np

from fedrecsk.deployment.keys import write_identities
from tests.deployment.in_process import coordinator, make_nodes
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
        rows = rows.reset_index(drop=True)
        X, _ = side.arguments(rows)
        y, clients = rows["value"].to_numpy(), side.clients(rows)
        if side.setting["method"] not in S.RATES:
            y = np.ones(len(rows))
        key = side.model._run.server.key
        others = {}
        if side.setting["federation"] == "SecAggPlus":
            if self.identities is None:
                everybody = range(S.MOST_USERS + S.N_SILOS)
                self.identities = write_identities(everybody, folder / "identities", fewest=3)
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
        self.compare(server, nodes)

    def compare(self, server, nodes):
        """Raise unless each node's model scores as the one of this process."""
        whole, setting = self.side, self.side.setting
        items = sorted(whole.codes("item"))
        for node in nodes.values():
            own = type(whole)(setting)
            own.model = joblib.load(node.store.folder / "model.joblib")
            users = sorted(own.codes("user"))
            here, there = own.scores(users, items), whole.scores(users, items)
            # Masked numbers are rounded, and each round goes on from them.
            close = 1e-2 if setting["federation"] == "SecAggPlus" else 1e-4
            close = TOLERANCE.get(setting["federation"], close)
            difference = np.abs(here - there).max() / max(1.0, np.abs(there).max())
            assert difference < close, f"a node's scores differ by {difference:.3g}"
        phases = [entry["phase"] for entry in server.communication_.entries]
        ours = [entry["phase"] for entry in whole.model.communication_.entries]
        assert phases == ours, f"phases are {phases}, not {ours}"
