"""Our fits beside installed peers, pair by pair, in one run: ``python -m benchmarks.speed``.

The `speed` commands of the other benchmarks, one after the other: LocALS and its like beside
implicit's ALS, RFRec beside implicit, PMF, BiasedMF and SVDpp beside Surprise and cornac where
``--peers-python`` can import them, LightFR's search beside float32 products, FedMF beside CoLR,
and each method in settings of several kinds. Needs MovieLens (``--data-home`` or FEDRECSK_DATA).
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import centralized, colr, fedals, lightfr, rfrec, worlds


def main(argv=None):
    """Run them all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
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
        (worlds, []),
    ):
        print(f"\n## {' '.join([module.__name__, *arguments[:1]])}\n", flush=True)
        module.main([*arguments, *where])


if __name__ == "__main__":
    main()
