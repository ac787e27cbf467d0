"""Flower's own processes on the loopback interface, started as a user starts them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]

PROJECT = """
[project]
name = "toy"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "tests"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "toy.server_app:app"
clientapp = "toy.client_app:app"

[tool.flwr.app.config]
n-clients = 2
folder = "server"
quorum = 1.0
patience = 60.0
"""
METHOD = """
import numpy as np
from fedrecsk import Federation, {name}
from fedrecsk.protocol.keys import Key
from fedrecsk.selection import FederatedSearch

method = {estimator}
key = Key({seed})
"""
SERVER = """
from fedrecsk.deployment.flower import server_app
from toy.method import key, method

app = server_app(method, key=key, poll=0.02)
"""
CLIENT = """
import numpy as np
from fedrecsk.deployment.flower import client_app
from toy.method import key, method


def load_data(context):
    rows = np.load(context.node_config["data"])
    name = int(context.node_config["client"])
    return {"client_id": name, "X": rows[:, :2].astype(int), "y": rows[:, 2], "private": key}


app = client_app(method, load_data)
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def descendants(pid):
    """Processes that this one has started, and those that they have started."""
    table = subprocess.run(
        ["ps", "-Ao", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout.split()
    parents = dict(zip(map(int, table[::2]), map(int, table[1::2]), strict=True))
    found, new = [], [pid]
    while new:
        new = [one for one, parent in parents.items() if parent in new]
        found += new
    return found


def write_project(folder, estimator, seed):
    """A Flower project in the folder. Uploads have all digits, and draws are the simulation's."""
    package = folder / "toy"
    package.mkdir()
    text = repr(estimator).replace("array(", "np.array(")
    files = {"__init__": "", "server_app": SERVER, "client_app": CLIENT}
    files["method"] = METHOD.format(
        name=type(getattr(estimator, "estimator", estimator)).__name__,
        estimator=" ".join(text.split()),
        seed=seed,
    )
    for name, content in files.items():
        (package / f"{name}.py").write_text(content)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "LICENSE").write_text("BSD-3-Clause")


class Processes:
    """A superlink, nodes and runs in one folder.

    Parameters
    ----------
    folder : Path
        With a Flower project.
    superlink, node : list
        Options beside the address; the last one of a node is the certificate.
    """

    def __init__(self, folder, superlink, node):
        self.folder = folder
        self.port = free_port()
        self.options = {"superlink": list(superlink), "node": list(node)}
        self.started = {}
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            textwrap.dedent(f"""
            [superlink]
            default = "here"

            [superlink.here]
            address = "127.0.0.1:{self.port}"
            root-certificates = "{node[-1]}"
            """)
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR")}
        # Python would otherwise compile all modules in every process.
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        self.environment = kept | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OPENBLAS_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self.started):
            self.kill(name)

    def start(self, name, *command):
        with (self.folder / f"{name}.log").open("a") as log:
            self.started[name] = subprocess.Popen(
                [str(part) for part in command],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_superlink(self):
        options = "--port", self.port, "--disable-runtime-dependency-installation"
        self.start("superlink", "flower-superlink", *options, *self.options["superlink"])
        self.wait(lambda: self._answers(), 240)

    def _answers(self):
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def start_node(self, name, rows, client, *options):
        """A node with these rows: user, item, rating."""
        np.save(self.folder / f"{name}.npy", rows)
        config = f'data="{name}.npy" folder="{name}" client={client}'
        self.start(
            name,
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{self.port}", "--port", free_port()),
            *("--node-config", config),
            *self.options["node"],
            *options,
        )

    def run(self, **config):
        """Submit a run, as with ``flwr run``."""
        settings = [f"{name.replace('_', '-')}={json.dumps(v)}" for name, v in config.items()]
        command = ["flwr", "run", ".", "here"]
        if settings:
            command += ["--run-config", " ".join(settings)]
        self.flwr(*command)

    def flwr(self, *command):
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def kill(self, name):
        """As by ``kill -9``, with all that it has started."""
        process = self.started.pop(name)
        for pid in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def log(self, name):
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def wait(self, condition, seconds):
        """Wait until something is so; fails with all logs if it is not so in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = [f"--- {name}\n{self.log(name)[-3000:]}" for name in self.started]
                raise AssertionError(f"Not within {seconds} s.\n" + "\n".join(logs))
            time.sleep(0.1)

    def wait_for(self, *paths, seconds=900):
        self.wait(lambda: all((self.folder / path).exists() for path in paths), seconds)
