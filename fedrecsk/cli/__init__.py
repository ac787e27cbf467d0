"""The command line: ``fedrecsk``, or ``python -m fedrecsk``."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

from fedrecsk.cli import _options

__all__ = ["main"]

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, default=None
        The arguments. None: those of the process.

    Returns
    -------
    code : int
        0 if all went well, 1 if the output could not be written, 130 after an interrupt. Wrong
        arguments and data raise SystemExit(2) after a message.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            _run(arguments)
        finally:
            # Here, and not when Python ends, a full disk or a closed pipe can be handled.
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # As in `fedrecsk | head -1`: the reader has what it wants.
        _discard_output()
        return 1
    except OSError as error:
        _discard_output()
        print(f"fedrecsk: the output cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["serve"]:
        from fedrecsk.deployment import serving

        serving.main(arguments[1:])
        return
    options = _options.parse(arguments)
    if options.list:
        print(_options.list_methods())
        return
    # This needs numba, which help and the list of methods do not.
    from fedrecsk.cli import _job

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Ids may have letters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _job.show_warning
        try:
            _job.run(options)
        except (ValueError, ImportError, MemoryError) as error:
            options.error(f"{options.method.__name__}: {error}")


def _discard_output() -> None:
    """Let what is still buffered go nowhere, or Python would try to write it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
