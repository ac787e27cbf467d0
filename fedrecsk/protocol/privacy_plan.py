"""The plan of a fit under central differential privacy: who takes part how often, and how noisy.

All of it is known before the first round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedrecsk.privacy import _grid
from fedrecsk.privacy.accounting import Event, epsilon_of, noise_for
from fedrecsk.protocol import participation

if TYPE_CHECKING:
    from fedrecsk.privacy import CentralDP
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Key

# Least number of clients in a cohort that adds the noise itself.
FEWEST_SHARES = 2


class Plan(NamedTuple):
    """How often a client will take part, as far as is known before the first round.

    Attributes
    ----------
    n_clients : int
    n_setups : int
        Exchanges before the rounds, with all clients.
    n_rounds : int
    uses : float
        Rounds that the most frequent client takes part in, or, if it joins in secret, that any
        client can expect to.
    probability : float
        Probability of joining a round in secret; 1 where this does not count.
    cohort : float
        Expected number of clients in a cohort.
    """

    n_clients: int
    n_setups: int
    n_rounds: int
    uses: float
    probability: float
    cohort: float

    @classmethod
    def of(cls, method: Any, federation: Federation, n_clients: int, key: Key) -> Plan:
        """The plan of a fit."""
        fraction, n_rounds = method.client_fraction, method._rounds(n_clients)
        mechanism = federation.central_dp
        by_server = mechanism is not None and mechanism.noise == "server"
        cohort, probability, uses = fraction * n_clients, 1.0, n_rounds
        if fraction < 1:
            rotates = participation.is_rotating(federation, method._prefers_rotation)
            if rotates:
                n_cohorts = participation.n_rotating(n_clients, fraction)
                cohort, uses = n_clients / n_cohorts, -(-n_rounds // n_cohorts)
            elif federation.sampling == "poisson" and by_server:
                probability, uses = fraction, fraction * n_rounds
            else:
                counts = np.zeros(n_clients, dtype=np.int64)
                for number in range(n_rounds):
                    drawn = participation.draw(n_clients, fraction, federation, key.at(number))
                    counts += drawn.active
                uses = max(1, int(counts.max()))
        if method._max_uploads is not None:
            # Clients that send so seldom need no secret cohorts.
            uses, probability = min(math.ceil(uses), method._max_uploads), 1.0
        return cls(n_clients, method._n_setups, n_rounds, uses, probability, cohort)


def sizes_of_uploads(method: Any, n_items: int) -> dict[str, int]:
    """How many numbers an upload has, at most in the "setup" and in a "round"."""
    steps = [method._setup_specs(n_items, step) for step in range(method._n_setups)]
    setups = [_size(specs) for specs in steps]
    return {"setup": max(setups, default=1), "round": _size(method._upload_specs(n_items))}


def _size(specs):
    return sum(int(np.prod(spec.shape, dtype=np.int64)) for spec in specs.values())


def answers_in_rounds(federation: Federation, plan: Plan, client_fraction: float) -> int:
    """How many clients answer in a round, nearly always.

    Raises
    ------
    ValueError
        If a client would be hidden by nobody's share of the noise but its own.
    """
    arrive = 1 - federation.dropout
    if federation.sampling == "poisson" and client_fraction < 1:
        n_answers = _grid.nearly_always(plan.n_clients, arrive * client_fraction)
    else:
        n_answers = _grid.nearly_always(int(plan.cohort), arrive)
    mechanism = federation.central_dp
    if mechanism is not None and mechanism.noise == "clients" and n_answers < FEWEST_SHARES:
        raise ValueError(
            f'CentralDP(noise="clients") needs {FEWEST_SHARES} clients in every cohort that nearly '
            "always answer, because a client knows its own share of the noise; raise "
            'client_fraction, lower dropout, or use noise="server".'
        )
    return n_answers


def noise_multipliers(
    mechanism: CentralDP, plan: Plan, sizes: dict[str, int]
) -> tuple[float, float]:
    """Noise multipliers of set-up exchanges and of rounds."""
    events, factor = planned_events(mechanism, plan, sizes)
    if mechanism.noise_multiplier is None:
        noise = noise_for(events, mechanism.epsilon, mechanism.delta)
    else:
        noise = mechanism.noise_multiplier
        _check_limit(mechanism, events, plan)
    return factor * noise, noise


def planned_events(
    mechanism: CentralDP, plan: Plan, sizes: dict[str, int]
) -> tuple[tuple[Event, ...], float]:
    """Events with noise multiplier 1 in the rounds, and the factor of set-up exchanges to it."""
    by_clients = mechanism.noise == "clients"
    kind = "skellam" if by_clients else "gaussian"
    factor, share = 1.0, mechanism.setup_share
    if plan.n_setups and share is not None:
        factor = np.sqrt(plan.n_setups * (1 - share) / (share * plan.uses))
    count = plan.n_rounds if plan.probability < 1 else int(plan.uses)
    size = max(sizes.values()) if by_clients else 1
    events = [Event(kind, factor, plan.n_setups, size=size)] if plan.n_setups else []
    events.append(Event(kind, 1.0, count, plan.probability, size))
    return tuple(events), float(factor)


def _check_limit(mechanism, events, plan):
    if mechanism.epsilon is None:
        return
    noise = mechanism.noise_multiplier
    scaled = [one._replace(noise_multiplier=noise * one.noise_multiplier) for one in events]
    spent = epsilon_of(scaled, mechanism.delta)
    if spent <= mechanism.epsilon:
        return
    enough = noise_for(events, mechanism.epsilon, mechanism.delta)
    raise ValueError(
        f"CentralDP(noise_multiplier={noise:g}) spends epsilon {spent:.4g} in {plan.n_rounds} "
        f"rounds, more than the limit epsilon={mechanism.epsilon:g}; set noise_multiplier to "
        f"{enough:.4g} or leave it out, lower n_rounds, or raise the limit."
    )


def sampling_of(federation: Federation, plan: Plan) -> str:
    """What the guarantee assumes about who takes part in a round."""
    if plan.probability < 1:
        return f"each client joins a round with probability {plan.probability:g}, in secret"
    if plan.uses >= plan.n_rounds:
        return "every client may be in every round"
    if federation.sampling == "random":
        return "cohorts at random, which count as known"
    return "cohorts take turns"
