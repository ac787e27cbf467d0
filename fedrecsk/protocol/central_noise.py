"""Central differential privacy on the server: the plan, the noise on sums, and the account."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from fedrecsk._utils.user_warnings import warn
from fedrecsk.privacy import SecAggPlus, central_dp
from fedrecsk.privacy._grid import sensitivity
from fedrecsk.privacy.accounting import Event, epsilon_of, noise_for, scaled
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.protocol.keys import Key
from fedrecsk.protocol.messages import Dense, Message, Total, Upload
from fedrecsk.protocol.protection import TERMS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.privacy import CentralDP, LocalMechanism
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.participation import Sampling
    from fedrecsk.protocol.plan import FitPlan
    from fedrecsk.updates import Counts, FieldSpec

# Of the adaptive clip (Andrew et al. 2021, section 3): its learning rate, and the share of the
# cohort that is the standard deviation of the noise on the count of short uploads.
ADAPTS_BY, NOISE_ON_COUNT = 0.2, 0.05
# Steps of the grid of that noise in one client.
COUNT_STEPS = 2**20
# Shares that take fewer seconds are drawn without a word.
LONG = 30.0
# Numbers that are drawn to see how long it takes.
SAMPLE = 2**15
# Standard deviations that the clients' noise on a number never exceeds: the odds are 2e-23.
LARGEST_NOISE = 10


class Exchange(NamedTuple):
    """What one kind of exchange with the clients releases.

    Uploads have an L2 norm of at most `clip`. Those of `n_clients`, which may be a number of users,
    are expected in the sum: a public number, by which the server divides. If clients add the noise,
    `n_shares` shares make it up, beside a client's own, which hides nothing from it.
    """

    clip: float
    noise_multiplier: float
    n_clients: int
    n_shares: int


@dataclass(eq=False, repr=False)
class CentralNoise:
    """The sums that a server releases under central differential privacy.

    The server's noise is drawn by the key `secret`, which no client may know; None: each draw comes
    afresh from the operating system.
    """

    federation: Federation
    sampling: Sampling
    uploads: PlannedUploads
    secret: Key | None

    def __post_init__(self) -> None:
        federation, sampling, uploads = self.federation, self.sampling, self.uploads
        n_clients = uploads.n_clients
        mechanism = federation.central_dp
        assert mechanism is not None
        self.mechanism: CentralDP = mechanism
        self.by_clients: bool = mechanism.noise == "clients"
        # Whether the clip changes from round to round.
        self.adapts: bool = mechanism.quantile is not None
        # Whether noise is published even if no client has sent anything, which is secret.
        self.always: bool = uploads.probability < 1
        setup_noise, noise = noise_multipliers(mechanism, uploads)
        cohort, scheme = uploads.cohort, federation.secure_aggregation
        # A client's own share hides nothing from it.
        in_round = answers_in_rounds(federation, uploads, sampling.fraction) - 1
        shares = n_clients - 1, in_round
        # Whether clients rely on no more shares than are in a sum of a lying server, too, and how
        # many of them may help it.
        self._is_sure: bool = False
        self._n_helpers: int = 0
        if self.by_clients and isinstance(scheme, SecAggPlus):
            self._is_sure, shares = True, sure_shares(scheme, sampling, n_clients)
            self._n_helpers = scheme.n_helpers(sampling.smallest_cohort(n_clients))
        in_setup, in_round = shares
        cohort *= uploads.n_hidden / n_clients
        n_expected = max(1, round((1 - federation.dropout) * cohort))
        self._setup: Exchange = Exchange(
            mechanism._bound_of_setup, setup_noise, uploads.n_hidden, max(1, in_setup)
        )
        self._round: Exchange = Exchange(mechanism.clip, noise, n_expected, max(1, in_round))
        # Of the noise on the count of short uploads, for the adaptive clip.
        self._count_std: float = NOISE_ON_COUNT * cohort
        if self.adapts and noise >= 2 * self._count_std:
            more = "raise client_fraction" if sampling.fraction < 1 else "find more clients"
            raise ValueError(
                f"CentralDP(quantile={mechanism.quantile}) counts the short uploads of a cohort, "
                f"and a count over about {cohort:.3g} clients cannot hide one of them; set "
                f"quantile=None, raise epsilon, or {more}."
            )
        # The least noise multiplier of any exchange so far.
        self._least = np.inf
        self._n_setups = 0
        self._n_rounds = 0
        warn_of_delta(mechanism, uploads.n_hidden, "user" if uploads.by_user else "client")

    @classmethod
    def of(
        cls,
        plan: FitPlan,
        n_clients: int,
        shared: Key,
        secret: Key | None,
        n_users: int | None = None,
    ) -> Self:
        """Return the central noise of a fit, whose cohorts are drawn by the key `shared`."""
        uploads = PlannedUploads.of(plan, n_clients, shared, n_users)
        return cls(plan.federation, plan.sampling, uploads, secret)

    # Made by the server when it needs them: a client stores a CentralNoise, and charges nobody.
    @cached_property
    def _spent(self) -> NDArray[np.float64]:
        """What each client has spent, as the sum of 1 / z^2."""
        return np.zeros(self.uploads.n_clients)

    @cached_property
    def _uses(self) -> NDArray[np.int64]:
        """In how many exchanges each client has sent something."""
        return np.zeros(self.uploads.n_clients, dtype=np.int64)

    def expect(self, n_users: int) -> None:
        """Expect a round whose clients have `n_users` users in all, a public number."""
        n_users = max(1, round((1 - self.federation.dropout) * n_users))
        self._round = self._round._replace(n_clients=n_users)

    def check_range(self, n_users: int) -> None:
        """Raise, before any work, if masks cannot hold the sum of a client with `n_users` users."""
        scheme = self.federation.secure_aggregation
        if not (self.uploads.by_user and isinstance(scheme, SecAggPlus)) or self.by_clients:
            return
        weights = (self.mechanism.field_weights or {}).values()
        clip = max(self._setup.clip, self._round.clip) / min([1.0, *weights])
        if n_users * clip > scheme.max_value():
            raise ValueError(
                f"A client has {n_users:,} users, whose clipped uploads may add up to "
                f"{n_users * clip:.4g}, and {scheme} holds numbers up to {scheme.max_value():g}; "
                f'set max_abs to at least {n_users * clip:.4g}, or CentralDP(noise="clients"), by '
                "which the server sees no sum without noise."
            )

    @property
    def expected(self) -> int:
        """Number of clients, or of their users, that are expected in the sum of a round."""
        return self._round.n_clients

    def secret_of(self, key: Key) -> Key:
        """Return the key of what the server draws in an exchange."""
        secret = Key(secrets.randbits(63)) if self.secret is None else self.secret
        return secret.at(key.round)

    def exchange(self, key: Key) -> Exchange:
        """Return the Exchange of a key's round."""
        return self._setup if key.round < 0 else self._round

    def terms(self, key: Key) -> Message:
        """Return the clip and the variance of a client's share of the noise, for the clients."""
        variance = self.variance_of_share(key) if self.by_clients else 0.0
        return Message(**{TERMS: Dense(np.array([self.exchange(key).clip, variance]))})

    def variance_of_share(self, key: Key) -> float:
        """Variance of each client's share of the noise, in squared steps of the grid."""
        return self._variance_in(self.exchange(key))

    def _variance_in(self, exchange):
        size = max(self.uploads.sizes.values())
        return central_dp.share_variance(exchange.noise_multiplier, size, exchange.n_shares)

    def largest_sum(self, n_clients: int) -> float | None:
        """Return the largest sum over `n_clients`, in steps; None if they do not add the noise."""
        if not self.by_clients:
            return None
        size = max(self.uploads.sizes.values())
        variance = max(map(self._variance_in, (self._setup, self._round)))
        # Which clients are in a sum does not say how many users are.
        n_most = self.uploads.n_users if self.uploads.by_user else n_clients
        clipped = n_most * sensitivity(size)
        return float(clipped + LARGEST_NOISE * np.sqrt(n_clients * variance))

    def steps(self, specs: dict[str, FieldSpec], key: Key) -> dict[str, float]:
        """Return the grid to which clients round each field before they add noise."""
        if not self.by_clients:
            return {}
        return central_dp.steps_of(self.mechanism, self.exchange(key).clip, specs)

    def publish(
        self,
        totals: dict[str, np.ndarray],
        specs: dict[str, FieldSpec],
        key: Key,
        counts: Counts,
        centers: dict[str, np.ndarray],
    ) -> Upload:
        """Add what noise is missing to the sums of clipped uploads.

        `key` is the shared key of the exchange, and `centers` are what a client without any change
        sends, which is public; 0 for other fields. The upload is of the expected number of clients.
        """
        n_clients, noisy = self.exchange(key).n_clients, {}
        for name, spec in specs.items():
            sums = totals.get(name)
            sums = np.zeros(spec.shape) if sums is None else sums.astype(np.float64)
            sums, std = self._noisy(name, sums, key, counts)
            if name in centers:
                sums = sums + n_clients * centers[name]
            noisy[name] = Total(sums, n_clients, std)
        if self.adapts and key.round >= 0:
            self._adapt(counts.short_excess, key)
        return Upload(n_clients, **noisy)

    def _noisy(self, name, sums, key, counts):
        """Return one field's sum with its noise, and the noise's standard deviation."""
        generator = self.secret_of(key).generator(f"noise on the sum of {name}")
        one, is_setup = self.exchange(key), key.round < 0
        if not self.by_clients:
            size = self.uploads.sizes["setup" if is_setup else "round"]
            noise = one.noise_multiplier
            if self.adapts and not is_setup and noise:
                # The count of short uploads spends some of it.
                noise = (noise**-2 - (2 * self._count_std) ** -2) ** -0.5
            clip = one.clip / (self.mechanism.field_weights or {}).get(name, 1.0)
            return central_dp.noisy_sum(sums, clip, noise, size, generator)
        variance, step = self.variance_of_share(key), self.steps({name: None}, key)[name]
        if counts.n_without_share:
            missing = counts.n_without_share * variance
            sums = sums + step * central_dp.skellam(missing, sums.shape, generator)
        # Without the last digits of adding up multiples of the step.
        return step * np.rint(sums / step), step * np.sqrt(counts.n_shares * variance)

    def _adapt(self, excess, key):
        """Change the clip by the noisy count of short uploads."""
        generator = self.secret_of(key).generator("noise on the count of short uploads")
        # Half a client more or less: what counts is short uploads less half of all.
        noise = np.rint(COUNT_STEPS * self._count_std * generator.normal()) / COUNT_STEPS
        share = 0.5 + (excess + noise) / self._round.n_clients
        change = np.clip(share, 0, 1) - self.mechanism.quantile
        clip = self._round.clip * np.exp(-ADAPTS_BY * change)
        self._round = self._round._replace(clip=float(clip))

    def charge(self, senders: list[np.ndarray], key: Key, counts: Counts) -> None:
        """Charge the clients (codes) that have sent something in an exchange."""
        one = self.exchange(key)
        noise = one.noise_multiplier
        if self.by_clients:
            # A client knows its own share, and a lying server can leave out all that are not sure.
            n_shares = max(0, counts.n_shares - 1)
            n_shares = min(n_shares, one.n_shares) if self._is_sure else n_shares
            noise *= np.sqrt(n_shares / one.n_shares)
        self._n_setups += key.round < 0
        self._n_rounds += key.round >= 0
        if senders:
            self._least = min(self._least, float(noise))
        for codes in senders:
            with np.errstate(divide="ignore"):
                self._spent[codes] += np.float64(1) / noise**2
            self._uses[codes] += 1

    def planned(self, server_sees: str) -> PrivacyReport:
        """Report what the planned rounds will guarantee."""
        events, _ = planned_events(self.mechanism, self.uploads)
        events = scaled(events, self._round.noise_multiplier)
        sizes, n_setups = self.uploads.sizes, self.uploads.n_setups
        n_rounds = math.ceil(self.uploads.uses)
        n_coordinates = n_setups * sizes["setup"] + n_rounds * (sizes["round"] + self.adapts)
        return self._report(events, events, n_setups + n_rounds, n_coordinates, server_sees)

    def report(self, n_coordinates: int, server_sees: str) -> PrivacyReport:
        """Report what the releases so far guarantee."""
        kind = "skellam" if self.by_clients else "gaussian"
        worst, size = int(np.argmax(self._spent)), max(self.uploads.sizes.values())
        uses, probability = int(self._uses[worst]), self.uploads.probability
        if self.always:
            setup = Event(kind, self._setup.noise_multiplier, self._n_setups)
            rounds = Event(kind, self._round.noise_multiplier, self._n_rounds, probability)
            events = [event for event in (setup, rounds) if event.count]
        else:
            spent = self._spent[worst]
            noise = 0.0 if np.isinf(spent) else float(np.sqrt(uses / spent)) if uses else 0.0
            events = [Event(kind, noise, uses, size=size if self.by_clients else 1)] if uses else []
        one = [
            event._replace(noise_multiplier=min(self._least, event.noise_multiplier))
            for event in events
        ]
        uses = int(self._uses.max(initial=0))
        return self._report(events, one, uses, n_coordinates, server_sees)

    def _report(self, events, single, n_uploads, n_coordinates, server_sees):
        delta = self.mechanism.delta
        trust, n = "the server", self._n_helpers
        if self.by_clients and self.federation.secure_aggregation is not None:
            few = {0: "no client helps", 1: "at most one client helps"}
            trust = f"no party, if {few.get(n, f'at most {n:,} clients help')} the server"
        hidden = "one client"
        if self.uploads.by_user:
            hidden, trust = "one user", f"each client, by its own users; beyond it {trust}"
        elif self.uploads.n_users > self.uploads.n_clients:
            hidden = "one client with all its users"
        each = [epsilon_of([one._replace(count=1)], delta) for one in single]
        return PrivacyReport(
            mechanism="distributed noise" if self.by_clients else "central noise",
            epsilon_per_coordinate=max(each, default=0.0),
            n_uploads=n_uploads,
            n_coordinates=n_coordinates,
            epsilon=epsilon_of(events, delta),
            server_sees=server_sees,
            delta=delta,
            neighbours=f"{hidden} more or less",
            sampling=sampling_of(self.uploads),
            trust=trust,
            events=tuple(events),
        )


def warn_of_delta(mechanism: CentralDP | LocalMechanism, n: int, unit: str = "client") -> None:
    """Warn of a delta that would allow to publish the data of one of `n` clients, or users."""
    delta = mechanism.delta
    if delta * n > 1:
        warn(
            f"{type(mechanism).__name__}(delta={delta:g}) is above one divided by the number of "
            f"{unit}s, {n}: publishing one {unit}'s data outright would pass. Set delta below "
            f"{1 / n:.1g}.",
            UserWarning,
        )


class PlannedUploads(NamedTuple):
    """How much a client will send, and how often, as far as is known before the first round.

    The clients have `n_users` in all, and with `by_user` the noise hides one of these. In the
    `n_setups` exchanges before the rounds are all clients. `uses` is the number of rounds that the
    most frequent client takes part in, or, if it joins in secret, that any client can expect to;
    `probability` is that of joining a round in secret, 1 where this does not count; `cohort` is the
    expected number of clients in one; `rotates` says whether cohorts take turns; `sizes` has the
    largest number of numbers in an upload of the "setup" and of a "round"; `setup_share` is the
    method's own share of the budget for the set-up, if it has one.
    """

    n_clients: int
    sizes: dict[str, int]
    n_setups: int
    n_rounds: int
    uses: float
    probability: float
    cohort: float
    n_users: int
    by_user: bool = False
    rotates: bool = False
    setup_share: float | None = None

    @property
    def n_hidden(self) -> int:
        """Number of clients or users, of which the noise hides one."""
        return self.n_users if self.by_user else self.n_clients

    @classmethod
    def of(cls, plan: FitPlan, n_clients: int, key: Key, n_users: int | None = None) -> Self:
        """Return the planned uploads of a fit, whose cohorts are drawn by a key.

        `n_users` are those of all clients; None: each has one.
        """
        n_users = n_clients if n_users is None else n_users
        algorithm, sampling, n_items = plan.algorithm, plan.sampling, plan.n_items
        assert n_items is not None
        fraction = sampling.fraction
        n_rounds = plan.rounds(n_users if plan.by_user else n_clients)
        mechanism = plan.federation.central_dp
        # Who knows that a client takes part knows that all its users do.
        by_server = mechanism is not None and mechanism.noise == "server" and not plan.by_user
        cohort, probability, uses = fraction * n_clients, 1.0, n_rounds
        if fraction < 1:
            if sampling.rotates:
                n_cohorts = sampling.n_cohorts(n_clients)
                cohort, uses = n_clients / n_cohorts, -(-n_rounds // n_cohorts)
            elif sampling.scheme == "poisson" and by_server:
                probability, uses = fraction, fraction * n_rounds
            else:
                counts = np.zeros(n_clients, dtype=np.int64)
                for number in range(n_rounds):
                    counts += sampling.draw(n_clients, key.at(number)).active
                uses = max(1, int(counts.max()))
        if algorithm.traits.sends_once:
            # Clients that send so seldom need no secret cohorts.
            uses, probability = 1, 1.0
        specs = algorithm.setup_fields(n_items)
        in_setup, in_round = (
            sum(spec.size for spec in one.values()) for one in (specs, algorithm.fields(n_items))
        )
        sizes, draws = {"setup": max(1, in_setup), "round": in_round}, (uses, probability, cohort)
        share = algorithm.traits.setup_share
        others = n_users, plan.by_user, sampling.rotates, share
        return cls(n_clients, sizes, int(bool(specs)), n_rounds, *draws, *others)


def answers_in_rounds(
    federation: Federation, uploads: PlannedUploads, client_fraction: float
) -> int:
    """Return how many clients nearly always answer in a round; raise if too few."""
    arrive = 1 - federation.dropout
    if federation.sampling == "poisson" and client_fraction < 1:
        n_answers = central_dp.nearly_always(uploads.n_clients, arrive * client_fraction)
    else:
        n_answers = central_dp.nearly_always(int(uploads.cohort), arrive)
    mechanism = federation.central_dp
    if mechanism is not None and mechanism.noise == "clients" and n_answers < 2:
        raise ValueError(
            'CentralDP(noise="clients") needs 2 clients in every cohort that nearly '
            "always answer, because a client knows its own share of the noise; raise "
            'client_fraction, lower dropout, or use noise="server".'
        )
    return n_answers


def sure_shares(scheme: SecAggPlus, sampling: Sampling, n_clients: int) -> tuple[int, int]:
    """Return how many shares are sure in each masked sum of the set-up, and of the rounds."""
    smallest = sampling.smallest_cohort(n_clients)
    sizes = {smallest}
    if sampling.fraction < 1 and sampling.scheme == "poisson":
        raise ValueError(
            'CentralDP(noise="clients") under SecAggPlus needs cohorts of one size, by which '
            'clients plan their shares of the noise; set sampling="random" or "rotating".'
        )
    if sampling.rotates:
        sizes.add(-(-n_clients // sampling.n_cohorts(n_clients)))
    shares = scheme.sure_shares(n_clients), min(map(scheme.sure_shares, sizes))
    if min(shares) < 1:
        raise ValueError(
            f"Under {scheme} a lying server could see sums over {smallest} clients with too little "
            "noise, because no other honest client is sure to be in them; set "
            'n_neighbors="auto", or lower max_dropout or max_colluding.'
        )
    return shares


def noise_multipliers(mechanism: CentralDP, uploads: PlannedUploads) -> tuple[float, float]:
    """Return the noise multipliers of set-up exchanges and of rounds."""
    events, factor = planned_events(mechanism, uploads)
    noise, limit, delta = mechanism.noise_multiplier, mechanism.epsilon, mechanism.delta
    if noise is None:
        noise = noise_for(events, limit, delta)
    elif limit is not None:
        spent = epsilon_of(scaled(events, noise), delta)
        if not spent <= limit:
            # Rounded up.
            enough = (1 + 5e-4) * noise_for(events, limit, delta)
            raise ValueError(
                f"CentralDP(noise_multiplier={noise:g}) spends epsilon {spent:.4g} in "
                f"{uploads.n_rounds} rounds, more than the limit epsilon={limit:g}; set "
                f"noise_multiplier to {enough:.4g} or leave it out, lower n_rounds, or raise the "
                "limit."
            )
    return factor * noise, noise


def planned_events(
    mechanism: CentralDP, uploads: PlannedUploads
) -> tuple[tuple[Event, ...], float]:
    """Return the rounds' events of noise multiplier 1, and the set-up's factor to it."""
    by_clients = mechanism.noise == "clients"
    kind = "skellam" if by_clients else "gaussian"
    factor, share = 1.0, mechanism.setup_share
    share = uploads.setup_share if share is None else share
    if uploads.n_setups and share is not None:
        factor = float(np.sqrt(uploads.n_setups * (1 - share) / (share * uploads.uses)))
    count = uploads.n_rounds if uploads.probability < 1 else int(uploads.uses)
    size = max(uploads.sizes.values()) if by_clients else 1
    events = [Event(kind, factor, uploads.n_setups, size=size)] if uploads.n_setups else []
    events.append(Event(kind, 1.0, count, uploads.probability, size))
    return tuple(events), factor


def sampling_of(uploads: PlannedUploads) -> str:
    """Return what the guarantee assumes about who takes part in a round."""
    if uploads.probability < 1:
        return f"each client joins a round with probability {uploads.probability:g}, in secret"
    if uploads.uses >= uploads.n_rounds:
        return "every client may be in every round"
    return "cohorts take turns" if uploads.rotates else "cohorts at random, which count as known"


def warn_of_cost(plan: FitPlan, n_clients: int) -> None:
    """Warn, before any work, if clients' shares of the noise under secure sums take long."""
    mechanism, scheme = plan.federation.central_dp, plan.federation.secure_aggregation
    if mechanism is None or mechanism.noise != "clients" or scheme is None:
        return
    uploads = PlannedUploads.of(plan, n_clients, Key(0))
    sizes, n_uploads = uploads.sizes, int(uploads.cohort * uploads.n_rounds)
    if plan.algorithm.traits.sends_once:
        n_uploads = min(n_uploads, n_clients)
    n_values = n_uploads * sizes["round"] + uploads.n_setups * n_clients * sizes["setup"]
    start = time.process_time()
    central_dp.skellam(1e4, (SAMPLE,), np.random.default_rng(0))
    seconds = n_values * (time.process_time() - start) / SAMPLE
    if seconds < LONG:
        return
    nbytes = n_uploads * scheme._bytes_of_vector(sizes["round"], int(uploads.cohort))
    warn(
        f"Each client draws its share of the noise in {n_uploads:,} uploads of {sizes['round']:,} "
        f"numbers, which takes at least {seconds:,.0f} s on this machine. Under secure sums "
        f"clients send {nbytes / 1e9:,.2g} GB in all. Lower n_rounds, client_fraction or "
        "n_factors, or try a part of the clients first."
    )
