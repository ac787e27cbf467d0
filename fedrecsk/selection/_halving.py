"""Successive halving over the rounds of fits: candidates side by side, and cuts between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.exceptions import FitFailedWarning

from fedrecsk._utils.user_warnings import warn
from fedrecsk.data._checks import Diverged
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.ledger import Ledger
from fedrecsk.protocol.links import SideBySide
from fedrecsk.protocol.messages import Rows

if TYPE_CHECKING:
    from fedrecsk.selection._noise import Noise

# The first cut comes after a tenth of a fit's rounds at the earliest: after fewer, step sizes lead
# that lose later. The last one leaves a quarter for the winner, which then learns from all rows.
# Chosen on validation rows of MovieLens-100k, see docs/choices.md.
EARLIEST, LATEST = 10, 0.75
# A client receives some two whole models to evaluate all candidates of a cut, if rounds send less;
# the fewest clients that evaluate each.
WHOLE_MODELS, FEWEST = 2, 50


@dataclass(eq=False)
class Candidate:
    """A candidate: its parameters, the model to fit at the end, and a fit without held-out rows."""

    params: dict[str, Any]
    model: Any
    n_rounds: int = 0
    # A Loop, which fits it wherever its clients are.
    loop: Any = None
    # What clients have measured since the last cut.
    values: list[float] = field(default_factory=list)
    failure: str = ""
    noise: Noise | None = None
    ledger: Ledger | None = None
    privacy: PrivacyReport | None = None

    def open(self, rung: int, n_candidates: int) -> None:
        """Open a round; let clients evaluate the model if a cut after `rung` rounds is near."""
        server = self.loop.server
        participation, message = server.open_round()
        share = self._share(message, n_candidates)
        n_cohorts = server.sampling.n_cohorts(server.n_clients)
        n_last = math.ceil(share * n_cohorts)
        if not max(0, rung - n_last) < server.round <= rung:
            return
        who = participation.receives
        if share < 1:
            who = _drawn(who, share * n_cohorts / n_last, server.key.at(server.round))
        answers = self.loop.evaluate(participation._replace(receives=who))
        if self.noise is not None:
            self.values.append(self.noise.score(answers, server))
            return
        server.close_validation(answers, who)
        self.values.append(server.history[-1][server.scoring.curve])

    def _share(self, message, n_candidates):
        """Return the share of the clients that evaluate each candidate."""
        sends_whole = message and not any(isinstance(one, Rows) for one in message.values())
        if sends_whole or self.noise is not None:
            return 1.0
        n_clients = self.loop.server.n_clients
        return min(1.0, max(WHOLE_MODELS / n_candidates, FEWEST / n_clients))

    @property
    def score(self) -> float:
        """The mean of what clients have measured before a cut; greater is better."""
        # Of a cohort that holds out nothing it is NaN.
        measured = [value for value in self.values if not np.isnan(value)]
        if self.failure or not measured:
            return float("nan")
        sign = 1 if self.loop.server.scoring.greater_is_better else -1
        return sign * float(np.mean(measured))

    def end(self, *, wins: bool) -> None:
        """Stop in the round that was opened; what clients have is kept of the winner only."""
        server = self.loop.server
        if not self.failure:
            server.stop()
        self.ledger, self.privacy = server.ledger, server.privacy_report()
        if not wins:
            self.loop = None

    def goes_on(self, n_rounds: int, refit: bool | str) -> bool:
        """Return whether the model goes on after these rounds, instead of being fitted anew."""
        traits = self.model._algorithm().traits
        can = traits.goes_on and not traits.sends_once
        return refit != "anew" and can and n_rounds < self.n_rounds


def _drawn(who: NDArray[np.bool_], share: float, key: Key) -> NDArray[np.bool_]:
    """Draw a share of the clients of a mask, which are alike for all candidates."""
    chances = np.where(who, key.uniform("evaluating clients", np.arange(len(who))), np.inf)
    drawn = np.zeros(len(who), dtype=bool)
    drawn[np.argsort(chances, kind="stable")[: math.ceil(share * who.sum())]] = True
    return drawn


C = TypeVar("C", bound=Candidate)


def one_by_one(step: Callable[[C], object], candidates: Sequence[C]) -> None:
    """Take a step of each candidate."""
    for one in candidates:
        step(one)


class Halving(Generic[C]):
    """Successive halving: candidates side by side, and cuts after `rungs` rounds.

    `each` takes a step of all candidates: one by one, or at the same time.
    """

    def __init__(self, candidates: Sequence[C], rungs: Sequence[int], factor: int) -> None:
        self.candidates, self.rungs, self.factor = candidates, list(rungs), factor
        self.started: list[C] = list(candidates)
        self.alive: list[C] = list(candidates)
        self.is_over, self.n_rounds = False, 0
        # For each cut, its round and the candidates' scores; for each round, how many there were.
        self.cuts: list[tuple[int, dict[C, float]]] = []
        self.n_alive: list[int] = []
        # What they have sent in this step, see SideBySide.
        self._sent: dict[bytes, int] = {}

    @property
    def leader(self) -> C:
        """The best candidate of the last cut, the first one before."""
        return self.alive[0]

    def set_up(self, each: Callable[..., None] = one_by_one) -> None:
        """Do everything that comes before the first round of each candidate."""
        for number, one in enumerate(self.candidates):
            one.loop.server.beside = SideBySide(number, self._sent)
        self._take(lambda one: one.loop.set_up(), each)

    def round(self, each: Callable[..., None] = one_by_one) -> None:
        """Run a round of each candidate, unless it ends at the last cut."""
        rung = self.rungs[0]
        self._sent.clear()
        self._take(lambda one: one.open(rung, len(self.started)), each)
        self.n_alive.append(len(self.alive))
        if self.n_rounds == rung:
            self._cut()
        self.n_rounds += 1
        if not self.is_over:
            self._take(lambda one: one.loop.close(), each)

    def _take(self, step, each):
        """Take a step of each candidate; leave out those that diverge, raise if none is left."""

        def guarded(one):
            try:
                step(one)
            except Diverged as error:
                one.failure = str(error)

        each(guarded, self.alive)
        self.alive = [one for one in self.alive if not one.failure]
        if not self.alive:
            failed = self.started[0]
            raise ValueError(
                f"All candidates have diverged, the first one with {failed.params}: "
                f"{failed.failure}"
            )

    def _cut(self):
        """Keep the best candidates, after the last round that all of them have run."""
        scores = {one: one.score for one in self.started}
        values = np.array([*scores.values()])
        if np.isnan(values).all():
            raise ValueError(
                "No client has evaluated a candidate; raise validation_fraction, or lower dropout."
            )
        self.cuts.append((self.n_rounds, scores))
        is_last = len(self.rungs) == 1
        n_kept = 1 if is_last else -(-len(self.started) // self.factor)
        # NaN comes last, and of equals the first candidate first.
        ranked = [self.started[place] for place in np.argsort(-values, kind="stable")]
        default, kept = self.candidates[0], ranked[:n_kept]
        if not is_last and default in self.alive and default not in kept:
            kept[-1] = default
        kept = [one for one in kept if not one.failure]
        for one in self.started:
            one.values = []
            if is_last or one not in kept:
                one.end(wins=one is kept[0])
        self.rungs, self.is_over = self.rungs[1:], is_last
        self.started = self.alive = kept

    def stop(self) -> None:
        """Let the next round be the last cut, if there is another one."""
        if not self.is_over:
            self.rungs = [self.n_rounds]

    def attributes(self, how: str | None, model: Any) -> dict[str, Any]:
        """Return what a search has found, given how its winner was fitted at the end, and this."""
        failed = [one for one in self.candidates if one.failure]
        if failed:
            warn(
                f"{len(failed)} of {len(self.candidates)} candidates have diverged and score NaN, "
                f"the first one with {failed[0].params}: {failed[0].failure}",
                FitFailedWarning,
            )
        rows = [
            (number, n_rounds, one.params, scores[one])
            for number, (n_rounds, scores) in enumerate(self.cuts)
            for one in self.candidates
            if one in scores
        ]
        numbers, resources, params, values = map(list, zip(*rows, strict=True))
        ranks = rankdata(-np.nan_to_num(values, nan=-np.inf), method="min").astype(np.int32)
        results = {
            "iter": np.array(numbers),
            "n_resources": np.array(resources),
            **_masked(params),
            "params": params,
            "mean_test_score": np.array(values),
            "rank_test_score": ranks,
        }
        # The leader's last row is of the last cut.
        best = max(place for place, one in enumerate(params) if one is self.leader.params)
        noise, n_candidates = self.leader.noise, [len(scores) for _, scores in self.cuts]
        ledgers = [Ledger.side_by_side([one.ledger for one in self.candidates])]
        reports = [one.privacy for one in self.candidates]
        if noise is not None:
            reports.append(noise.report(sum(n_candidates), reports[0]))
        n_rounds, history = self.cuts[-1][0], self._history(ledgers[0])
        if model is not None:
            n_rounds += model.n_rounds_
            ledgers.append(model.communication_)
            reports.append(model.privacy_)
        return {
            "cv_results_": results,
            "best_index_": best,
            "best_params_": self.leader.params,
            "best_score_": values[best],
            "n_candidates_": n_candidates,
            "n_resources_": [n_rounds for n_rounds, _ in self.cuts],
            "n_iterations_": len(self.cuts),
            "n_rounds_": n_rounds,
            "refit_": how,
            "history_": history,
            "communication_": Ledger.joined(ledgers),
            "privacy_": PrivacyReport.joined(reports),
        }

    def _history(self, ledger):
        """Return a dict for each round, from the ledger of all candidates."""
        best = {n_rounds: np.nanmax([*scores.values()]) for n_rounds, scores in self.cuts}
        rows = []
        for entry in ledger.entries:
            number = entry["round"]
            if entry["phase"] in ("round", "stop"):
                row = {"round": number, "candidates": self.n_alive[number]}
                row |= {name: entry[name] for name in ("bytes_down", "bytes_up")}
                rows.append(row | {"score": float(best.get(number, np.nan))})
        return rows


def rungs_of(n_rounds: int, n_candidates: int, factor: int, min_rounds: int | str) -> list[int]:
    """Return after how many rounds to cut."""
    least, left, n_cuts = -(-n_rounds // EARLIEST), n_candidates, 0
    while left > 1:
        left, n_cuts = -(-left // factor), n_cuts + 1
    if min_rounds != "auto" and not least <= min_rounds <= n_rounds:
        raise ValueError(
            f"min_rounds={min_rounds}, but the first cut must come after {least} to {n_rounds} "
            f"rounds of a fit of n_rounds={n_rounds}; earlier, step sizes lead that lose later."
        )
    first = least if min_rounds == "auto" else min_rounds
    last, rungs = max(first, int(LATEST * n_rounds)), set()
    for number in range(n_cuts):
        # With few candidates there is room for a later start.
        rung = last // factor ** (n_cuts - 1 - number) if min_rounds == "auto" else 0
        rungs.add(min(last, max(rung, first * factor**number)))
    return sorted(rungs)


def _masked(params):
    """Return the columns of parameters, masked where a candidate does not have one."""
    columns = {}
    for name in sorted({name for one in params for name in one}):
        column = np.ma.masked_all(len(params), dtype=object)
        for row, one in enumerate(params):
            if name in one:
                column[row] = one[name]
        columns[f"param_{name}"] = column
    return columns
