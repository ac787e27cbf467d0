"""Measure a deployment on Flower: ``python -m benchmarks.flower rounds|bytes``.

`rounds` prints the seconds of warm rounds of three shops on this machine, in Flower's simulation
runtime (needs ray) and with Flower's processes. `bytes` sends the nodes' connections through a
proxy and compares what crosses it with the ledger.

Data: none needed; it is generated. Needs the extra fedrecsk[flower].
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import joblib
import numpy as np

from benchmarks._command_line import command_line
from fedrecsk import LocALS
from fedrecsk.datasets import make_interactions

EXAMPLE = Path(__file__).parents[1] / "examples" / "deploy_on_flower"
SHOPS = range(3)
METHODS = {
    "LocALS": """
from fedrecsk import LocALS

method = LocALS(n_factors=8, n_rounds={n_rounds}, items=range({n_items}))
""",
    "FedMF with TopK": """
from fedrecsk import Federation, FedMF
from fedrecsk.compression import TopK

method = FedMF(
    n_factors=8,
    n_rounds={n_rounds},
    client_fraction=1.0,
    items=range({n_items}),
    federation=Federation(compression=TopK()),
)
""",
}
LIMIT = 540


ARRANGEMENTS = {
    "simulation": lambda n: simulated(n),
    "processes": lambda n: deployed(n)[0],
}


def rounds(names, n_rounds=8):
    """Print the seconds of each arrangement's rounds."""
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in names:
        run = ARRANGEMENTS[name]
        seconds = [one["seconds"] for one in run(n_rounds).traffic_ if one["kind"] == "round"]
        shown = " ".join(f"{one:.2f}" for one in seconds)
        print(f"{name:20} first {seconds[0]:.2f} s, then median {np.median(seconds[1:]):.2f} s")
        print(f"{'':20} all: {shown}", flush=True)


def bytes_(_):
    """Print what crosses the network beside what the ledger counts."""
    for name, n_items in (("LocALS", 200), ("LocALS", 20_000), ("FedMF with TopK", 20_000)):
        model, proxy = deployed(4, n_items=n_items, method=name)
        entries = [one for one in model.communication_.entries if one["phase"] != "catalogue"]
        counted = {
            "down": sum(one["bytes_down"] for one in entries),
            "up": sum(one["bytes_up"] for one in entries),
        }
        n_messages = len(SHOPS) + sum(one["requests"] for one in model.traffic_)
        print(f"{name}, {n_items} items, {n_messages} messages")
        for way in ("down", "up"):
            sent = sum(one[f"bytes_{way}"] for one in model.traffic_)
            wire, ledger = proxy.bytes[way], counted[way]
            extra = (wire - 1.1 * ledger) / n_messages
            print(
                f"  {way:4} ledger {ledger:>10,}  messages {sent:>10,}  network {wire:>10,} "
                f"= 1.1 ledgers + {extra:,.0f} bytes per message",
                flush=True,
            )


# --------------------------------------------------------------------------- arrangements


def purchases(n_items=200):
    """Made-up purchases of 240 customers."""
    return make_interactions(n_users=240, n_items=n_items, n_interactions=6_000, random_state=0)


def simulated(n_rounds):
    """The server's model after a fit in Flower's simulation runtime."""
    from flwr.simulation import run_simulation

    from fedrecsk.deployment.flower import client_app, server_app

    X = purchases()
    method = LocALS(n_factors=8, n_rounds=n_rounds, items=range(200))
    with tempfile.TemporaryDirectory() as folder:

        def load_data(context):
            shop = int(context.node_config["partition-id"])
            return {"client_id": shop, "X": X[X[:, 0] % 3 == shop]}

        run_simulation(
            server_app(method, n_clients=3, folder=f"{folder}/server", poll=0.01),
            client_app(
                method,
                load_data,
                folder=lambda context: f"{folder}/{context.node_config['partition-id']}",
            ),
            num_supernodes=3,
            backend_config={"client_resources": {"num_cpus": 1}},
        )
        return joblib.load(f"{folder}/server/model.joblib")


def deployed(n_rounds, *, n_items=200, method="LocALS"):
    """The server's model after a fit with real processes, and the proxy between them."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
        text = METHODS[method].format(n_rounds=n_rounds, n_items=n_items)
        (folder / "shops" / "method.py").write_text(text)
        X = purchases(n_items)
        port = free_port()
        config = folder / ".flwr" / "config.toml"
        config.write_text(config.read_text().replace("8000", str(port)))
        starter = Starter(folder)
        stack.callback(starter.stop)
        options = "--insecure", "--port", port, "--disable-runtime-dependency-installation"
        starter.start("flower-superlink", *options)
        wait(lambda: answers(port))
        proxy = stack.enter_context(Proxy(port))
        for shop in SHOPS:
            rows = X[X[:, 0] % 3 == shop]
            np.savetxt(folder / f"shop-{shop}.csv", rows, delimiter=",", fmt="%d")
            starter.start(
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{proxy.port}"),
                *("--port", free_port()),
                *("--node-config", f'data="shop-{shop}.csv" folder="node-{shop}"'),
            )
        starter.start("flwr", "run", ".", "here", "--run-config", "patience=120.0")
        file = folder / "server" / "model.joblib"
        wait(file.exists)
        return joblib.load(file), proxy


class Starter:
    """Starts processes in a folder, and ends them with all that they have started."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / ".flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        # Otherwise every process compiles what it imports.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def start(self, *command):
        """Start a command and leave it alone."""
        self.processes.append(
            subprocess.Popen(
                [str(part) for part in command],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def stop(self):
        """End all."""
        for one in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


class Proxy:
    """Passes connections on to a port of this machine, and counts bytes."""

    def __init__(self, target):
        self.target = target
        self.bytes = {"up": 0, "down": 0}
        self._lock = threading.Lock()

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                node, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                for way in ((node, server, "up"), (server, node, "down")):
                    threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source, target, way):
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                with self._lock:
                    self.bytes[way] += len(content)
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)


def free_port():
    """A port that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(port):
    """Whether somebody listens."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait(condition):
    """Wait until something is so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Not within {LIMIT} s; look at the machine's load.")
        time.sleep(0.05)


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {"rounds": rounds, "bytes": bytes_}
    parser = command_line("flower", __doc__)
    parser.add_argument("command", choices=commands)
    which = "arrangements whose rounds are timed (default: all)"
    names = list(ARRANGEMENTS)
    parser.add_argument("--only", nargs="+", default=names, choices=names, help=which)
    options = parser.parse_args(argv)
    commands[options.command](options.only)


if __name__ == "__main__":
    main()
