"""Our fits beside installed peers, pair by pair, in one run: ``python -m benchmarks.speed``.

The `speed` commands of the other benchmarks, one after the other: LocALS and its like beside
implicit's ALS, RFRec beside implicit, PMF, BiasedMF and SVDpp beside Surprise and cornac where they
are installed, LightFR's search beside float32 products. Needs MovieLens under FEDRECSK_DATA.
"""

from __future__ import annotations

from benchmarks import centralized, colr, fedals, lightfr, rfrec


def main():
    """Run them all."""
    for module, command in (
        (fedals, "speed"),
        (rfrec, "speed"),
        (centralized, "speed"),
        (lightfr, "speed"),
        (lightfr, "search"),
        (colr, "speed"),
    ):
        print(f"\n## {module.__name__} {command}\n", flush=True)
        module.main([command])


if __name__ == "__main__":
    main()
