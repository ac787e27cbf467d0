"""The life of a model: a state machine whose steps users take, in one setting each program."""

from __future__ import annotations

import collections
import copy
import pickle
import re
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sklearn.base import clone

from fedrecsk import portable
from fedrecsk.cluster import gather
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.privacy import PrivacyBudget
from fedrecsk.selection import federated_evaluate
from tests.life import settings as S
from tests.life import table
from tests.life.known import known_as
from tests.life.oracle import (
    Side,
    assert_ledger_adds_up,
    assert_nothing_left,
    assert_same,
    canonical,
    refit,
    unchanged,
)

SEEDS = st.integers(0, 10**6)
# What a program may do after its fit.
TAKEN = (
    "partial_fit, new users",
    "forget",
    "fold_in",
    "explain",
    "pickle",
    "explain_with_rows",
    "partial_fit, repeated pairs",
    "clone",
    "add_items",
    "evaluate",
    "forget, unknown users",
    "forget, all but two clients'",
    "add_users",
    "partial_fit, new items",
    "export",
    "fold_in, known users",
    "partial_fit, old users",
    "forget, all users",
)
# Of what was met, by name: settings, steps with their outcomes, known defects.
MET = {"pairs": set(), "steps": collections.Counter(), "known": collections.Counter()}


class Life(RuleBasedStateMachine):
    """`setting` is set by a subclass.

    `side` has the model. `twin` lives the same life with plain ids and rows, in this process.
    """

    setting: dict = S.PLAIN
    # Where among TAKEN the simplest program begins.
    first = 0

    def __init__(self):
        super().__init__()
        self.side, self.twin = Side(self.setting), Side(canonical(self.setting))
        self.rows = S.first_rows()
        self.n_users, self.n_items = S.N_USERS, S.N_ITEMS
        # Users without rows in the fit; items that the fit did not have.
        self.folded, self.added_users, self.added_items = set(), set(), set()
        self.forgotten = set()
        self.catalogue = None
        if self.setting["catalogue"] == "given":
            self.catalogue = set(S.CATALOGUE)
        elif self.setting["known"] == "item features":
            self.catalogue = set(range(S.N_ITEMS))
        self.budget, self.spent = PrivacyBudget(np.inf, delta=1e-3), 0.0
        self.n_taken = 0
        self.program, self.is_over, self.deployment = [], False, None

    # ------------------------------------------------------------------------ judging a step

    @contextmanager
    def step(self, name, what=""):
        """End the program if a known defect shows; add the program to what is raised."""
        self.program.append(f"{name} {what}".strip())
        try:
            yield
        except Exception as error:
            self.is_over = True
            message = f"{type(error).__name__}: {error}"
            defect = known_as(self.setting, name, message)
            if defect is None:
                program = "; ".join(self.program)
                raise AssertionError(f"{S.name_of(self.setting)}: {program}: {message}") from error
            MET["known"][defect] += 1

    def take(self, name, call):
        """Call a step; return its result, or None if it was refused as the table says."""
        expected = table.rule_of(name, self.setting)
        outcome = table.outcome_of(name, self.setting)
        MET["steps"][name, outcome] += 1
        if outcome == table.REFUSED:
            with unchanged(self.side):
                try:
                    call(self.side)
                except Exception as error:
                    said = f"{error} {error.__cause__ or ''}"
                    assert re.search(expected.says, said, re.DOTALL), (
                        f"refused without cure: {said}"
                    )
                    return None
            raise AssertionError(f"not refused: {expected.says}")
        before = self.known()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call(self.side)
        said = self.said = " ".join(str(one.message) for one in caught)
        if outcome == table.WARNS:
            assert re.search(expected.says, said, re.DOTALL), f"no warning: {expected.says}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.twin is not None:
                call(self.twin)
        self.check_lost(name, before, said)
        return result

    def known(self):
        model = self.side.model
        if not hasattr(model, "item_ids_"):
            return {"user": set(), "item": set()}
        return {role: set(self.side.codes(role)) for role in ("user", "item")}

    def check_lost(self, name, before, said):
        """Raise if users or items are no longer known, and nobody said so."""
        for role, gone in (("user", self.forgotten), ("item", self.unneeded())):
            lost = before[role] - self.known()[role] - gone
            ids = [str(self.side.names[role][code]) for code in lost]
            message = f"silently lost {role}s {ids}"
            if lost and not any(one in said for one in ids):
                # The program can go on.
                defect = known_as(self.setting, name, message)
                assert defect is not None, message
                MET["known"][defect] += 1

    def unneeded(self):
        """Return items that nobody has any longer, where the catalogue is derived."""
        if self.catalogue is not None:
            return set()
        return set(range(S.MOST_ITEMS)) - set(self.rows["item"])

    def check(self, what):
        """Compare the model with what it should be."""
        model = self.side.model
        users = set(self.rows["user"]) | self.folded | self.added_users
        assert set(self.side.codes("user")) == users, f"{what}: users"
        wanted = set(self.rows["item"]) if self.catalogue is None else self.catalogue
        items = set(self.side.codes("item"))
        assert items == wanted | self.added_items, f"{what}: items are {sorted(items)}"
        kinds = {"int": "i", "large int": "i", "big-endian": "i"}
        for name in ("user_ids_", "item_ids_"):
            kind = getattr(model, name).dtype.kind
            assert kind == kinds.get(self.setting["ids"], "U"), f"{what}: {name} are of kind {kind}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(self.side, self.twin, what=f"{what}, beside plain ids")
            few = sorted(set(self.side.codes("user")))[:4]
            lists = self.side.rank(few), self.twin.rank(few)
        known = np.isfinite(lists[1])
        assert (np.isfinite(lists[0]) == known).all(), f"{what}: lengths of lists"

    def check_fitted(self, what):
        """Compare a model that was fitted or updated with the rows that should be left."""
        self.check(what)
        method = self.setting["method"]
        if method in S.SUMS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                items = sorted(self.side.codes("item"))
                fitted = refit(self.setting, self.rows, items=items, **self.twin_features())
            assert_same(self.side, fitted, what=f"{what}, beside a fit to the rows that are left")
        if method not in S.CENTRAL:
            clients = {S.client_of(self.setting, user) for user in self.rows["user"]}
            assert_ledger_adds_up(self.side.model, len(clients))
            self.check_privacy(what)

    def check_privacy(self, what):
        """Charge a fit or an update to a budget, of which it must take something."""
        model = self.side.model
        if model.federation.central_dp is None:
            # Where nobody has sent anything, nothing is spent.
            assert model.privacy_.epsilon in (0.0, np.inf), f"{what}: epsilon without noise"
            return
        spent = self.budget.charge(model).spent
        # In the rounds of an update, RFRecF's clients may all be silent.
        rises = spent > self.spent or self.setting["method"] == "RFRecF"
        told = np.isinf(self.spent) or "spent epsilon inf" in self.said
        assert told or np.isfinite(spent), f"{what}: epsilon is {spent} in all"
        assert rises, f"{what}: epsilon is {spent} in all"
        self.spent = spent

    def twin_features(self):
        names = ("item_features", "user_features")
        return {n: getattr(self.twin.model, n) for n in names if hasattr(self.twin.model, n)}

    # --------------------------------------------------------------------------------- steps

    @initialize()
    def fit(self):
        MET["pairs"] |= S.pairs(self.setting)
        with self.step("fit"):
            fit = self.take("fit", self.fit_where)
            if fit is None:
                self.is_over = True
                return
            self.check_fitted("fit")

    def fit_where(self, side):
        if side is self.side and self.setting["where"] == "Dask":
            self.fit_on_cluster(side)
        elif side is self.side and self.setting["where"] == "deployed":
            from tests.life.deployed import Deployment

            # A refusal comes from the two halves, beside the simulation that may be possible.
            simulated = Side(self.setting).fit(self.rows)
            self.deployment = Deployment(simulated)
            self.deployment.run(self.rows)
            side.model, self.deployment.side = simulated.model, side
        else:
            side.fit(self.rows)
        return side

    def fit_on_cluster(self, side):
        frame, columns = self.on_workers(side)
        side.model.fit(frame, **columns)
        self.on_cluster = side.model
        side.model = gather(side.model)

    def on_workers(self, side):
        """Return X and the other arguments of `fit` as Dask has them."""
        import dask
        import dask.dataframe as dd

        X, others = side.arguments(self.rows)
        others["y"] = others.get("y", np.ones(len(X)))
        frame = X.assign(**others)
        part = np.array([S.client_of(self.setting, user) % 2 for user in self.rows["user"]])
        parts = [dask.delayed(frame[part == n]) for n in range(2)]
        frame = dd.from_delayed(parts, meta=frame.iloc[:0], verify_meta=False)
        return frame[list(X.columns)], {name: frame[name] for name in others}

    @rule(place=st.integers(0, len(TAKEN) - 1), seed=SEEDS)
    def live(self, place, seed):
        """Take a step: in the simplest program one after the other, and any in others."""
        if self.is_over:
            return
        self.n_taken += 1
        name, _, how = TAKEN[(self.first + self.n_taken + place) % len(TAKEN)].partition(", ")
        getattr(self, name)(how, np.random.default_rng((seed, self.first, self.n_taken)))

    def draw_rows(self, rng, users, items):
        """Return new rows of these users and items, later than all others."""
        return pd.DataFrame(
            {
                "user": users,
                "item": items,
                "value": rng.integers(1, 6, len(users)).astype(float),
                "time": self.rows["time"].max() + 86_400 * (1 + np.arange(len(users))),
            }
        )

    def partial_fit(self, kind, rng):
        n_users = int(rng.integers(1, 3))
        catalogue = sorted(self.catalogue or set(self.rows["item"]))
        old = sorted(set(self.rows["user"]))
        users = rng.choice(old, n_users, replace=False)
        items = rng.choice(catalogue, len(users))
        if kind == "new users":
            if self.n_users + 2 > S.MOST_USERS:
                return
            users = np.repeat(self.n_users + np.arange(n_users), 2)
            items = np.concatenate([rng.choice(catalogue, 2, replace=False) for _ in users[::2]])
        elif kind == "new items":
            if self.n_items == S.MOST_ITEMS:
                return
            items = np.full(len(users), self.n_items)
            if self.catalogue is not None and self.n_items not in self.catalogue:
                kind = "items beyond the catalogue"
        elif kind == "repeated pairs":
            chosen = self.rows.iloc[rng.choice(len(self.rows), 2, replace=False)]
            users, items = chosen["user"].to_numpy(), chosen["item"].to_numpy()
        new, name = self.draw_rows(rng, users, items), f"partial_fit, {kind}"

        def update(side):
            X, others = side.arguments(new)
            side.model.partial_fit(X, **others)
            if side is self.side and self.setting["federation"] == "SecAggPlus" and side.is_sum:
                self.deployment = None  # whose updates are refused
            if side is self.side and self.deployment is not None:
                self.deployment.run(rows)
            return side

        with self.step(name, str(list(zip(users.tolist(), items.tolist(), strict=True)))):
            rows = pd.concat([self.rows, new], ignore_index=True)
            if table.outcome_of(name, self.setting) != table.REFUSED:
                self.rows = rows
            if self.take(name, update) is None:
                return
            self.n_users = max(self.n_users, max(users) + 1)
            self.n_items = max(self.n_items, max(items) + 1)
            self.folded, self.added_users, self.added_items = set(), set(), set()
            self.check_fitted(name)

    def forget(self, how, rng):
        old = sorted(set(self.rows["user"]))
        users = rng.choice(old, rng.integers(1, 3), replace=False).tolist()
        if not how and (len(old) < 9 or self.leaves_too_few(users)):
            return
        if how == "all users":
            users = old
        elif how == "all but two clients'":
            if self.setting["federation"] != "SecAggPlus":
                return
            clients = {user: S.client_of(self.setting, user) for user in old}
            users = [user for user in old if clients[user] not in sorted(set(clients.values()))[:2]]
        elif how:
            users = [users[0], S.MOST_USERS - 1]
        name = f"forget, {how}" if how else "forget"
        with self.step(name, str(users)):
            before = self.rows
            if table.outcome_of(name, self.setting) != table.REFUSED:
                self.rows = self.rows[~self.rows["user"].isin(users)]
                self.forgotten |= set(users)

            def forget(side):
                return side.model.forget(side.names["user"][users])

            if self.take(name, forget) is None:
                self.rows = before
                return
            self.deployment = None
            self.folded, self.added_users, self.added_items = set(), set(), set()
            gone = self.side.names["user"][sorted(self.forgotten)].tolist()
            assert_nothing_left(self.side.model, gone, self.setting["ids"])
            self.check_fitted(name)

    def leaves_too_few(self, users):
        """Return whether too few clients would be left to mask."""
        left = {S.client_of(self.setting, u) for u in set(self.rows["user"]) - set(users)}
        return len(left) < S.N_SILOS

    def add_items(self, how, rng):
        code = max([self.n_items - 1, *(self.catalogue or ()), *self.added_items]) + 1
        if code >= S.MOST_ITEMS:
            return
        with self.step("add_items", str(code)):

            def add(side):
                features = S.features_of(side.setting, "item", [code])
                cluster = getattr(self, "on_cluster", None)
                if side is self.side and cluster is not None:
                    cluster.add_items(features)
                return side.model.add_items(features)

            if self.take("add_items", add) is None:
                return
            self.added_items.add(code)
            self.check("add_items")

    def add_users(self, how, rng):
        code = max([self.n_users - 1, *self.folded, *self.added_users]) + 1
        if code >= S.MOST_USERS - 1:
            return
        with self.step("add_users", str(code)):

            def add(side):
                return side.model.add_users(S.features_of(side.setting, "user", [code]))

            if self.take("add_users", add) is None:
                return
            self.added_users.add(code)
            self.check("add_users")

    def fold_in(self, how, rng):
        code = max([self.n_users - 1, *self.folded, *self.added_users]) + 1
        if code >= S.MOST_USERS - 1:
            return
        if how:
            code = int(rng.choice(sorted(set(self.rows["user"]))))
        items = rng.choice(sorted(set(self.rows["item"])), 2, replace=False)
        new, name = (
            self.draw_rows(rng, [code, code], items),
            f"fold_in, {how}" if how else "fold_in",
        )
        with self.step(name, f"{code} with {items.tolist()}"):
            users = sorted(self.known()["user"])
            everything = users, sorted(self.known()["item"])
            before = self.side.scores(*everything)

            def fold(side):
                X, others = side.arguments(new)
                return side.model.fold_in(X, **others)

            if self.take(name, fold) is None:
                return
            self.folded.add(code)
            after = self.side.scores(*everything)
            assert (after == before).all(), "fold_in has changed others' scores"
            self.check(name)

    def pickle(self, how, rng):
        with self.step("pickle"):
            grid = sorted(self.known()["user"]), sorted(self.known()["item"])
            before = self.side.scores(*grid)

            def reload(side):
                if side is self.side:
                    side.model = pickle.loads(pickle.dumps(side.model))
                return side

            self.take("pickle", reload)
            assert (self.side.scores(*grid) == before).all(), "a pickle has other scores"
            self.check("pickle")

    def clone(self, how, rng):
        with self.step("clone"):
            fresh = Side(self.setting)
            with unchanged(self.side):
                fresh.model = clone(self.side.model)
            assert not hasattr(fresh.model, "item_ids_")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fresh.fit(self.rows)
                given = self.twin_features()
                if self.twin.model.items is not None:
                    given["items"] = self.twin.model.items
                elif self.setting["rows"] == "sparse":
                    given["items"] = range(fresh.model.n_items_)
                assert_same(fresh, refit(self.setting, self.rows, **given), what="a clone's fit")

    def export(self, how, rng):
        known = sorted(self.known()["item"])
        items = rng.choice(known, 2, replace=False)
        new = self.draw_rows(rng, [S.MOST_USERS - 1] * 2, items)
        with self.step("export", str(items.tolist())), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.fedrecsk"

            def export(side):
                side.model.export(path if side is self.side else f"{folder}/twin")
                return side

            if self.take("export", export) is None:
                assert not path.exists(), "a refused export has left a file"
                return
            side, everybody = self.side, self.side.names["user"].tolist()
            if self.setting["ids"] in ("str", "UUID", "categories"):
                content = path.read_bytes()
                left = [n for n in everybody if n.encode() in content]
                left += [n for n in everybody if n.encode("utf-32-le") in content]
                assert not left, f"the export names users {left}"
            X, others = side.arguments(new)
            ratings = [others["y"].tolist()] if "y" in others else []
            public = portable.load(path)
            _, scores = public.recommend(side.names["item"][items].tolist(), *ratings, n=3)
            pair = (X, others["y"]) if ratings else X
            newcomer = side.names["user"][[S.MOST_USERS - 1]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours = side.model.recommend(newcomer, 3, interactions=pair)
            ours_kept = np.isfinite(ours[1][0])
            assert np.allclose(scores, ours[1][0][ours_kept], atol=1e-4), "an export's scores"
            places = set(np.asarray(public.item_ids).tolist())
            assert places == set(side.model.item_ids_.tolist()), "an export's catalogue"

    def explain(self, how, rng):
        user = int(rng.choice(sorted(set(self.rows["user"]))))
        item = int(rng.choice(sorted(self.known()["item"])))
        if self.setting["where"] == "Dask" and self.setting["known"] == "times":
            # Times that are not kept make no difference to a single row.
            user = int(self.rows["user"].mode()[0])
        with self.step("explain", f"{user}, {item}"):

            def explain(side):
                names = side.names["user"][user], side.names["item"][item]
                return side.model.explain(*names)

            frame = self.take("explain", explain)
            if frame is None:
                return
            score = self.side.scores([user], [item])[0, 0]
            self.check_sum(frame, score)

    def explain_with_rows(self, how, rng):
        """Explain the score that a known user has by rows that are given."""
        user = int(rng.choice(sorted(set(self.rows["user"]))))
        item = int(rng.choice(sorted(self.known()["item"])))
        own = self.rows[self.rows["user"] == user]
        with self.step("explain_with_rows", f"{user}, {item}"):

            def explain(side):
                X, others = side.arguments(own)
                pair = (X, others["y"]) if "y" in others else X
                names = side.names["user"][user], side.names["item"][item]
                frame = side.model.explain(*names, interactions=pair)
                served = Side(side.setting)
                served.model = copy.copy(side.model).fold_in(X, **others, replace=True)
                return frame, served.scores([user], [item])[0, 0]

            found = self.take("explain_with_rows", explain)
            if found is not None:
                self.check_sum(*found)

    def check_sum(self, frame, score):
        """Raise unless contributions add up to a score."""
        added = frame["contribution"].sum()
        assert abs(added - score) < 1e-3 * max(1, abs(score)), f"{added} is not {score}"

    def evaluate(self, how, rng):
        items = sorted(set(self.rows["item"]))
        users = rng.choice(sorted(set(self.rows["user"])), 4)
        new = self.draw_rows(rng, users, rng.choice(items, 4)).drop_duplicates(["user", "item"])
        with self.step("evaluate"):

            def evaluate(side):
                X, others = side.arguments(new)
                y = others.get("y")
                found = [side.model.score(X, y)]
                if y is None:
                    found.append(evaluate_ranking(side.model, X, k=3)["ndcg@3"])
                return found

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = evaluate(self.twin)
            found = self.take("evaluate", evaluate)
            close = 1e-3 if self.setting["federation"] == "plain" else 0.5
            assert np.allclose(found, expected, atol=close), f"{found} is not {expected}"
            self.evaluate_where_data_are(new)
        self.search()

    def evaluate_where_data_are(self, new):
        """Clients find the same on their own rows, if none of them is lost and none adds noise."""
        setting = self.setting
        noisy = "noise" in setting["federation"] or setting["takes part"] == "dropout"
        if setting["where"] != "here" or setting["method"] in S.CENTRAL or noisy:
            return
        X, others = self.side.arguments(new)
        y, model = others.get("y"), self.side.model
        if setting["federation"] == "SecAggPlus" and new["user"].nunique() < 3:
            with pytest.raises(ValueError, match="at least 3 clients"):
                federated_evaluate(model, X, y, metrics="ndcg@3")
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = federated_evaluate(model, X, y, metrics="ndcg@3").values["ndcg@3"]
            expected = evaluate_ranking(model, X, y, k=3)["ndcg@3"]
        assert np.isclose(found, expected, atol=1e-4), f"{found} is not {expected}"

    def search(self):
        """Choose between two settings of the method, on the rows that are left."""
        with self.step("search"):

            def search(side):
                one = S.search_of(side.setting)
                if side is self.side and self.setting["where"] == "Dask":
                    frame, columns = self.on_workers(side)
                    return one.fit(frame, **columns)
                if side is self.side and self.setting["where"] == "deployed":
                    from tests.life.deployed import Deployment

                    Deployment(side).search(self.rows, one)
                    return one
                X, others = side.arguments(self.rows)
                return one.fit(X, **others)

            try:
                found = self.take("search", search)
            except ValueError as error:
                # Sums over half a dozen clients may be lost.
                lossy = {"federation": "SecAggPlus", "takes part": "dropout"}
                if "No client has" in str(error) and lossy.items() <= self.setting.items():
                    return
                raise
            if found is None:
                return
            model, clients = found.best_estimator_, set(self.side.clients(self.rows))
            assert len(found.cv_results_["params"]) == 2
            assert_ledger_adds_up(model, len(clients))
            if model.federation.central_dp is not None:
                # Other noise may choose another winner.
                assert 0 < found.privacy_.epsilon < np.inf, "epsilon without noise"
                return
            twin = search(self.twin)
            assert found.best_params_ == twin.best_params_, "another winner"
            sides = Side(self.setting), Side(self.twin.setting)
            for side, one in zip(sides, (found, twin), strict=True):
                side.model = one.best_estimator_
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_same(*sides, what="a search, beside plain ids")
