"""The server of a deployed search: candidates side by side, and the winner with all rows."""

from __future__ import annotations

import copy
import logging
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import joblib
import pandas as pd

from fedrecsk._utils.sklearn_compat import clone
from fedrecsk.deployment.checks import Drawn, candidates_of, check, digests, evaluation_of
from fedrecsk.deployment.coordinator import Coordinator
from fedrecsk.deployment.exchanges import Carrier
from fedrecsk.deployment.node import SEARCH as NAME
from fedrecsk.deployment.progress import CHECKPOINT, SUMS, Progress, interrupted
from fedrecsk.deployment.side_by_side import Together
from fedrecsk.deployment.store import Store
from fedrecsk.protocol.evaluation import Scoring
from fedrecsk.protocol.keys import Key
from fedrecsk.selection import FederatedSearch
from fedrecsk.selection._halving import Candidate, Halving, rungs_of
from fedrecsk.simulation.continuing import next_key

log: logging.Logger = logging.getLogger("fedrecsk.deployment")
# What a restarted server needs of the rounds of the search; the fitted search, and its report.
SEARCH, RESULT, REPORT = "search", "search.joblib", "search.txt"


@dataclass(eq=False)
class Deployed(Candidate):
    """A candidate whose clients are nodes."""

    progress: Progress | None = None

    @classmethod
    def of(cls, drawn: Drawn, number: int, search: str, n_clients: int, key: Key | None) -> Self:
        """Return a candidate of the search with a name, before its set-up."""
        fit = f"{search}{number:04x}"
        progress = Progress.new(drawn.fit.method, drawn.fit.digests(), key, fit=fit)
        n_rounds = drawn.model._plan().rounds(n_clients)
        return cls(drawn.params, drawn.model, n_rounds=n_rounds, progress=progress)

    def end(self, *, wins: bool) -> None:
        """Stop, and forget what only goes on; see Candidate."""
        self.loop.forget()
        super().end(wins=wins)
        if not wins:
            self.progress = None

    def __getstate__(self) -> dict[str, Any]:
        # A restarted server asks its nodes anew.
        return vars(self) | {"loop": None}


class SearchCoordinator:
    """Runs a search over a carrier; its parameters are those of :func:`server_app`."""

    def __init__(
        self,
        search: FederatedSearch,
        carrier: Carrier,
        store: Store,
        *,
        n_clients: int,
        quorum: float = 0.5,
        update: bool = False,
        key: Key | None = None,
        evaluate: Sequence[str] | None = None,
        n_negatives: int | None = None,
        **settings: Any,
    ) -> None:
        if update:
            raise ValueError(
                "A search always begins anew; leave out update. To go on from the winner, deploy "
                "it in place of the search, with update=True and warm_start=True."
            )
        check(search)
        drawn = candidates_of(search)
        self.evaluation: Scoring | None = evaluation_of(drawn[0].model, evaluate, n_negatives)
        self.search: FederatedSearch = search
        self.store: Store = store
        self.carrier: Together = Together(carrier)
        self.settings: dict[str, Any] = settings | {"n_clients": n_clients, "quorum": quorum}
        least = min(one.model._plan().rounds(n_clients) for one in drawn)
        rungs = rungs_of(least, len(drawn), search.factor, search.min_rounds)
        each = [one.fit.digests() for one in drawn]
        parts = {
            "grid or method": each,
            "factor": search.factor,
            "refit": search.refit,
            "min_rounds or n_clients": rungs,
        }
        ours = {name: str(joblib.hash(part)) for name, part in parts.items()}
        store.remove_drafts(SEARCH, CHECKPOINT, SUMS)
        found = store.load(SEARCH)
        self.is_resumed: bool = found is not None
        if found is None:
            if store.names(CHECKPOINT):
                raise ValueError(
                    f"{store.folder / CHECKPOINT} is of a fit that has not ended; let it end, or "
                    "choose another folder, or remove the file."
                )
            # All draw alike, as in a simulation.
            key, name = key or Key(secrets.randbits(63)), secrets.token_hex(NAME // 2)
            candidates = [
                Deployed.of(one, number, name, n_clients, key) for number, one in enumerate(drawn)
            ]
            found = ours, Halving(candidates, rungs, search.factor)
        differing = [f"another {name}" for name in ours if ours[name] != found[0].get(name)]
        if differing:
            raise ValueError(
                f"{store.folder / SEARCH} is of a search that has not ended, and began with "
                f"{', '.join(differing)}; set all as it was, or remove the file to begin anew."
            )
        self._digests: dict[str, str] = ours
        self.halving: Halving[Deployed] = found[1]
        for one in self.halving.candidates:
            if one.progress is not None:
                one.progress.forget_nodes()
                one.loop = self._coordinator(one.model, one.progress, is_alone=False)

    def _coordinator(self, estimator, progress, **more):
        return Coordinator(estimator, self.carrier, self.store, progress, **self.settings | more)

    def run(self) -> FederatedSearch:
        """Run the search; save and return it, fitted."""
        halving, each = self.halving, self.carrier.side_by_side
        if not halving.is_over:
            if self.is_resumed:
                log.info("Resumed after %d rounds of the search", halving.n_rounds)
                self._each(Coordinator.gather_again)
            else:
                halving.set_up(each)
                self._save()
        while not halving.is_over:
            if sum(one.loop.give_places() for one in halving.alive):
                # If the server is killed now, they keep their places.
                self._save()
            self._each(Coordinator.set_up_late)
            halving.round(each)
            self._save()
            n_rounds, n_alive = halving.n_rounds, len(halving.alive)
            log.info("Round %d of the search: %d candidates are left", n_rounds, n_alive)
        return self._end()

    def _each(self, step):
        """Take a step of each candidate's coordinator, side by side."""
        self.carrier.side_by_side(step, [one.loop for one in self.halving.alive])

    def _save(self):
        self.store.save(SEARCH, (self._digests, self.halving))

    def _end(self):
        """Let the winner learn from all rows; save and return the search."""
        halving = self.halving
        how, last = self._last()
        log.info("The best candidate is %s; it is fitted to all rows", halving.leader.params)
        (model,) = self.carrier.side_by_side(Coordinator.fit, [last])
        search = copy.copy(self.search)
        attributes = halving.attributes(how, model)
        # Users and items: that clients have more columns, such as times, no server sees.
        attributes |= {"scoring_": search._metric(model), "n_features_in_": 2}
        vars(search).update(attributes, best_estimator_=model)
        self.store.save_result(RESULT, search)
        self.store.save_text(REPORT, text_of(search))
        self.store.remove(SEARCH)
        last.forget()
        log.info("The search has ended: %s", self.store.folder / REPORT)
        return search

    def _last(self):
        """Return how the winner comes to know all rows, and the coordinator of its last rounds."""
        leader = self.halving.leader
        before, model = leader.progress, leader.model
        assert before is not None
        ours, key, n_done = digests(model), before.server.key, before.server.round
        how = "warm" if leader.goes_on(n_done, self.search.refit) else "anew"
        method, last = model, None
        if how == "warm":
            method = clone(model)._set(n_rounds=leader.n_rounds - n_done)
            key, last = next_key(key), before
        progress = interrupted(ours, self.store)
        if progress is None:
            progress = Progress.new(method, ours, key, last, before.fit[:NAME] + "ffff")
        # Clients of the search may have been lost since.
        n_clients = len(before.members)
        n_enough = math.ceil(self.settings["quorum"] * n_clients)
        more = {"last": last, "n_clients": n_clients, "n_enough": n_enough}
        return how, self._coordinator(model, progress, evaluation=self.evaluation, **more)


def text_of(search: Any) -> str:
    """Return the report of a search that a person can read."""
    found, ledger = search.cv_results_, search.communication_
    names = [name for name in found if name.startswith("param_")]
    columns = ["iter", "n_resources", *names, "mean_test_score", "rank_test_score"]
    table = pd.DataFrame({name: found[name] for name in columns}).to_string(index=False)
    return (
        f"{type(search.estimator).__name__}: {search.n_candidates_[0]} candidates, "
        f"{search.n_rounds_} rounds\n\n"
        f"{search.scoring_} on held-out rows, after each cut (greater is better; errors are "
        f"negative):\n\n{table}\n\n"
        f"Winner: {search.best_params_}, {search.best_score_:.6g} after "
        f"{search.n_resources_[-1]} rounds, then fitted to all rows ({search.refit_})\n"
        f"Gain over the estimator's own parameters: {search.gain_:.6g}\n"
        f"Sent: {ledger.bytes_down:,} bytes down and {ledger.bytes_up:,} bytes up, of which the "
        f"last rounds {search.best_estimator_.communication_.bytes_down:,} and "
        f"{search.best_estimator_.communication_.bytes_up:,}\n"
    )
