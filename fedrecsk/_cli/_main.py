"""From arguments to the job, and from exceptions to messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

from fedrecsk._cli import _methods, _parser

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
            _dispatch(arguments)
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


def _dispatch(arguments: list[str]) -> None:
    if arguments[:1] == ["warmup"]:
        from fedrecsk import _warmup

        _warmup.main(arguments[1:], prog=f"{_parser.program()} warmup")
        return
    options = _parser.parse(arguments)
    if options.list:
        print(_methods.listed())
        return
    from fedrecsk._cli import _job

    _escape_what_cannot_be_shown()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            _job.run(options)
        except (ValueError, ImportError, MemoryError) as error:
            options.error(f"{options.method.__name__}: {error}")


def _show_warning(message, *args, **kwargs) -> None:
    from fedrecsk._cli import _data

    print(f"Note: {_data.with_options(str(message))}", file=sys.stderr)


def _escape_what_cannot_be_shown() -> None:
    """Print ids with letters that the terminal's encoding lacks as escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let what is still buffered go nowhere, or Python would try to write it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
