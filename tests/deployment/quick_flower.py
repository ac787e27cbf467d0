"""Flower's commands of a node, with less waiting: ``python quick_flower.py COMMAND OPTIONS``.

A node looks for messages ten times a second, not every 3 seconds. Its apps are still processes of
their own that know nothing of one another, but they are forked from one that has imported all
modules.
"""

import json
import os
import signal
import sys
import time
from types import SimpleNamespace

from flwr.supernode.cli import flower_supernode, flwr_clientapp


def supernode():
    from flwr.supernode import start_client_internal

    pause = time.sleep
    quick = SimpleNamespace(sleep=lambda seconds: pause(min(seconds, 0.1)))
    start_client_internal.time = quick
    flower_supernode()


def superexec():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        fork_apps(os.fdopen(reading))
        os._exit(0)
    os.close(reading)

    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    def start(command):
        assert command[0] == "flwr-clientapp", command
        os.write(writing, json.dumps(command).encode() + b"\n")

    subprocess_executor.subprocess = SimpleNamespace(Popen=start)
    flower_superexec()


def fork_apps(commands):
    """Fork an app for each line, until the writer has ended."""
    import fedrecsk.deployment.flower
    import fedrecsk.federated._rfrec_kernels  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for command in commands:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.argv = json.loads(command)
            try:
                flwr_clientapp()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)


if __name__ == "__main__":
    command = {"flower-supernode": supernode, "flower-superexec": superexec}[sys.argv.pop(1)]
    command()
