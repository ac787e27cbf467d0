"""RFRec and RFRecF: Liu et al., CIKM 2024."""

from __future__ import annotations

from sklearn.base import clone

from benchmarks._variants import variant
from benchmarks.papers._optional import optional
from benchmarks.papers._protocols import MOST_MESSAGES, messages_to_converge, rating_errors
from benchmarks.papers._rows import Row, Table, told, untold
from fedrecsk import (
    PMF,
    BiasOnly,
    ExplicitFCF,
    Federation,
    FedFast,
    FedRec,
    RFRec,
    RFRecF,
    SemiDFEGL,
    SVDpp,
)
from fedrecsk.privacy import LaplaceMechanism

ERRORS = ("MAE", "RMSE")
DATA = ("100k", "1m", "KuaiRec", "Jester")
METHODS = {"RFRec": RFRec, "RFRecF": RFRecF}
LITERAL_GD = (
    "the paper's text: gradient descent, linear link, no biases; it diverges or stays above biases "
    "alone, and the authors' code does something else"
)
STALE = "clients without a connection fall behind; the paper loses far less"

# Table 2: each method's MAE and RMSE on the four data sets.
TABLE_2 = {
    "PMF": ((0.7341, 0.9318), (0.6878, 0.8762), (0.3814, 0.7275), (0.8062, 1.0440)),
    "SVD++": ((0.7289, 0.9273), (0.6924, 0.8863), (0.3760, 0.7145), (0.8006, 1.0430)),
    "FCF": ((0.7602, 0.9614), (0.7014, 0.8874), (0.4861, 0.7569), (0.8175, 1.0718)),
    "FedRec": ((0.7549, 0.9832), (0.7289, 0.9161), (0.5949, 0.7969), (0.8473, 1.0755)),
    "FedFast": ((0.7545, 0.9403), (0.7056, 0.8860), (0.4678, 0.7387), (0.8321, 1.0982)),
    "SemiDFEGL": ((0.7583, 0.9645), (0.7130, 0.8937), (0.4798, 0.7511), (0.8275, 1.0726)),
    "FedNCF": ((0.7562, 0.9612), (0.7090, 0.8966), (0.3934, 0.7474), (0.8330, 1.0712)),
    "RFRec": ((0.7237, 0.9325), (0.6937, 0.8831), (0.3684, 0.7163), (0.8118, 1.0447)),
    "RFRecF": ((0.7317, 0.9385), (0.6906, 0.8840), (0.3781, 0.7280), (0.8086, 1.0565)),
    "biases alone": ((float("nan"), float("nan")),) * 4,
}
# Chosen on validation rows (python -m benchmarks.rfrec fedfast); the defaults are for positives.
FEDFAST = FedFast(loss="squared", learning_rate=0.05, reg=0.02)
MODELS = {
    "PMF": PMF(),
    "SVD++": SVDpp(),
    "FCF": ExplicitFCF(),
    "FedRec": FedRec(),
    "FedFast": FEDFAST,
    "SemiDFEGL": SemiDFEGL(),
    "RFRec": RFRec(),
    "RFRecF": RFRecF(),
    "biases alone": BiasOnly(),
}

# FedNCF's defaults are for positives.
RATINGS = {"loss": "squared", "learning_rate": 0.001, "n_rounds": 200}
OPTIONAL = {
    "SemiDFEGL": ("fedrecsk", "SemiDFEGL", {}),
    "FedNCF": (
        "fedrecsk.neural",
        "FedNCF",
        {"loss": "squared", "learning_rate": 0.001, "n_rounds": 200},
    ),
}

# Table 3, on ML-1M: MAE and RMSE by share of dropped devices.
DROPPED = (0.0, 0.2, 0.5, 0.8, 0.9)
TABLE_3 = {
    "RFRec": (
        (0.6937, 0.8831),
        (0.6958, 0.8870),
        (0.7083, 0.8956),
        (0.7090, 0.8966),
        (0.7117, 0.9001),
    ),
    "RFRecF": (
        (0.6906, 0.8840),
        (0.6974, 0.8891),
        (0.7017, 0.9005),
        (0.7038, 0.9048),
        (0.7064, 0.9057),
    ),
}

# Table 4: alpha, and RMSE at lambda = 5, 10, 20, 40.
COUPLINGS = (5, 10, 20, 40)
SENSITIVITY = {
    "RFRec": {
        0.1: (0.8912, 0.8948, 0.8963, 0.9036),
        0.05: (0.8957, 0.8846, 0.8869, 0.8887),
        0.025: (0.9057, 0.8928, 0.8897, 0.8983),
        0.0125: (0.8895, 0.8870, 0.8891, 0.8920),
    },
    "RFRecF": {
        0.1: (0.9169, 0.9035, 0.9066, 0.9139),
        0.05: (0.9254, 0.9108, 0.8923, 0.9070),
        0.025: (0.9101, 0.8830, 0.8856, 0.8908),
        0.0125: (1.0491, 0.9588, 0.9102, 0.8992),
    },
}
BEST_STEP = {"RFRec": 0.05, "RFRecF": 0.025}


def printed(name, rate, coupling, raw=False):
    """The algorithm of the paper's text, with its settings.

    Ratings are scaled to [0, 1], as by the authors' code. With `raw` they are not: their range is
    taken to be 0 to 5, and the step is 5 times, the penalties a fifth and the initial vectors a
    fifth in their squares, which is gradient descent on the ratings themselves with the vectors
    divided by the root of 5.
    """
    by = 5.0 if raw else 1.0
    settings = {
        "n_factors": 20,
        "n_rounds": 100,
        "learning_rate": rate * by,
        "prox": coupling / by,
        "reg_user": 0.1 / by,
        "reg_item": 0.0,
        "REG_POWER": 0.0,
        "FEW_RATINGS": 0.0,
        "INIT_STD": 0.01 / by**0.5,
        "optimizer": "gd",
        "LINK": "identity",
        "biases": False,
        "aggregation": "clients",
        "rating_scale": (0, 5) if raw else None,
    }
    if name == "RFRecF":
        settings["aggregation_probability"] = 0.5
    return variant(METHODS[name], **settings)


def tables():
    """All tables and figures of the paper that have numbers."""
    split = "80/20 random, one user per client, defaults"
    return [
        Table("Table 2: accuracy", split, _accuracy()),
        Table("Table 3: dropped devices, uploads lost", split, _uploads_lost()),
        Table(
            "Table 3: dropped devices, no connection (the paper's section 3.3)",
            f"{split}; clients continue with the last mean that they received; ML-1M with "
            'aggregation="holders", because "clients" needs more than 2 GiB there',
            _no_connection(),
        ),
        Table("Table 4: the printed algorithm", f"{split}, but for the paper's settings", _text()),
        Table("Table 4: ours at the same multiples of the optimum", split, _sensitivity()),
        Table("Section 4.6: the coin", split, _coin()),
        Table(f"Figure 2: messages to convergence, of {MOST_MESSAGES}", split, _messages()),
        Table("Rounds of early stopping", split, _early()),
        Table("Figure 3: ablation", split, _ablation()),
        Table("Figure 4: privacy budget", split, _privacy()),
    ]


def _accuracy():
    models = {label: (model, "") for label, model in MODELS.items()}
    models |= {
        label: optional(module, name, **settings)
        for label, (module, name, settings) in OPTIONAL.items()
    }
    return [
        Row(label, models[label][0], told(ERRORS, paper), data, rating_errors, models[label][1])
        for label, papers in TABLE_2.items()
        for data, paper in zip(DATA, papers, strict=True)
    ]


def _uploads_lost():
    return [
        Row(
            f"{label}, dropout {share:.0%}",
            METHODS[label](federation=Federation(dropout=share)),
            told(ERRORS, paper),
            "1m",
            rating_errors,
        )
        for label, papers in TABLE_3.items()
        for share, paper in zip(DROPPED, papers, strict=True)
    ]


def _no_connection():
    large = [
        Row(
            f'{label}, "holders", dropout {share:.0%}',
            METHODS[label](aggregation="holders", federation=_stale(share)),
            told(ERRORS, paper),
            "1m",
            rating_errors,
            STALE,
        )
        for label, papers in TABLE_3.items()
        for share, paper in zip(DROPPED, papers, strict=True)
    ]
    small = [
        Row(
            f'{label}, "{aggregation}", dropout {share:.0%}',
            METHODS[label](aggregation=aggregation, federation=_stale(share)),
            untold(*ERRORS),
            "100k",
            rating_errors,
        )
        for label, aggregation in (
            ("RFRec", "clients"),
            ("RFRec", "holders"),
            ("RFRecF", "holders"),
        )
        for share in DROPPED
    ]
    refused = Row(
        'RFRec, "clients"',
        None,
        untold(*ERRORS),
        "1m",
        rating_errors,
        "exact simulation would need more than 2 GiB for 6,040 item matrices; ML-100k has this row",
    )
    return [*large, refused, *small]


def _stale(share):
    return Federation(dropout=share, dropout_mode="stale")


def _text():
    scaled = [
        Row(
            f"{label} as printed, ratings in [0, 1], alpha {rate}, lambda {coupling}",
            printed(label, rate, coupling),
            {"RMSE": paper},
            "1m",
            rating_errors,
            LITERAL_GD,
        )
        for label in METHODS
        for rate, papers in SENSITIVITY[label].items()
        for coupling, paper in zip(COUPLINGS, papers, strict=True)
    ]
    raw = [
        Row(
            f"{label} as printed, ratings as they are, alpha {rate}, lambda 10",
            printed(label, rate, 10, raw=True),
            {"RMSE": papers[1]},
            "1m",
            rating_errors,
            LITERAL_GD,
        )
        for label in METHODS
        for rate, papers in SENSITIVITY[label].items()
    ]
    small = [
        Row(
            f"{label} as printed, ratings in [0, 1], alpha {rate}, lambda 10",
            printed(label, rate, 10),
            {"RMSE": TABLE_2[label][0][1]},
            "100k",
            rating_errors,
            LITERAL_GD,
        )
        for label in METHODS
        for rate in (0.05, 0.025, 0.0125)
    ]
    return scaled + raw + small


def _sensitivity():
    return [
        Row(
            f"{label}, alpha {rate / BEST_STEP[label]:g} times, lambda {coupling / 10:g} times",
            Estimator(
                learning_rate=Estimator().learning_rate * rate / BEST_STEP[label],
                prox=Estimator().prox * coupling / 10,
            ),
            {"RMSE": paper},
            "1m",
            rating_errors,
        )
        for label, Estimator in METHODS.items()
        for rate, papers in SENSITIVITY[label].items()
        for coupling, paper in zip(COUPLINGS, papers, strict=True)
    ]


def _coin():
    return [
        Row(
            f"RFRecF, p = {p}",
            RFRecF(aggregation_probability=p),
            untold("RMSE"),
            "1m",
            rating_errors,
        )
        for p in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]


def _messages():
    models = {
        "FCF": ExplicitFCF(n_rounds=1000),
        "FedFast": clone(FEDFAST).set_params(n_rounds=1000),
        "RFRec": RFRec(n_rounds=1000),
        "RFRecF": RFRecF(n_rounds=1000),
    }
    return [
        Row(label, model, untold("paper's criterion", "RMSE within 1%"), data, messages_to_converge)
        for data in ("100k", "1m")
        for label, model in models.items()
    ]


def _early():
    return [
        Row(
            f"{label}, early stopping",
            Estimator(n_rounds=1000, early_stopping=True),
            untold("rounds", "RMSE"),
            "100k",
            rating_errors,
        )
        for label, Estimator in METHODS.items()
    ]


def _ablation():
    parts = {
        "whole": {},
        "w/o regulariser": {"prox": 0.0},
        "w/o penalty on users": {"reg_user": 0.0},
        "w/o every penalty (ours)": {"reg_user": 0.0, "reg_item": 0.0, "reg_bias": 0.0},
    }
    return [
        Row(f"{label}, {what}", Estimator(**changed), untold("RMSE"), data, rating_errors)
        for data in DATA
        for label, Estimator in METHODS.items()
        for what, changed in parts.items()
    ]


def _privacy():
    return [
        Row(
            f"{label}, clip {clip}, scale {scale} (epsilon {2 * clip / scale:g} each)",
            Estimator(
                rating_scale=(1, 5),
                aggregation="clients",
                federation=Federation(local_dp=LaplaceMechanism(clip=clip, scale=scale)),
            ),
            untold("RMSE"),
            "1m",
            rating_errors,
        )
        for label, Estimator in METHODS.items()
        for clip in (0.1, 0.2, 0.4)
        for scale in (0.02, 0.04, 0.08)
    ]
