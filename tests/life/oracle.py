"""What a model should be: rows that should be left, fits to them, and what must not be left."""

from __future__ import annotations

import contextlib
import copy
import pickle

import joblib
import numpy as np
import pandas as pd
from scipy import sparse

from tests.life import settings as S

# How far a model may be from the fit to the same rows, as a share of its largest score.
NOISY = ("noise by the server", "noise by clients", "noise for users")
TOLERANCE = dict.fromkeys(("CKKS", *NOISY), 1e-2)
# Users' first vectors come from a secret of the rows and their ids, as do the shares of the noise.
SECRET_DRAWS = 1.0


class Side:
    """A model, which is told about rows in codes, and answers in codes."""

    def __init__(self, setting):
        self.setting = setting
        self.names = {role: S.names(setting["ids"], role) for role in ("user", "item")}
        self.model = S.estimator_of(setting)
        self.is_sum = setting["method"] in S.SUMS

    def arguments(self, rows):
        """Return X and the other arguments of `fit`."""
        others = {}
        if self.setting["method"] in S.RATES:
            others["y"] = rows["value"].to_numpy()
        if self.setting["clients"] != "one a user":
            others["clients"] = self.clients(rows)
        return S.table_of(self.setting, rows), others

    def clients(self, rows):
        clients = np.array([S.client_of(self.setting, user) for user in rows["user"]])
        if self.setting["clients"] == "users at two silos":
            clients[1::2] += 1
        return clients

    def fit(self, rows):
        if self.setting["rows"] != "sparse":
            X, others = self.arguments(rows)
            self.model.fit(X, **others)
            return self
        X = self.matrix(rows)
        clients = self.clients(pd.DataFrame({"user": range(X.shape[0])}))
        self.model.fit(X, clients=None if self.setting["clients"] == "one a user" else clients)
        return self

    def matrix(self, rows):
        """Return rows as a matrix in which a repeated pair has weight 2."""
        entries = np.ones(len(rows)), (rows["user"], rows["item"])
        n_items = len(S.CATALOGUE) if self.setting["catalogue"] == "given" else S.N_ITEMS
        shape = rows["user"].max() + 1, max(n_items, rows["item"].max() + 1)
        return sparse.coo_array(entries, shape).tocsr()

    def codes(self, role):
        """Return the codes of the model's users or items."""
        known = getattr(self.model, f"{role}_ids_")
        places = {name: code for code, name in enumerate(self.names[role].tolist())}
        return [places[one] for one in known.tolist()]

    def scores(self, users, items):
        """Return the predictions of all pairs of these codes as a table."""
        grid = pd.DataFrame(
            {"user": np.repeat(users, len(items)), "item": np.tile(items, len(users))}
        ).assign(time=1_800_000_000)
        X, _ = self.arguments(grid.assign(value=1.0))
        return self.model.predict(X).reshape(len(users), len(items))

    def rank(self, users):
        """Return scores of recommendations."""
        return self.model.recommend(self.names["user"][users], 3)[1]


def canonical(setting):
    """Return the setting with the simplest ids and rows, in this process."""
    where = "here" if setting["where"] == "Dask" else setting["where"]
    return setting | {"ids": "int", "rows": "array", "where": where}


def refit(setting, rows, **parameters):
    """Return a fit to rows, on the canonical side."""
    side = Side(canonical(setting))
    side.model.set_params(**parameters)
    return side.fit(rows)


def assert_same(ours, expected, *, what, tolerance=None):
    """Raise unless two sides know the same users and items and have the same scores."""
    for role in ("user", "item"):
        here, there = (sorted(one.codes(role)) for one in (ours, expected))
        assert here == there, f"{what}: {role}s are {here}, not {there}"
    users, items = (sorted(expected.codes(role)) for role in ("user", "item"))
    here, there = ours.scores(users, items), expected.scores(users, items)
    assert np.isfinite(here).all(), f"{what}: scores are not finite"
    if tolerance is None:
        tolerance = TOLERANCE.get(ours.setting["federation"], 1e-6)
        if ours.setting["federation"] == "noise by clients" and not ours.is_sum:
            tolerance = SECRET_DRAWS
    difference = np.abs(here - there).max() / max(1.0, np.abs(there).max())
    assert difference <= tolerance, f"{what}: scores differ by {difference:.3g}"


def digest(model):
    """Return a digest of everything that a model is."""
    # A first `fit` says what X is like before it looks at anything else, as scikit-learn's do.
    of_fit = () if hasattr(model, "item_ids_") else ("n_features_in_", "feature_names_in_", "_run")
    return joblib.hash({name: v for name, v in vars(model).items() if name not in of_fit})


def assert_nothing_left(model, gone, kind, path=None):
    """Raise if ids of the forgotten are in the object, its pickle, or a file."""
    files = {"pickle": pickle.dumps(model)}
    if path is not None:
        files["export"] = path.read_bytes()
    for one in gone:
        for what, content in files.items():
            if isinstance(one, str):
                for encoding in ("utf-8", "utf-32-le", "utf-16-le"):
                    # A mixed-width id may be the end of a longer one.
                    inside = one.encode(encoding) in content
                    assert not inside or kind == "mixed widths", f"{one!r} is left in the {what}"
            elif kind == "large int":
                inside = int(one).to_bytes(8, "little") in content
                assert not inside, f"{one} is left in the {what}"
    if kind not in ("int", "big-endian"):
        left = set(gone) & set(values_in(model, set()))
        assert not left, f"{left} is left in the object"


def values_in(thing, seen):
    """Yield all strings and numbers in an object, whatever holds them."""
    if id(thing) in seen or isinstance(thing, type | bytes) or callable(thing):
        return
    seen.add(id(thing))
    if isinstance(thing, str | int):
        yield thing
    elif isinstance(thing, np.ndarray):
        if thing.dtype.kind in "iuU":
            yield from np.unique(thing).tolist()
        elif thing.dtype.kind == "O":
            for one in thing.ravel().tolist():
                yield from values_in(one, seen)
    elif isinstance(thing, pd.DataFrame | pd.Series | pd.Index):
        if not isinstance(thing, pd.Index):
            yield from values_in(thing.index, seen)
            if isinstance(thing, pd.DataFrame):
                for name in thing.columns:
                    yield from values_in(np.asarray(thing[name]), seen)
                return
        yield from values_in(np.asarray(thing), seen)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from values_in(key, seen)
            yield from values_in(value, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for one in thing:
            yield from values_in(one, seen)
    elif type(thing).__module__.startswith("fedrecsk"):
        yield from values_in(vars(thing), seen)


def assert_ledger_adds_up(model, n_clients):
    """Raise unless bytes are the sums over rounds, and over clients."""
    ledger, frame = model.communication_, model.communication_.to_frame()
    assert len(ledger.client_ids) == n_clients, f"the ledger has {len(ledger.client_ids)} clients"
    # Clients that have left count in this entry alone.
    left = frame["phase"] == "taken back"
    for way in ("up", "down"):
        total, own = frame[f"bytes_{way}"].sum(), int(getattr(ledger, f"client_bytes_{way}").sum())
        least = frame.loc[~left, f"bytes_{way}"].sum()
        assert least <= own <= total, f"bytes {way}: {own} of clients, {total} of rounds"
        assert own == getattr(ledger, f"bytes_{way}"), f"bytes {way}"
    assert (frame.select_dtypes("number").drop(columns="round") >= 0).all(axis=None)
    n_rounds = (frame["phase"] == "round").sum()
    numbers = model.n_rounds_, len(model.history_), n_rounds
    assert len(set(numbers)) == 1, f"numbers of rounds: {numbers}"


@contextlib.contextmanager
def unchanged(side):
    """Raise if anything in a side's model is another one afterwards."""
    before, kept = digest(side.model), copy.copy(vars(side.model))
    yield
    if digest(side.model) != before:
        now = vars(side.model)
        changed = [n for n in kept | now if joblib.hash(kept.get(n)) != joblib.hash(now.get(n))]
        raise AssertionError(f"a refused step has changed {changed or 'something inside'}")
