"""Compare our fits with installed peers in one run: ``python -m benchmarks.speed``.

Runs the `speed` commands of the other benchmarks, one after the other: LocALS and its variants
with implicit's ALS; RFRec with implicit; PMF, BiasedMF and SVDpp with Surprise and cornac, if
``--peers-python`` can import them; LightFR's search with float32 products; FedMF with CoLR; and
each method in several settings.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA.
"""

from __future__ import annotations

import sys

from benchmarks import centralized, colr, fedals, lightfr, rfrec, settings
from benchmarks._command_line import command_line


def main(argv=None):
    """Run them all."""
    parser = command_line("speed", __doc__)
    parser.add_argument("--data-home")
    parser.add_argument("--peers-python", default=sys.executable)
    options = parser.parse_args(argv)
    where = [] if options.data_home is None else ["--data-home", options.data_home]
    for module, arguments in (
        (fedals, ["speed"]),
        (rfrec, ["speed"]),
        (centralized, ["speed", "--peers-python", options.peers_python]),
        (lightfr, ["speed"]),
        (lightfr, ["search"]),
        (colr, ["speed"]),
        (settings, []),
    ):
        print(f"\n## {' '.join([module.__name__, *arguments[:1]])}\n", flush=True)
        module.main([*arguments, *where])


if __name__ == "__main__":
    main()
