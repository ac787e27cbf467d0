"""The command line that the benchmarks share: each option says what it is for."""

from __future__ import annotations

import argparse
import os
import sys
from typing import ClassVar

# Help of options that several benchmarks have.
HELP = {
    "--clients": "number of clients to attack",
    "--curve": "print precision by round instead of the tables",
    "--data": "MovieLens data sets",
    "--data-home": "folder with the data (default: the environment variable FEDRECSK_DATA)",
    "--epochs": "epochs of each model",
    "--factors": "numbers of factors",
    "--methods": "methods to run",
    "--n-jobs": "threads",
    "--n-samples": "number of Gibbs samples",
    "--only": "models to run (default: all)",
    "--output": "file of the figure",
    "--peers-python": "Python that can import the peers (default: PEERS_PYTHON, else this one)",
    "--ranks": "ranks to try",
    "--repeats": "repetitions of each timing",
    "--results": "folder of finished runs, which are not run again",
    "--rounds": "number of rounds",
    "--rows": "number of ratings to generate",
    "--schemes": "encryption schemes",
    "--seed": "seed of the split and the models",
    "--seeds": "number of splits or of runs to average",
    "--settings": "settings to run",
    "--sizes": "numbers of ratings",
}
# From the environment, so that no recorded command names a folder of one machine.
DEFAULTS = {"--peers-python": os.environ.get("PEERS_PYTHON", sys.executable)}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that knows the help of common options, and keeps what it has parsed."""

    options: ClassVar[dict] = {}

    def parse_args(self, *arguments, **known):
        """Parse the options, and keep them for the record."""
        options = super().parse_args(*arguments, **known)
        Parser.options = vars(options).copy()
        return options

    def add_argument(self, *names, **arguments):
        """Add an argument with its help."""
        if names == ("command",):
            commands = arguments["choices"].items()
            lines = [f"{name}: {(one.__doc__ or '').split('.')[0]}" for name, one in commands]
            arguments.setdefault("help", "; ".join(lines).replace("%", "%%"))
        if names[0] in HELP:
            arguments.setdefault("help", HELP[names[0]])
        if names[0] in DEFAULTS:
            arguments.setdefault("default", DEFAULTS[names[0]])
        if len(arguments.get("choices") or ()) > 3 and names != ("command",):
            known = ", ".join(map(str, arguments["choices"])).replace("%", "%%")
            arguments.setdefault("metavar", names[0].lstrip("-").upper())
            arguments["help"] = f"{arguments.get('help', '')}; of: {known}"
        return super().add_argument(*names, **arguments)


def command_line(module, description):
    """The parser of a benchmark.

    Parameters
    ----------
    module : str
        Name of the benchmark.
    description : str
        Docstring of its module. It says what is measured, and on which data.

    Returns
    -------
    Parser
    """
    return Parser(
        prog=f"python -m benchmarks.{module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
