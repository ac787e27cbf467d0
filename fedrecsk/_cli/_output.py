"""What the command line prints: a table that grows, and a progress bar on terminals."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_NAME_WIDTH, _KIND_WIDTH = 15, 12
_SEEN = {
    "sums": "sums of uploads in plaintext",
    "encrypted sums": "encrypted sums of uploads",
    "single uploads": "each client's uploads",
}


class Table:
    """Two columns of words, then numbers. Rows are printed as they come, or at the end where
    progress bars are shown until then.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._widths = [_NAME_WIDTH, _KIND_WIDTH, *(max(9, len(c) + 2) for c in columns[2:])]
        self._waiting: list[str] = []
        self._waits = shows_progress()
        self._print("")
        self.add(*columns)
        self._print("-" * sum(self._widths))

    def add(self, *cells: str) -> None:
        """Add a row."""
        name, kind, *numbers = cells
        line = f"{name:<{_NAME_WIDTH}}{kind:<{_KIND_WIDTH}}"
        widths = self._widths[2:]
        self._print(line + "".join(f"{one:>{w}}" for one, w in zip(numbers, widths, strict=True)))

    def end(self) -> None:
        """Finish the table."""
        self._waits = False
        self._print("\n".join([*self._waiting, ""]))

    def _print(self, line: str) -> None:
        if self._waits:
            self._waiting.append(line)
        else:
            print(line, flush=True)


def print_communication(ledger: Any) -> None:
    """Say what crossed the network."""
    n_clients = len(ledger.client_ids)
    n_rounds = sum(entry["phase"] == "round" for entry in ledger.entries)
    up, down = ledger.bytes_up, ledger.bytes_down
    direct = ledger.bytes_device_to_device
    also = f" {_readable(direct)} from device to device." if direct else ""
    print(
        f"Communication: {_readable(up)} up and {_readable(down)} down in {_counted(n_rounds)} "
        f"with {n_clients:,} clients; {_readable(up / n_clients)} up and "
        f"{_readable(down / n_clients)} down per client.{also}"
    )


def print_privacy(report: Any) -> None:
    """Say what the server sees, and the privacy loss."""
    sees = f"Privacy: the server sees {_SEEN[report.server_sees]}"
    if report.mechanism == "none":
        print(f"{sees}. Without noise, epsilon is infinite.")
        return
    if report.is_central:
        uploads = f"{report.n_uploads:,} upload{'s' * (report.n_uploads != 1)}"
        print(
            f"{sees}, and adds noise before it publishes the model. Epsilon is "
            f"{_plain(report.epsilon)} for all the data of one client, with delta "
            f"{report.delta:g}, over {uploads}, if the catalogue and the scale, here taken from "
            "the data, are public."
        )
        return
    print(
        f"{sees}, with {report.mechanism.title()} noise. Epsilon is "
        f"{_plain(report.epsilon_per_coordinate)} for one coordinate of one upload, and "
        f"{_plain(report.epsilon)} in total: {report.n_coordinates:,} coordinates in "
        f"{report.n_uploads:,} uploads per client."
    )


def _plain(number: float) -> str:
    """Four digits of a small number, a large one in full: 6,728,000 instead of 6.728e+06."""
    return f"{number:.4g}" if number < 1000 else f"{number:,.0f}"


def _counted(n_rounds: int) -> str:
    return "1 round" if n_rounds == 1 else f"{n_rounds:,} rounds"


def _readable(n_bytes: float) -> str:
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = next((p for p in range(len(units)) if n_bytes < 999.5 * 1000**p), len(units) - 1)
    return f"{n_bytes / 1000**power:.3g} {units[power]}"


@contextmanager
def progress(model: Any) -> Iterator[None]:
    """Show a progress bar while the model fits, where that is possible."""
    if not shows_progress():
        yield
        return
    from sklearn.callback import ProgressBar

    model.set_callbacks(ProgressBar())
    try:
        yield
    finally:
        model.set_callbacks()


def shows_progress() -> bool:
    """Whether there are progress bars: on a terminal, if rich is installed."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and importlib.util.find_spec("rich") is not None
