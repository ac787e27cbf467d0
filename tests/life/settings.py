"""The settings in which models live: axes, what cannot be, and settings that cover all pairs.

A program has one setting, one value of each axis. All is small: a dozen users and three rounds.
"""

from __future__ import annotations

import itertools
import random
import uuid
from importlib.util import find_spec

import numpy as np
import pandas as pd

from fedrecsk import (
    EASE,
    FCF,
    BiasedMF,
    FedEASE,
    FedEB,
    Federation,
    FedItemKNN,
    FedMF,
    FedSpectral,
    ImplicitALS,
    LightFR,
    LocALS,
    PrivFedEB,
    RFRec,
    RFRecF,
)
from fedrecsk.aggregation import NormClipping
from fedrecsk.compression import Quantization
from fedrecsk.privacy import CKKS, CentralDP, SecAggPlus
from fedrecsk.protocol import Asynchronous, DeviceProfile, Synchronous
from fedrecsk.selection import FederatedSearch

N_USERS, N_ITEMS = 12, 8  # in the first fit
MOST_USERS, MOST_ITEMS = 24, 12  # that may ever come
N_SILOS = 6
CATALOGUE = range(10)  # where it is given

METHODS = {
    "FedEASE": FedEASE(reg=2.0),
    "FedSpectral": FedSpectral(n_factors=4),
    "FedItemKNN": FedItemKNN(n_neighbors=4),
    "LocALS": LocALS(n_factors=3),
    "FCF": FCF(n_factors=3),
    "FedMF": FedMF(n_factors=3),
    "RFRec": RFRec(n_factors=3, optimizer="gd"),
    "RFRecF": RFRecF(n_factors=3, optimizer="gd"),
    "FedEB": FedEB(n_factors=3, learning_rate=1.0),
    "PrivFedEB": PrivFedEB(n_factors=3, audiences=True),
    "LightFR": LightFR(n_bits=4),
    "EASE": EASE(reg=2.0),
    "ImplicitALS": ImplicitALS(n_factors=3, n_epochs=3),
    "BiasedMF": BiasedMF(n_factors=3, n_epochs=3),
}
# Stands for the federated methods of fedrecsk.neural, which need torch.
if find_spec("torch"):
    from fedrecsk.neural import PFedRec

    METHODS["PFedRec"] = PFedRec(n_factors=3)
SUMS = ("FedEASE", "FedSpectral", "FedItemKNN")
CENTRAL = ("EASE", "ImplicitALS", "BiasedMF")
RATES = ("RFRec", "RFRecF", "FedEB", "PrivFedEB", "LightFR", "BiasedMF")

FEDERATIONS = {
    "plain": {},
    "SecAggPlus": {"secure_aggregation": SecAggPlus()},
    "CKKS": {"secure_aggregation": CKKS()},
    "int8": {"compression": Quantization("int8")},
    # So little noise that models can be compared.
    "noise by the server": {"central_dp": CentralDP(3.0, noise_multiplier=1e-6)},
    "noise by clients": {"central_dp": CentralDP(3.0, noise_multiplier=1e-6, noise="clients")},
    "noise for users": {"central_dp": CentralDP(3.0, noise_multiplier=1e-6, unit="user")},
    "NormClipping": {"aggregator": NormClipping()},
}
# When rounds end, by a simulated clock.
SCHEDULES = {"deadline": Synchronous(15), "asynchronous": Asynchronous(0.5)}
DEVICES = DeviceProfile(speed=1.0)
# Which items a client has must not show in what it sends.
WHOLE = {"upload": "all"}
AXES = {
    "method": tuple(METHODS),
    "ids": ("int", "large int", "str", "mixed widths", "categories", "UUID", "big-endian"),
    "rows": ("array", "frame", "Arrow", "sparse"),
    "clients": ("one a user", "silos", "growing silos", "users at two silos"),
    "takes part": ("all", "cohorts", "dropout", "deadline", "asynchronous"),
    "federation": tuple(FEDERATIONS),
    "where": ("here", "deployed", "Dask"),
    "known": ("nothing", "item features", "user features", "times"),
    "catalogue": ("derived", "given"),
}
PLAIN = {axis: values[0] for axis, values in AXES.items()}


def can_be(setting):
    """Return whether there is such a setting: rows of this kind can hold such ids, and so on."""
    method, ids, rows = (setting[axis] for axis in ("method", "ids", "rows"))
    parameters = METHODS[method].get_params()
    needs = {"item features": "item_features", "user features": "user_features"}
    wanted = needs.get(setting["known"], "timestamps" if setting["known"] == "times" else None)
    if wanted is not None and wanted not in parameters:
        return False
    if ids == "categories" and rows != "frame":
        return False
    if ids == "big-endian" and rows not in ("array", "frame"):
        return False
    if rows == "sparse" and (ids != "int" or method in RATES or setting["known"] == "times"):
        return False
    if method in CENTRAL:
        here = ("clients", "takes part", "federation", "where")
        return all(setting[axis] == PLAIN[axis] for axis in here)
    if setting["where"] == "deployed":
        # Needs keys that are made beforehand: tests/deployment. Half a dozen are too few to mask.
        hidden = setting["federation"] == "SecAggPlus" and setting["takes part"] != "all"
        if hidden or setting["federation"] == "CKKS":
            return False
    # pandas does not pick rows of a big-endian frame for each node or partition.
    if setting["where"] != "here" and rows == "frame" and ids == "big-endian":
        return False
    # Devices do not tell which users they have.
    shares = setting["clients"] == "users at two silos"
    if shares and (setting["where"] != "here" or rows == "sparse"):
        return False
    # Data frames alone are spread over a cluster.
    return setting["where"] != "Dask" or rows == "frame"


def pairs(setting):
    """Return the pairs of values of a setting."""
    return set(itertools.combinations(sorted(setting.items()), 2))


def all_pairs(allowed):
    """Return the pairs that some allowed setting has, each with such a setting, if any is found."""
    found = {}
    rng = random.Random(0)
    for one, other in itertools.combinations(sorted(AXES), 2):
        for a, b in itertools.product(AXES[one], AXES[other]):
            fixed = {one: a, other: b}
            setting = completed(fixed, allowed, rng)
            if setting is not None:
                found[(one, a), (other, b)] = setting
    return found


def completed(fixed, allowed, rng=None, tries=400):
    """Return an allowed setting with these values, as plain as possible, or None."""
    rng = rng or random.Random(0)
    for n in range(tries):
        free = {axis: rng.choice(values) for axis, values in AXES.items()}
        # First the plain one, then ever more of the others.
        plain = {axis: value for axis, value in PLAIN.items() if rng.random() > n / tries}
        setting = free | plain | fixed
        if allowed(setting):
            return setting
    return None


def covering(allowed, candidates=60, seed=0):
    """Return settings that together have all pairs of values that allowed settings can have."""
    rng = random.Random(seed)
    left = all_pairs(allowed)
    settings = []
    while left:
        (pair, example), best = next(iter(left.items())), None
        for _ in range(candidates):
            setting = dict(example)
            for axis in rng.sample(list(AXES), len(AXES)):
                if axis in dict(pair):
                    continue
                value = rng.choice(AXES[axis])
                if allowed(setting | {axis: value}):
                    setting[axis] = value
            n_new = len(pairs(setting) & left.keys())
            if best is None or n_new > best[0]:
                best = n_new, setting
        settings.append(best[1])
        for covered in pairs(best[1]):
            left.pop(covered, None)
    return settings


def name_of(setting):
    """Return a short name: the method and what is not plain."""
    others = [value for axis, value in setting.items() if value != PLAIN[axis] and axis != "method"]
    return "-".join([setting["method"], *(value.replace(" ", "_") for value in others)])


# ------------------------------------------------------------------------ ids, rows, estimators


def names(kind, role):
    """Return the id of each code, so that ids are in the order of codes."""
    n = MOST_USERS if role == "user" else MOST_ITEMS
    codes = np.arange(n)
    if kind == "int":
        return codes
    if kind == "large int":
        return 2**40 + 123_456_789 + 7 * codes + (role == "item") * 2**20
    if kind == "big-endian":
        return (100 + codes).astype(">i8")
    if kind == "mixed widths":
        return np.array([role[0] * (code + 1) + "!" for code in codes])
    if kind == "UUID":
        rng = random.Random(role)
        return np.array(sorted(str(uuid.UUID(int=rng.getrandbits(128))) for _ in codes))
    return np.array([f"{role} no {code:02}" for code in codes])


def table_of(setting, rows):
    """Return X of a DataFrame of rows (user, item, value, time, in codes)."""
    kind, how = setting["ids"], setting["rows"]
    columns = {
        "user": names(kind, "user")[rows["user"]],
        "item": names(kind, "item")[rows["item"]],
    }
    if setting["known"] == "times":
        columns["time"] = rows["time"].to_numpy()
    if how in ("array", "sparse"):
        arrays = list(columns.values())
        if arrays[0].dtype.kind != "U":
            return np.column_stack(arrays).astype(arrays[0].dtype)
        return np.column_stack([one.astype(object) for one in arrays])
    frame = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})
    if kind == "categories":
        return frame.astype({"user": "category", "item": "category"})
    return frame.convert_dtypes(dtype_backend="pyarrow") if how == "Arrow" else frame


def features_of(setting, role, codes):
    """Return features of users or items as a DataFrame with their ids."""
    codes = np.asarray(codes)
    values = {"even": (codes % 2).astype(float), "third": (codes % 3) / 2}
    return pd.DataFrame(values, index=names(setting["ids"], role)[codes])


def estimator_of(setting, **others):
    """Return the unfitted estimator of a setting."""
    estimator = METHODS[setting["method"]]
    has = estimator.get_params()
    ids = setting["ids"]
    parameters = {"random_state": 0, "warm_start": setting["where"] != "Dask"}
    parameters["rating_scale"] = (1, 5)
    # All clients of a sum must have their turn.
    n_turns = 2 if setting["takes part"] == "cohorts" else 1
    parameters["n_rounds"] = n_turns if setting["method"] in SUMS else 3
    if setting["method"] not in CENTRAL:
        dropout = 0.3 if setting["takes part"] == "dropout" else 0.0
        # As many digits as are computed with, so that both halves agree.
        wire = "float64" if setting["where"] == "deployed" else "float32"
        parts = FEDERATIONS[setting["federation"]]
        if setting["takes part"] in SCHEDULES:
            parts = parts | {"schedule": SCHEDULES[setting["takes part"]], "devices": DEVICES}
        federation = Federation(dropout=dropout, wire_dtype=wire, **parts)
        parameters["federation"] = federation
        parameters["client_fraction"] = 0.5 if setting["takes part"] == "cohorts" else 1.0
        if federation.secure_aggregation is not None or federation.central_dp is not None:
            parameters |= WHOLE
        if federation.central_dp is not None and setting["method"] in ("RFRec", "RFRecF"):
            parameters["aggregation"] = "clients"
    if setting["catalogue"] == "given":
        parameters["items"] = names(ids, "item")[list(CATALOGUE)]
    if setting["known"] == "item features":
        n_items = len(CATALOGUE) if setting["catalogue"] == "given" else N_ITEMS
        parameters["item_features"] = features_of(setting, "item", range(n_items))
    if setting["known"] == "user features":
        parameters["user_features"] = features_of(setting, "user", range(N_USERS))
    if setting["known"] == "times":
        parameters["timestamps"] = 2
        parameters["history_half_life"] = 3.0
        parameters["history_power"] = 0.5
        if "central_dp" not in FEDERATIONS[setting["federation"]]:
            parameters["backward_weight"] = 0.25
            if setting["catalogue"] == "given" and "backward_weight" in has:
                # What "auto" stands for is found in the sum of pairs.
                found = "pair_half_life", "history_half_life", "history_power", "backward_weight"
                parameters |= dict.fromkeys(found, "auto")
    known = {name: value for name, value in parameters.items() if name in has}
    return type(estimator)(**estimator.get_params(deep=False) | known | others)


# Another value of a parameter, for a search.
OTHERS = {"FedEASE": {"reg": 20.0}, "FedItemKNN": {"n_neighbors": 2}, "LightFR": {"n_bits": 5}}


def search_of(setting):
    """Return a search between a setting's estimator and another one."""
    estimator, method = estimator_of(setting), setting["method"]
    grid = {name: [value] for name, value in OTHERS.get(method, {"n_factors": 2}).items()}
    # Noise that makes no difference, as in the rounds.
    noisy = setting["federation"] in ("noise by the server", "noise for users")
    return FederatedSearch(
        estimator,
        grid,
        scoring="rmse" if getattr(estimator, "_sees_ratings", False) else "ndcg@3",
        epsilon_scores=1e6 if noisy else None,
        validation_fraction=0.3,
        validation_rows="latest" if estimator.get_params().get("history_half_life") else "random",
        random_state=0,
    )


def first_rows(seed=0):
    """Return the rows of the first fit, in codes: each user and item has some."""
    rng = np.random.default_rng(seed)
    mask = rng.random((N_USERS, N_ITEMS)) < 0.5
    mask[np.arange(N_USERS), np.arange(N_USERS) % N_ITEMS] = True
    # One item that only one user has.
    mask[:, 7] = np.arange(N_USERS) == 7
    users, items = np.nonzero(mask)
    order = rng.permutation(len(users))
    users, items = users[order], items[order]
    values = rng.integers(1, 6, len(users)).astype(float)
    # So that some scores are beyond the scale, and clipped.
    values[(users % 4 == 0) | (items % 4 == 0)] = 5.0
    days = rng.permutation(len(users))
    return pd.DataFrame(
        {"user": users, "item": items, "value": values, "time": 1_700_000_000 + 86_400 * days}
    )


def client_of(setting, user):
    """Return the client of a user (a code)."""
    if setting["clients"] == "one a user":
        return user
    if setting["federation"] == "noise for users":
        # In the order of the users, by which the simulator numbers them for draws.
        later = N_SILOS - 1 if setting["clients"] == "growing silos" else user // 2
        return user // 2 if user < N_USERS else later
    if user < N_USERS or setting["clients"] == "growing silos":
        return user % N_SILOS
    return N_SILOS + user // 2
