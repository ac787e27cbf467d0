"""LightFR: Zhang et al., TOIS 2023."""

from __future__ import annotations

from sklearn.base import clone

from benchmarks.ddl import CONTENT
from benchmarks.lightfr import LITERAL, SAMPLED, Untrained
from benchmarks.papers._among import METRICS, NEGATIVES
from benchmarks.papers._codes import QuantizedFactors, hamming_or_float, on_a_device
from benchmarks.papers._content import Coded
from benchmarks.papers._optional import optional
from benchmarks.papers._protocols import (
    last_tenth_at_random,
    last_tenth_by_time,
    leave_one_out,
)
from benchmarks.papers._rows import Row, Table, told, untold
from benchmarks.papers.colr import FEDERATION
from fedrecsk import (
    DCF,
    DDL,
    FCF,
    PMF,
    ExplicitFCF,
    FedMF,
    FedRec,
    ImplicitALS,
    ImplicitBPR,
    LightFR,
    Popularity,
    PrivRec,
    SVDpp,
)

RANKS = ("HR@10", "NDCG@10")
OTHER_DATA = ("FilmTrust", "Douban-Movie", "Ciao")
# Table 4: HR@10 and NDCG@10 on ML-1M, FilmTrust, Douban-Movie and Ciao.
TABLE_4 = {
    "PMF": ((0.5124, 0.2768), (0.8704, 0.6610), (0.3011, 0.1678), (0.4636, 0.2434)),
    "SVD++": ((0.5291, 0.2826), (0.8793, 0.6777), (0.3118, 0.1886), (0.4692, 0.2463)),
    "DDL": ((0.5101, 0.2743), (0.8630, 0.6579), (0.2967, 0.1671), (0.4566, 0.2429)),
    "NCF": ((0.5342, 0.2901), (0.8827, 0.6907), (0.3223, 0.2097), (0.4732, 0.2513)),
    "FCF": ((0.4945, 0.2625), (0.8543, 0.6376), (0.2921, 0.1615), (0.4492, 0.2304)),
    "FedMF": ((0.4836, 0.2534), (0.8601, 0.6563), (0.2786, 0.1443), (0.4461, 0.2272)),
    "FedRec": ((0.4893, 0.2612), (0.8503, 0.6304), (0.2832, 0.1593), (0.4474, 0.2301)),
    "MetaMF": ((0.4994, 0.2691), (0.8566, 0.6389), (0.2937, 0.1669), (0.4503, 0.2402)),
    "PrivRec": ((0.4989, 0.2688), (0.8605, 0.6563), (0.2931, 0.1666), (0.4534, 0.2411)),
    "LightFR": ((0.5014, 0.2709), (0.8615, 0.6565), (0.2934, 0.1665), (0.4556, 0.2413)),
}
# Table 6, on ML-1M.
RANDOM, INIT, PARAMETER = (0.2419, 0.1043), (0.3110, 0.1542), (0.4942, 0.2618)
NOT_TOLD = (float("nan"), float("nan"))

ROUNDS = {"n_rounds": 50, "client_fraction": 0.6}
FEDMF = ExplicitFCF(32, **ROUNDS)
VOTES = clone(SAMPLED).set_params(aggregation="parameter", balance_item=0.0)
TUNED_ALS = ImplicitALS(reg=30.0, alpha=4.0, item_bias=False)
# The paper's lengths, rounds and cohorts; all else is ours.
MODELS = {
    "PMF": PMF(32),
    "SVD++": SVDpp(32),
    "FCF": FCF(32, **ROUNDS),
    "FedMF": FEDMF,
    "FedRec": FedRec(32, **ROUNDS),
    "PrivRec": PrivRec(32, **ROUNDS),
    "LightFR": LightFR(),
}
NEGATIVES_AND_ROWS = {"n_negatives": 8, "batch_size": 512}
OPTIONAL = {
    # NeuMF; its other settings were chosen on training rows (python -m benchmarks.ncf choices).
    "NCF": ("fedrecsk.neural", "NCF", {"n_factors": 64, "reg": 8e-3, **NEGATIVES_AND_ROWS}),
    "MetaMF": ("fedrecsk.neural", "MetaMF", {}),
}
OURS = {
    "DCF": Coded(DCF()),
    "DCF, unrated items as 0": Coded(DCF(), negatives=True),
    "DDL, the audience for content": Coded(DDL(**CONTENT), "audience"),
    "DDL, the audience for content, unrated items as 0": Coded(
        DDL(**CONTENT), "audience", negatives=True
    ),
    "FedMF, without biases": ExplicitFCF(32, biases=False, **ROUNDS),
    "LightFR, sampled negatives": SAMPLED,
    "LightFR, the text's settings": LITERAL,
    "implicit ALS, tuned": TUNED_ALS,
    "popularity": Popularity(),
}
ABLATION = {
    "random codes of users and items": (
        QuantizedFactors(PMF(64, n_epochs=1), "random"),
        RANDOM,
    ),
    "random item codes, users fitted": (Untrained(), RANDOM),
    "init: PMF's medians": (QuantizedFactors(PMF(64)), INIT),
    "init: PMF's signs": (QuantizedFactors(PMF(64), "zero"), INIT),
    "init: implicit ALS' medians": (QuantizedFactors(TUNED_ALS), INIT),
    "parameter aggregation": (VOTES, PARAMETER),
    "gradient aggregation": (SAMPLED, TABLE_4["LightFR"][0]),
}

ON_A_DEVICE = ("stored, MB", "sent in a round, MB", "search, CPU us")
STARS = "trained on ratings only, it does not learn which items users choose"
UNKNOWN_PROTOCOL = (
    "the paper's numbers fit no single number of negatives; ours are with 99, all ratings positive"
)
WHY = {
    "PMF": STARS,
    "SVD++": STARS,
    "FedMF": STARS,
    "FedRec": STARS,
    "DCF": STARS,
    "DDL": STARS,
    "DDL, the audience for content": STARS,
    "MetaMF": STARS,
    "init: PMF's medians": STARS,
    "init: PMF's signs": STARS,
    "LightFR, the text's settings": "a lambda of .2 to 1 outweighs the data term of about 1/f",
    "random codes of users and items": "chance is .10 among 100; the paper's row is above it",
    "random item codes, users fitted": "chance is .10 among 100; the paper's row is above it",
}
LOO = "ML-1M leave-one-out, the given 99 negatives, all ratings positive"
TENTHS = (
    "each user's first 80 % of rows for training, its last 10 % for the test; each test row among "
    "n of the items that its user has no row of; the paper does not say which n"
)


def tables():
    """All tables and figures of the paper that have numbers."""
    return [
        Table("Table 4: 80/10/10 of each user's rows by time", TENTHS, _by_time()),
        Table(
            "Table 4: 80/10/10 of each user's rows at random",
            f"{TENTHS}; in random order, because this copy of the data has no times",
            _tenths("1m", last_tenth_at_random),
        ),
        Table("Table 4: the usual leave-one-out files", LOO, _one_out()),
        Table("Table 6: ablation, 80/10/10 by time", TENTHS, _ablation_by_time()),
        Table("Table 6: ablation", LOO, [_ranked(k, *row) for k, row in ABLATION.items()]),
        *_sweeps(),
        Table(
            "Table 5 and Figure 3: a client of Ciao's shape",
            "generated ratings of 7,375 users, 105,096 items and 38 ratings per user; a round is "
            "run; the paper's bytes are those of its formulas, which count bits as bytes; "
            "CPU microseconds on this machine",
            _on_devices(),
        ),
        Table(
            "Figure 1: codes and vectors of 64 entries, by number of items",
            "random codes and float32 vectors, ten best items of one user, CPU microseconds here",
            _by_items(),
        ),
    ]


def _by_time():
    small = _tenths("100k", last_tenth_by_time, NOT_TOLD)
    large = _tenths("1m", last_tenth_by_time, only=("LightFR",))
    others = [
        Row(label, model, _each(TABLE_4[label][k]), data, last_tenth_by_time, why)
        for k, data in enumerate(OTHER_DATA, 1)
        for label, (model, why) in _models(data).items()
    ]
    return small + large + others


def _tenths(data, protocol, paper=None, only=()):
    models = _models(data)
    rows = [
        Row(label, models[label][0], _each(paper or papers[0]), data, protocol, _why(label, models))
        for label, papers in TABLE_4.items()
    ]
    rows += [Row(k, model, _each(NOT_TOLD), data, protocol, _why(k)) for k, model in OURS.items()]
    return [row for row in rows if not only or row.label in only]


def _ablation_by_time():
    return [
        Row(label, model, untold(*METRICS), "100k", last_tenth_by_time)
        for label, (model, _) in ABLATION.items()
    ]


def _each(paper):
    """The paper's two numbers beside ours at every number of negatives."""
    return {
        f"{name}@10, {n} negatives": value
        for n in NEGATIVES
        for name, value in zip(("HR", "NDCG"), paper, strict=True)
    }


def _models(data, **changed):
    """The table's estimators, and why there is none."""
    models = {label: (model, "") for label, model in (MODELS | changed).items()}
    models["DDL"] = Coded(DDL(**CONTENT), f"genres {data}"), ""
    for label, (module, name, settings) in OPTIONAL.items():
        models[label] = optional(module, name, **settings)
    return {label: models[label] for label in TABLE_4}


def _why(label, models=None):
    if models is not None and models[label][0] is None:
        return models[label][1]
    return WHY.get(label, "the paper does not say how many negatives")


def _one_out():
    defaults = {
        "PMF": PMF(),
        "SVD++": SVDpp(),
        "FCF": FCF(),
        "FedRec": FedRec(),
        "PrivRec": PrivRec(),
    }
    models = _models("1m", **defaults)
    rows = [_ranked(label, models[label], papers[0]) for label, papers in TABLE_4.items()]
    ours = OURS | {
        "FedMF of CoLR (positives, sampled negatives)": FedMF(**FEDERATION),
        "implicit ALS, regularization .01": ImplicitALS(reg=0.01, item_bias=False),
        "implicit BPR": ImplicitBPR(),
    }
    return rows + [_ranked(label, model, NOT_TOLD) for label, model in ours.items()]


def _ranked(label, model, paper):
    model, why = model if isinstance(model, tuple) else (model, "")
    why = why or WHY.get(label, UNKNOWN_PROTOCOL)
    return Row(label, model, told(RANKS, paper), "1m", leave_one_out, why)


def _sweeps():
    swept = [
        ("Figure 4: code length", "n_bits", (8, 16, 32, 64, 128)),
        ("Figure 6: ratio of clients", "client_fraction", (0.2, 0.4, 0.6, 0.8, 1.0)),
    ]
    found = [
        Table(name, LOO, [_ranked(f"{key}={v}", LightFR(**{key: v}), NOT_TOLD) for v in values])
        for name, key, values in swept
    ]
    balanced = [
        _ranked(f"lambda={v}", clone(SAMPLED).set_params(balance_user=v, balance_item=v), NOT_TOLD)
        for v in (0.0, 0.003, 0.01, 0.03, 0.2, 0.4, 0.6, 0.8, 1.0)
    ]
    return [*found, Table("Figure 5: lambda", LOO, balanced)]


def _on_devices():
    """The paper's Table 5: (1 + m) rows stored, (38 + m) sent, in its bytes a number."""
    n_items, n_rated = 105_096, 38
    models = {
        "FCF": (FCF(32), 32 * 8, n_rated),
        "FedMF, its sums not encrypted": (ExplicitFCF(32), 32 * 128, n_rated),
        "FedRec": (FedRec(32), 32 * 8, n_rated * 4),
        "PrivRec": (PrivRec(32), 32 * 8, n_rated),
        "LightFR": (LightFR(), 64, n_rated),
        "LightFR, one bit, gradients": (SAMPLED, 64, n_rated),
    }
    rows = [
        Row(label, model, told(ON_A_DEVICE, _formula(n_items, *sizes)), "Ciao's shape", on_a_device)
        for label, (model, *sizes) in models.items()
    ]
    model, why = optional(*OPTIONAL["MetaMF"][:2])
    # No client of it has item vectors to search.
    metrics = untold(*ON_A_DEVICE[:2])
    return [*rows, Row("MetaMF", model, metrics, "Ciao's shape", on_a_device, why)]


def _formula(n_items, row, rated):
    """The paper's bytes stored and sent."""
    return (1 + n_items) * row / 1e6, (rated + n_items) * row / 1e6, float("nan")


def _by_items():
    return [
        Row(
            f"{n_items:,} items",
            Popularity(),
            untold("codes, MB", "float32, MB", "codes, CPU us", "float32, CPU us"),
            str(n_items),
            hamming_or_float,
        )
        for n_items in (1_000, 10_000, 100_000, 1_000_000)
    ] + [
        Row(
            "10,000,000 items",
            None,
            untold("codes, CPU us"),
            "10000000",
            hamming_or_float,
            "2.6 GB of float32 vectors: left out",
        )
    ]
