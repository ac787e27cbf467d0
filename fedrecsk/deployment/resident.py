"""Keep what a Flower node needs in memory, instead of starting Python for every message.

Flower starts the command ``flwr-clientapp`` for every message, which imports everything anew. Put
this in front of the command that starts a node, and each message gets a copy (a fork) of one
process that has imported everything once::

    python -m fedrecsk.deployment.resident flower-supernode --insecure --superlink ...

Needs flwr, and Linux or macOS.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from fedrecsk._extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = "flwr-clientapp"
# Flower looks for new messages at this interval, in seconds; its default is 1.
INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
# What stands in for the command: it passes its arguments on, and ends when the copy has ended.
STAND_IN = """#!{python} -IS
import json, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({path!r})
line.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
line.recv(1)
"""


def main(command: list[str]) -> int:
    """Run a command for which ``flwr-clientapp`` is kept in memory; returns its exit status.

    Parameters
    ----------
    command : list of str
        Usually ``flower-supernode`` with its options.
    """
    if not command:
        raise SystemExit(
            "Say which command to run: python -m fedrecsk.deployment.resident flower-supernode ..."
        )
    run = _imported()
    with tempfile.TemporaryDirectory(prefix="fedrecsk-") as folder:
        path = f"{folder}/socket"
        stand_in = Path(folder, COMMAND)
        stand_in.write_text(STAND_IN.format(python=sys.executable, path=path))
        stand_in.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(0.2)
            environment = {INTERVAL: "0.02"} | os.environ
            environment["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
            node = subprocess.Popen(command, env=environment)
            signal.signal(signal.SIGTERM, lambda *_: node.terminate())
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _serve(listener, run, node)
    return node.returncode


def _imported() -> Callable[[], None]:
    """What the command runs, with all that it will import."""
    require("flwr", "fedrecsk.deployment.resident")
    for module in ("fedrecsk.deployment.flower", "numba", "sklearn.utils"):
        import_module(module)
    (entry,) = entry_points(group="console_scripts", name=COMMAND)
    return entry.load()


def _serve(listener, run, node):
    """Give each message a copy of this process, until the node ends."""
    copies = set()
    while node.poll() is None:
        copies -= {one for one in copies if os.waitpid(one, os.WNOHANG)[0]}
        try:
            line, _ = listener.accept()
        except TimeoutError:
            continue
        copy = os.fork()
        if copy == 0:
            listener.close()
            _answer(line, run)
        copies.add(copy)
        line.close()


def _answer(line, run):
    """In a copy: run the command with the arguments that were passed on, and end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    line.setblocking(True)
    with line.makefile() as arguments:
        sys.argv = [COMMAND, *json.loads(arguments.readline())]
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        line.close()
        os._exit(status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
