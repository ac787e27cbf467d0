"""Central noise of a search: one budget for the rounds and the scores of all candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from fedrecsk.privacy import CentralDP, central_dp
from fedrecsk.privacy.accounting import Event, epsilon_of, noise_for
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.protocol.central_noise import PlannedUploads, planned_events
from fedrecsk.protocol.evaluation import Metric, Scoring
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.links import StepTotal
from fedrecsk.protocol.server import Server


@dataclass(frozen=True)
class Noise:
    """The noise multipliers of the rounds of all candidates, and of their scores."""

    of_rounds: float
    of_scores: float
    delta: float

    @staticmethod
    def scoring_of(method: Any) -> Scoring:
        """Return what clients measure: means of their own, in a public range."""
        metric, most = Metric.of(method.scoring), 1.0
        if not metric.greater_is_better:
            # In the middle of the scale no prediction errs by more.
            low, high = method.rating_scale
            most = float(high - low) / 2
        return Scoring((method.scoring,), ranges=(most,), bounded=True)

    def score(self, total: StepTotal, server: Server) -> float:
        """Return a candidate's score, the only number of the clients' sums that is released."""
        server.ledger.count(
            messages_up=total.n_accepted, rejected=total.n_arrived - total.n_accepted
        )
        (name,), (most,) = server.scoring.metrics, server.scoring.ranges
        metric, releases = Metric.of(name), server.releases
        assert releases is not None
        # A client's mean is in [0, 1].
        sums = total.sums.get(f"{name} by client", np.zeros(1))[:1]
        generator = releases.secret_of(server.key.at(server.round)).generator("noise on the score")
        (noisy,), _ = central_dp.noisy_sum(sums, 1.0, self.of_scores, 1, generator)
        return metric.mean(metric.unit(most) * float(noisy), releases.expected)

    def report(self, n_scores: int, of_fit: PrivacyReport) -> PrivacyReport:
        """Report what this many scores guarantee, for those whom a fit's report names."""
        event = Event("gaussian", self.of_scores, n_scores)
        return PrivacyReport(
            mechanism="central noise",
            epsilon_per_coordinate=epsilon_of([event._replace(count=1)], self.delta),
            n_uploads=n_scores,
            n_coordinates=n_scores,
            epsilon=epsilon_of([event], self.delta),
            server_sees="exact sums",
            delta=self.delta,
            neighbours=of_fit.neighbours,
            trust=of_fit.trust,
            events=(event,),
        )


def check_private(method: Any, scoring: str | None, epsilon_scores: float | None) -> None:
    """Raise ValueError if the noise of a search with this method cannot be calibrated."""
    mechanism: CentralDP = method._setting().central_dp
    if scoring == "loss":
        raise ValueError(
            'A search under central_dp does not support scoring="loss", which has no bound; leave '
            "it out."
        )
    if epsilon_scores is None:
        raise ValueError(
            "Under central_dp the scores of candidates spend privacy too; set epsilon_scores, for "
            "example to a quarter of the epsilon."
        )
    if mechanism.epsilon is not None and epsilon_scores >= mechanism.epsilon:
        raise ValueError(
            f"epsilon_scores={epsilon_scores:g} leaves nothing of CentralDP(epsilon="
            f"{mechanism.epsilon:g}) for the rounds; lower it."
        )


def noise_of_a_search(
    candidates: list[Any],
    mechanism: CentralDP,
    epsilon_scores: float,
    *,
    rungs: list[int],
    factor: int,
    refit: bool | str,
) -> Noise:
    """Return the noise with which a whole search spends the epsilon of a mechanism.

    Gaussian releases compose as one whose 1 / z^2 is the sum of theirs. Every candidate counts as
    the costliest one.
    """
    delta, alive, n_scores, releases = mechanism.delta, len(candidates), 0, 0.0
    plans = [one.method._plan() for one in candidates]
    for number, rung in enumerate(rungs):
        kept = 1 if number == len(rungs) - 1 else -(-alive // factor)
        n_scores += alive
        releases += (alive - kept) * max(map(_releases, candidates, plans, repeat(rung)))
        alive = kept
    releases += max(map(_releases, candidates, plans, repeat(rungs[-1])))
    if refit:
        releases += max(_releases_of_refit(one, rungs[-1], refit) for one in candidates)
    of_scores = np.sqrt(n_scores) * noise_for([Event("gaussian", 1.0)], epsilon_scores, delta)
    events, noise = [Event("gaussian", float(of_scores), n_scores)], mechanism.noise_multiplier
    if noise is None:
        left = noise_for([Event("gaussian", 1.0)], mechanism.epsilon, delta) ** -2
        noise = float(np.sqrt(releases / (left - n_scores / of_scores**2)))
    elif mechanism.epsilon is not None:
        # As many rounds as cost the same.
        spent = epsilon_of([*events, Event("gaussian", noise / np.sqrt(releases))], delta)
        if spent > mechanism.epsilon:
            raise ValueError(
                f"The whole search would spend epsilon {spent:.4g} with CentralDP(noise_multiplier="
                f"{noise:g}), more than epsilon={mechanism.epsilon:g}; leave noise_multiplier out."
            )
    return Noise(noise, float(of_scores), delta)


def _releases(one, plan, n_rounds):
    """Return the sum of 1 / z^2 of a candidate's set-up and rounds, if z is 1 in the rounds."""
    uploads = PlannedUploads.of(plan, one.data.n_clients, Key(0))
    _, factor = planned_events(plan.federation.central_dp, uploads)
    return uploads.n_setups / factor**2 + min(n_rounds, uploads.uses)


def _releases_of_refit(one, n_rounds, refit):
    """Return the same of the winner's last rounds."""
    n_left = one.n_rounds - n_rounds if one.goes_on(n_rounds, refit) else one.n_rounds
    plan = replace(one.method._plan(), n_rounds=n_left)
    return _releases(one, plan, n_left)
