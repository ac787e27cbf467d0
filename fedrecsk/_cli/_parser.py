"""The options, and the checks that need no data."""

from __future__ import annotations

import argparse
import ast
import math
import sys
from pathlib import Path

from fedrecsk._cli import _data, _methods
from fedrecsk._version import __version__

_LARGEST_SEED = 2**32 - 1

_DESCRIPTION = """\
Fit a federated recommender and compare it with others: accuracy on held-out rows,
recommendations, megabytes sent, and privacy."""

_EXAMPLES = """\
examples:
  %(prog)s                                    ratings that resemble MovieLens-100k, offline
  %(prog)s --data 100k                        MovieLens-100k, downloaded once
  %(prog)s --data ratings.csv --method RFRec  a file of your own
  %(prog)s --method LocALS                    a ranking method, compared with popularity
  %(prog)s --epsilon 10                       differential privacy for whole users
  %(prog)s --scale 0.04                       local differential privacy
  %(prog)s --set n_factors=40                 any parameter of the method
  %(prog)s --list                             all methods
  %(prog)s warmup                             compile all methods ahead of time
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse and check the arguments; errors end the program.

    Returns
    -------
    options : Namespace
        `method` is the class; `error` is the parser's method that ends the program.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    options.error = parser.error
    if options.scale is not None and options.epsilon is not None:
        parser.error(
            "--scale and --epsilon: take one of them, noise by each client or noise on the sums"
        )
    if options.clip is not None and options.scale is None and options.epsilon is None:
        parser.error("--clip alone would add no noise; give --epsilon or --scale too")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1 round is needed")
    if options.n_jobs == 0:
        parser.error("--n-jobs 0: give a number of threads, or -1 for all cores")
    if not 0 <= options.seed <= _LARGEST_SEED:
        parser.error(f"--seed {options.seed}: give a number from 0 to {_LARGEST_SEED}")
    for name in ("clip", "scale", "epsilon"):
        number = getattr(options, name)
        if number is not None and not (number > 0 and math.isfinite(number)):
            parser.error(f"--{name} {number:g} must be positive and finite")
    if options.threshold is not None and not math.isfinite(options.threshold):
        parser.error(f"--threshold {options.threshold:g} must be finite")
    name = options.method or _default(options)
    try:
        options.method = _methods.find(name)
    except ValueError as error:
        parser.error(f"--method {name}: {error}")
    options.parameters = _parameters(parser, options)
    _check_method(parser, options)
    return options


def _default(options: argparse.Namespace) -> str:
    """The method if none is named."""
    if options.epsilon is not None:
        return "PrivFedEB"
    return "FedEB" if options.scale is None else "RFRec"


def program() -> str:
    """How the command line was called."""
    is_module = Path(sys.argv[0]).name == "__main__.py"
    return "python -m fedrecsk" if is_module else "fedrecsk"


def _columns(text: str) -> dict[str, str | int]:
    """Read user=NAME,item=NAME."""
    columns: dict[str, str | int] = {}
    for pair in text.split(","):
        role, _, column = pair.partition("=")
        if role not in ("user", "item", "rating", "timestamp") or not column:
            raise argparse.ArgumentTypeError(
                f"{pair!r} is none of user=..., item=..., rating=..., timestamp=..."
            )
        columns[role] = int(column) if column.isdecimal() else column
    return columns


def _check_method(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    name = options.method.__name__
    if options.scale is not None and name == "FedEB":
        parser.error("--method FedEB has no local differential privacy; take RFRec or RFRecF")
    if options.epsilon is not None and name == "FedEB":
        parser.error("--method FedEB has no central differential privacy; take PrivFedEB")
    if not _methods.is_federated(options.method):
        for option in ("scale", "epsilon"):
            if getattr(options, option) is not None:
                parser.error(f"--method {name} is centralised, so --{option} has no clients")
    if options.threshold is not None and _methods.predicts_ratings(options.method):
        parser.error(f"--method {name} predicts ratings; --threshold is for ranking methods")


def _parameters(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict:
    """The values given by --set and --rounds, checked by the method."""
    known = options.method().get_params(deep=False)
    given: dict = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            parser.error(f"--set {text}: write NAME=VALUE, for example --set n_factors=40")
        if name not in known:
            parser.error(
                f"--set {text}: {options.method.__name__} has no parameter {name!r}; it has "
                f"{', '.join(known)}"
            )
        try:
            given[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[name] = value
    if options.rounds is not None:
        steps = ("n_rounds", "n_epochs", "n_iterations", "n_samples")
        step = next((one for one in steps if one in known), None)
        if step is None:
            parser.error(f"--rounds: {options.method.__name__} has no rounds or epochs")
        given[step] = options.rounds
    try:
        options.method().set_params(**given)._validate_params()
    except ValueError as error:
        parser.error(str(error))
    return given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program(),
        usage="%(prog)s [options]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fedrecsk {__version__}")
    parser.add_argument("--list", action="store_true", help="list all methods and exit")

    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        default="generated",
        metavar="DATA",
        help=f"generated (default); {', '.join(_data.PUBLISHED)} (downloaded once); a file of "
        "ratings; or - for standard input",
    )
    data.add_argument(
        "--columns",
        type=_columns,
        metavar="NAMES",
        help="which column of a file is what, by name, or by number from 0 without a header: "
        "user=who,item=what,rating=stars,timestamp=date",
    )
    data.add_argument("--data-home", metavar="FOLDER", help="folder for downloads and copies")
    data.add_argument(
        "--threshold",
        type=float,
        metavar="RATING",
        help="ranking methods: lowest rating that counts as a positive (default: all do)",
    )

    method = parser.add_argument_group("method")
    method.add_argument(
        "--method",
        metavar="NAME",
        help="any of --list (default: FedEB with a tenth of the clients per round; PrivFedEB with "
        "--epsilon; RFRec with --scale)",
    )
    method.add_argument(
        "--rounds", type=int, metavar="N", help="rounds or epochs (default: the method's)"
    )
    method.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the method; may be repeated",
    )

    privacy = parser.add_argument_group("differential privacy")
    privacy.add_argument(
        "--epsilon",
        type=float,
        help="noise on the sums of uploads, for whole users at this total epsilon, with delta "
        "1e-5 (default: none); generated data then have more users",
    )
    privacy.add_argument(
        "--scale",
        type=float,
        help="Laplace noise of this scale by each client, on all that it sends (default: none)",
    )
    privacy.add_argument(
        "--clip",
        type=float,
        help="bound on an upload's norm with --epsilon (default: 1), on each coordinate with "
        "--scale (default: 5 times the scale)",
    )

    run = parser.add_argument_group("run")
    run.add_argument(
        "--n-jobs", type=int, default=-1, metavar="N", help="threads (default: all cores)"
    )
    run.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the split and of the method (0)"
    )
    return parser
