"""The command line: ``fedrecsk``, or ``python -m fedrecsk``.

This file has the options, the methods by name, and the checks that need no data.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fedrecsk
from fedrecsk._utils.parameters import did_you_mean

__all__ = ["main"]

_INTERRUPTED = 130
PUBLISHED = ("100k", "1m", "10m", "20m", "25m", "32m", "latest-small")
PUBLISHED += ("filmtrust", "kuairec", "lastfm")
# The options of load_ratings, beside the columns.
READ = ("sep", "header", "encoding", "comment", "quoted")

# Methods that need torch.
NEURAL = "FederatedModule", "FedNCF", "FedRAP", "GPFedRec", "MetaMF", "NCF", "PFedRec"
_GROUPS = {
    (True, True): "Ratings, federated",
    (True, False): "Ratings, centralised",
    (False, True): "Ranking (implicit feedback), federated",
    (False, False): "Ranking (implicit feedback), centralised",
}

_DESCRIPTION = """\
Fit a federated recommender and compare it with others: accuracy on held-out rows,
recommendations, megabytes sent, and privacy."""

_EXAMPLES = """\
examples:
  %(prog)s                                    ratings that resemble MovieLens-100k, offline
  %(prog)s --data 100k                        MovieLens-100k, downloaded once
  %(prog)s ratings.csv --method RFRec         a file of your own
  %(prog)s --method LocALS                    a ranking method, compared with popularity
  %(prog)s --epsilon 10                       differential privacy for whole users
  %(prog)s --scale 0.04                       local differential privacy
  %(prog)s --set n_factors=40                 any parameter of the method
  %(prog)s --list                             all methods
  %(prog)s serve model.fedrecsk               answer HTTP requests with an exported model
"""


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
    except OSError as error:
        _discard_output()
        # With a broken pipe, as in `fedrecsk | head -1`, the reader has what it wants.
        if not isinstance(error, BrokenPipeError):
            print(f"fedrecsk: the output cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["serve"]:
        from fedrecsk.deployment import serving

        serving.main(arguments[1:])
        return
    options = parse(arguments)
    if options.list:
        print(list_methods())
        return
    # This needs numba, which help and the list of methods do not.
    from fedrecsk.cli import _job

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Ids may have letters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _job.notes()
        try:
            _job.run(options)
        except (ValueError, ImportError, MemoryError) as error:
            options.error(f"{options.method.__name__}: {error}")


def _discard_output() -> None:
    """Let what is still buffered go nowhere, or Python would try to write it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --------------------------------------------------------------------------------- methods


def method_names() -> list[str]:
    """Return the names of all methods."""
    found = [name for name in fedrecsk.__all__ if hasattr(getattr(fedrecsk, name), "fit")]
    return sorted(found, key=str.lower)


def predicts_ratings(method: type) -> bool:
    """Return whether a method predicts ratings; otherwise it ranks items."""
    return method().__sklearn_tags__().target_tags.required


def is_federated(method: type) -> bool:
    """Return whether a method trains by messages between clients and a server."""
    return "federation" in method().get_params(deep=False)


def list_methods() -> str:
    """Describe all methods, a line each."""
    groups: dict[str, list[str]] = {title: [] for title in _GROUPS.values()}
    width = 1 + max(map(len, method_names()))
    for name in method_names():
        method = getattr(fedrecsk, name)
        summary = (inspect.getdoc(method) or "").partition("\n")[0]
        title = _GROUPS[predicts_ratings(method), is_federated(method)]
        groups[title].append(f"  {name:<{width}}{summary}")
    groups["In Python only, with torch: fedrecsk.neural"] = [f"  {name}" for name in NEURAL]
    return "\n\n".join("\n".join([title, *lines]) for title, lines in groups.items())


# ----------------------------------------------------------------------- types of arguments


def _method(text: str) -> type:
    """Find a method by its name, in upper or lower case."""
    by_lower = {known.lower(): known for known in method_names()}
    if text.lower() in by_lower:
        return getattr(fedrecsk, by_lower[text.lower()])
    neural = [name for name in NEURAL if name.lower() == text.lower()]
    if neural:
        raise argparse.ArgumentTypeError(
            f"{neural[0]} needs torch and is not on the command line; use fedrecsk.neural."
            f"{neural[0]} in Python"
        )
    hint = did_you_mean(text, by_lower.values(), "--list shows all")
    raise argparse.ArgumentTypeError(f"there is no method {text!r}; {hint}")


def _assignment(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(
            f"{text}: write NAME=VALUE, for example --set n_factors=40"
        )
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _columns(text: str) -> dict[str, str | int | None]:
    """Read user=NAME,item=NAME."""
    columns: dict[str, str | int | None] = {}
    for pair in text.split(","):
        role, _, column = pair.partition("=")
        if role not in ("user", "item", "rating", "timestamp") or not column:
            raise argparse.ArgumentTypeError(
                f"{pair!r} is none of user=..., item=..., rating=..., timestamp=..."
            )
        if role in columns:
            raise argparse.ArgumentTypeError(f"{pair!r}: the {role} has a column already")
        columns[role] = int(column) if column.isdecimal() else column
        if column == "None":
            columns[role] = None
    return columns


def _checked(kind: type, is_valid: Callable[[Any], bool], hint: str) -> Callable[[str], Any]:
    """Return a type of arguments: numbers that are valid."""

    def number(text):
        value = kind(text)
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"{text} {hint}")
        return value

    # argparse names the type after this.
    number.__name__ = kind.__name__
    return number


_POSITIVE = _checked(float, lambda x: 0 < x < math.inf, "must be positive and finite")
_FINITE = _checked(float, math.isfinite, "must be finite")
_ROUNDS = _checked(int, lambda n: n > 0, "is too few: at least 1 round is needed")
_THREADS = _checked(int, lambda n: n != 0, "is no number of threads; take -1 for all cores")
_SEED = _checked(int, lambda n: 0 <= n < 2**32, f"is not a number from 0 to {2**32 - 1}")

# ----------------------------------------------------------------------------------- parse


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse and check the arguments; errors end the program.

    Of the result, `method` is the class, `parameters` are those given for it, and `error` is the
    parser's method that ends the program.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    options.error = parser.error
    if options.file is not None and options.data is not None:
        parser.error(f"{options.file} and --data {options.data}: give one of them")
    if options.data is None:
        options.data = options.file or "generated"
    for option in ("data", "data_home"):
        if getattr(options, option) == "":
            parser.error(f"--{option.replace('_', '-')} is empty; name one, or leave it out")
    for name, _ in options.read:
        if name not in READ:
            parser.error(f"--read {name}: {did_you_mean(name, READ, 'take ' + ', '.join(READ))}")
    if options.clip is not None and options.scale is None and options.epsilon is None:
        parser.error("--clip alone would add no noise; give --epsilon or --scale too")
    if options.method is None:
        default = "FedEB" if options.scale is None else "RFRec"
        options.method = getattr(fedrecsk, default if options.epsilon is None else "PrivFedEB")
    name = options.method.__name__
    for option, kind, others in (
        ("scale", "local", "RFRec or RFRecF"),
        ("epsilon", "central", "PrivFedEB"),
    ):
        if getattr(options, option) is not None and name == "FedEB":
            parser.error(f"--method FedEB has no {kind} differential privacy; take {others}")
        if getattr(options, option) is not None and not is_federated(options.method):
            parser.error(f"--method {name} is centralised, so --{option} has no clients")
    if options.threshold is not None and predicts_ratings(options.method):
        parser.error(f"--method {name} predicts ratings; --threshold is for ranking methods")
    options.parameters = _parameters(parser, options)
    return options


def _parameters(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, Any]:
    """Return the values given by --set and --rounds, checked by the method."""
    method, given = options.method.__name__, {}
    known = options.method().get_params(deep=False)
    for name, value in options.set:
        if name not in known:
            parser.error(
                f"--set {name}: {method} has no parameter {name!r}; "
                + did_you_mean(name, known, f"it has {', '.join(known)}")
            )
        if name in given:
            parser.error(f"--set {name}=... is given twice; leave one out")
        given[name] = value
    if options.rounds is not None:
        steps = ("n_rounds", "n_epochs", "n_samples")
        step = next((one for one in steps if one in known), None)
        if step is None:
            parser.error(f"--rounds: {method} has no rounds or epochs")
        if step in given:
            parser.error(f"--rounds {options.rounds} and --set {step}=...: give one of them")
        given[step] = options.rounds
    try:
        options.method().set_params(**given)._validate_params()
    except ValueError as error:
        parser.error(str(error))
    return given


def _parser() -> argparse.ArgumentParser:
    is_module = Path(sys.argv[0]).name == "__main__.py"
    parser = argparse.ArgumentParser(
        prog="python -m fedrecsk" if is_module else "fedrecsk",
        usage="%(prog)s [options] [FILE]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"fedrecsk {fedrecsk.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--list", action="store_true", help="list all methods and exit")

    data = parser.add_argument_group("data")
    known = f"generated (default); {', '.join(PUBLISHED)} (downloaded once)"
    known += "; a file of ratings; or - for standard input"
    data.add_argument("file", nargs="?", metavar="FILE", help="the same as --data FILE")
    data.add_argument("--data", metavar="DATA", help=known)
    roles = "which column of a file is what, by name, or by number from 0 without a header: "
    roles += "user=who,item=what,rating=stars,timestamp=None"
    data.add_argument("--columns", type=_columns, metavar="NAMES", help=roles)
    several = {"type": _assignment, "action": "append", "default": [], "metavar": "NAME=VALUE"}
    read = f"how a file is read: {', '.join(READ)} of load_ratings; may be repeated"
    data.add_argument("--read", **several, help=read)
    data.add_argument("--data-home", metavar="FOLDER", help="folder for downloads and copies")
    least = "ranking methods: lowest rating that counts as a positive (default: all above 0)"
    data.add_argument("--threshold", type=_FINITE, metavar="RATING", help=least)

    method = parser.add_argument_group("method")
    default = "any of --list (default: FedEB with a tenth of the clients per round; PrivFedEB with "
    default += "--epsilon; RFRec with --scale)"
    method.add_argument("--method", type=_method, metavar="NAME", help=default)
    steps = "rounds or epochs (default: the method's)"
    method.add_argument("--rounds", type=_ROUNDS, metavar="N", help=steps)
    value = "a parameter of the method; may be repeated"
    method.add_argument("--set", **several, help=value)

    privacy = parser.add_argument_group("differential privacy")
    noise = privacy.add_mutually_exclusive_group()
    central = "noise on the sums of uploads, for whole users at this total epsilon, with delta "
    central += "1e-5 (default: none); generated data then have more users"
    noise.add_argument("--epsilon", type=_POSITIVE, help=central)
    local = "Laplace noise of this scale by each client, on all that it sends (default: none)"
    noise.add_argument("--scale", type=_POSITIVE, help=local)
    bound = "bound on an upload's norm with --epsilon (default: 1), on each coordinate with --scale"
    privacy.add_argument("--clip", type=_POSITIVE, help=f"{bound} (default: 5 times the scale)")

    run = parser.add_argument_group("run")
    threads, seed = "threads (default: all cores)", "of the split and of the method (0)"
    run.add_argument("--n-jobs", type=_THREADS, default=-1, metavar="N", help=threads)
    run.add_argument("--seed", type=_SEED, default=0, metavar="N", help=seed)
    return parser
