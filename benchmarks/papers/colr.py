"""CoLR and SCoLR: Nguyen et al., WWW 2024."""

from __future__ import annotations

from benchmarks._variants import variant
from benchmarks.encryption import PAPER_TABLE_3
from benchmarks.papers._protocols import SHARES, leave_one_out, leave_one_out_by_round
from benchmarks.papers._rows import Row, Table, told, untold
from benchmarks.papers._uploads import SPECTRA, encrypted, minutes, spectra
from fedrecsk import CoLR, Federation, FedMF, SCoLR
from fedrecsk.compression import LowRank, TopK

RANKS = ("HR@10", "NDCG@10")
# The paper's federation, with our batches and weight decay.
FEDERATION = {
    "n_rounds": 1000,
    "client_fraction": 0.01,
    "federation": Federation(sampling="rotating"),
    "shrinkage": 0.0,
    "averaging": False,
}
# The authors' code.
AUTHORS = FEDERATION | {"batch_size": 256, "reg": 5e-4}
TABLE_4 = {
    2: (0.5784, 0.3258),
    4: (0.5987, 0.3389),
    8: (0.6102, 0.3477),
    16: (0.6206, 0.3563),
    32: (0.6329, 0.3634),
    64: (0.6386, 0.3704),
}
# Table 2: minutes of communication and of computation.
TABLE_2 = {
    "FedMF": (80.43, 169.07),
    "CoLR@1": (1.26, 169.18),
    "CoLR@2": (2.51, 169.21),
    "CoLR@4": (5.03, 169.27),
    "CoLR@8": (10.05, 169.29),
    "CoLR@16": (20.11, 169.30),
    "CoLR@32": (40.21, 169.38),
    "SVD@1": (1.26, 169.49),
    "SVD@2": (2.51, 169.50),
    "SVD@4": (5.03, 169.53),
    "SVD@8": (10.05, 169.59),
    "SVD@16": (20.11, 169.64),
    "SVD@32": (40.21, 169.60),
    "Top-K@1": (2.51, 169.76),
    "Top-K@2": (5.03, 169.79),
    "Top-K@4": (10.05, 169.82),
    "Top-K@8": (20.11, 169.92),
    "Top-K@16": (40.21, 170.14),
}
LOO = "ML-1M leave-one-out, the given 99 negatives, all ratings positive"
PROTOCOL = f"{LOO}; 1000 rounds of 60 clients in turn"
PINTEREST = {"HR@10": 0.8474, "NDCG@10": 0.5179}


def tables():
    """All tables and figures of the paper that have numbers."""
    return [
        Table(
            "Figure 3: the authors' settings (batches of 256, decay 5e-4, rank exponent .5)",
            PROTOCOL,
            _widths_and_ranks(AUTHORS, {"RANK_EXPONENT": 0.5}),
        ),
        Table(
            "Figure 3: our batches of 64, decay .002 and rank exponent .75",
            PROTOCOL,
            _widths_and_ranks(FEDERATION, {}),
        ),
        Table("Table 4 and Figure 5: SCoLR", PROTOCOL, _subsampled()),
        Table("Figure 4: SVD and Top-K at CoLR's payload", PROTOCOL, _compressed()),
        Table(
            "Figure 2: components that hold 95 and 99 % of an upload's energy",
            f"{PROTOCOL}; means over the uploads of the first and the last tenth of the rounds",
            _spectra(),
        ),
        Table("Figure 6: convergence, by share of the rounds", PROTOCOL, _convergence()),
        Table(
            "Table 2: minutes of 1,000 rounds",
            "ML-1M; communication by the paper's formula from the ledger's payloads; computation: "
            "7 times a client's CPU seconds on this machine and 10 s per round",
            _minutes(),
        ),
        Table(
            "Table 3: encryption (Top-K under Paillier: python -m benchmarks.encryption table3)",
            "one secure sum of 60 uploads of random numbers by CKKS, on this machine",
            _encrypted(),
        ),
        Table("Figures 3, 4 and 6 on Pinterest", PROTOCOL, _pinterest()),
    ]


def _widths_and_ranks(setting, extra):
    models = {"FedMF, d = 64": FedMF(64, **setting)}
    models |= {
        f"CoLR, rank {r}": variant(CoLR, **extra | setting, rank=r) for r in (4, 1, 2, 8, 16, 32)
    }
    models |= {f"FedMF, d = {d}": FedMF(d, **setting) for d in (1, 2, 4, 8, 16, 32)}
    return [
        Row(label, model, untold(*RANKS), "1m", leave_one_out) for label, model in models.items()
    ]


def _subsampled():
    return [
        Row(
            f"SCoLR, local rank 1-{r}, {whose}",
            variant(SCoLR, **setting, rank=r),
            told(RANKS, paper),
            "1m",
            leave_one_out,
        )
        for whose, setting in (
            ("authors' settings", AUTHORS | {"RANK_EXPONENT": 0.5}),
            ("ours", FEDERATION),
        )
        for r, paper in TABLE_4.items()
    ]


def _under(compressor, setting=FEDERATION):
    federation = Federation(sampling="rotating", compression=compressor)
    return FedMF(64, **setting | {"federation": federation})


def _compressed():
    models = {f"SVD, rank {r}": _under(LowRank(r)) for r in (1, 4, 16)}
    models |= {f"Top-K, {r}/64": _under(TopK(r / 64)) for r in (1, 4, 16)}
    return [
        Row(label, model, untold(*RANKS), "1m", leave_one_out) for label, model in models.items()
    ]


def _spectra():
    return [
        Row(f"FedMF, d = 64, {whose}", FedMF(64, **setting), untold(*SPECTRA), "1m", spectra)
        for whose, setting in (("authors' settings", AUTHORS), ("ours", FEDERATION))
    ]


def _convergence():
    models = {
        "FedMF, d = 64": FedMF(64, **AUTHORS),
        "CoLR, rank 4": variant(CoLR, **AUTHORS, rank=4, RANK_EXPONENT=0.5),
        "SVD, rank 4": _under(LowRank(4), AUTHORS),
        "Top-K, 4/64": _under(TopK(4 / 64), AUTHORS),
    }
    metrics = [f"HR@10 after {share:.0%} of the rounds" for share in SHARES]
    return [
        Row(label, model, untold(*metrics), "1m", leave_one_out_by_round)
        for label, model in models.items()
    ]


def _minutes():
    return [
        Row(
            label,
            _of(label, AUTHORS),
            told(("communication", "computation", "total"), (sent, work, sent + work)),
            "1m",
            minutes,
        )
        for label, (sent, work) in TABLE_2.items()
    ]


def _of(label, setting):
    kind, _, rank = label.partition("@")
    if kind == "CoLR":
        return variant(CoLR, **setting, rank=int(rank), RANK_EXPONENT=0.5)
    if kind == "SVD":
        return _under(LowRank(int(rank)), setting)
    return _under(TopK(int(rank) / 64), setting) if kind == "Top-K" else FedMF(64, **setting)


def _encrypted():
    metrics = ("client s", "server s", "ciphertext KiB")
    return [
        Row(
            label,
            _of(label, {}),
            told(metrics, paper),
            "random numbers",
            encrypted,
            "seconds are those of this machine",
        )
        for label, paper in PAPER_TABLE_3.items()
        if not label.startswith("Top-K")
    ]


def _pinterest():
    return [
        Row("FedMF, d = 16", FedMF(16, **AUTHORS), PINTEREST, "Pinterest", leave_one_out),
        Row(
            "CoLR, rank 1",
            variant(CoLR, **AUTHORS, rank=1, RANK_EXPONENT=0.5, n_factors=16),
            {"HR@10": 0.8103, "NDCG@10": 0.4850},
            "Pinterest",
            leave_one_out,
        ),
    ]
