"""Uploads on the server: robust aggregation, sums, and audits of encryption."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedrecsk.data._checks import Diverged
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.protocol.central_noise import warn_of_delta
from fedrecsk.protocol.masking import MaskedChannel
from fedrecsk.protocol.messages import Total, Upload
from fedrecsk.updates import Counts, RoundUpdates, add_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism
    from fedrecsk.protocol.central_noise import CentralNoise
    from fedrecsk.protocol.downlink import Downlink
    from fedrecsk.protocol.encryption import SecureChannel
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.keys import Key
    from fedrecsk.protocol.ledger import Ledger
    from fedrecsk.updates import ClientUpdates, FieldSpec, HeldUpdates


class Uplink:
    """Turns the clients' updates into what the server sees.

    Parameters
    ----------
    federation : Federation
    ledger : Ledger
    downlink : Downlink
        Sends encrypted sums to the clients.
    channel : SecureChannel, MaskedChannel or None
    n_clients : int
    releases : CentralNoise or None
        Adds central noise.
    """

    def __init__(
        self,
        federation: Federation,
        ledger: Ledger,
        downlink: Downlink,
        channel: SecureChannel | MaskedChannel | None,
        n_clients: int,
        releases: CentralNoise | None = None,
    ) -> None:
        self.federation = federation
        self.releases = releases
        self.ledger = ledger
        self.downlink = downlink
        # One of the two, if sums are secure.
        self.channel: SecureChannel | None = None
        self.masks: MaskedChannel | None = None
        if isinstance(channel, MaskedChannel):
            self.masks = channel
        else:
            self.channel = channel
        if federation.local_dp is not None:
            warn_of_delta(federation.local_dp, n_clients)
        aggregator = federation.aggregator
        # What the aggregator remembers over the rounds.
        self._memory = {} if aggregator is None else aggregator._start(ledger.client_ids)
        self._uploads = np.zeros(n_clients, dtype=np.int64)
        self._coordinates = np.zeros(n_clients, dtype=np.int64)

    def admit(self, n_clients: int) -> None:
        """Add clients that join late."""
        self._uploads = np.pad(self._uploads, (0, n_clients))
        self._coordinates = np.pad(self._coordinates, (0, n_clients))

    def close(
        self, total: StepTotal, key: Key, centers: dict[str, np.ndarray] | None = None
    ) -> Upload | None:
        """Combine the updates of all blocks in one step.

        Parameters
        ----------
        total : StepTotal
        key : Key
        centers : dict of {str: ndarray} or None
            What a client without any change sends, unless that is zero; for central privacy only.

        Returns
        -------
        Upload or None
            None if no sound upload arrived, or too few for the aggregator.

        Raises
        ------
        ValueError
            If all uploads that arrived hold NaN or infinite values, or are malformed.
        """
        n_arrived, n_accepted, totals = total.n_arrived, total.n_accepted, total.sums
        specs, senders, counts = total.specs, total.senders, total.counts
        self.ledger.count(messages_up=n_accepted, rejected=n_arrived - n_accepted)
        if n_accepted == 0:
            if n_arrived and total.is_trusted:
                when = "the set-up" if key.round < 0 else f"round {key.round}"
                raise Diverged(
                    f"The clients diverged: all {n_arrived} uploads of {when} held NaN or infinite "
                    "values."
                )
            if self.releases is None or not (senders or self.releases.always):
                return None
        single = None
        if self.masks is not None and not self._opened(total, key):
            return None
        if total.held and n_accepted and self.masks is not None:
            single = RoundUpdates(total.held)
            totals = self.masks.sum(single, specs, self.steps(specs, key), key)
        elif self.masks is not None:
            totals = self.masks.rounded(totals, specs)
        elif total.held and n_accepted:
            single = RoundUpdates(total.held)
            changes = self._combined(single, robustly=total.learned)
            if changes is None:
                return None
            add_sums(totals, changes)
            add_sums(totals, single.rest())
            if self.channel is not None:
                totals = self._audited(self.channel, single, totals, specs, key)
        mechanism = self.federation.local_dp
        if mechanism is not None and total.n_without_noise:
            _add_noise(totals, specs, mechanism, total.n_without_noise, key)
        if senders and self.channel is not None:
            self.downlink.owe(self.channel.nbytes(aligned_size(specs)))
        if self.releases is not None:
            self.releases.charge(senders, key, counts)
            return self.releases.publish(totals, specs, key, counts, centers or {})
        totals = {name: Total(totals[name], n_accepted) for name in specs}
        return Upload(n_accepted, single, **totals)

    def _opened(self, total, key):
        """Count a masked sum's messages, and return whether it can be unmasked."""
        assert self.masks is not None
        if not total.senders:
            return False
        senders, arrived = (np.concatenate(one) for one in (total.senders, total.arrived))
        return self.masks.open(senders, arrived, aligned_size(total.specs), key, self.ledger)

    def steps(self, specs: dict[str, FieldSpec], key: Key) -> dict[str, float]:
        """Return the grid to which clients have rounded each field, if they add central noise."""
        return {} if self.releases is None else self.releases.steps(specs, key)

    def _combined(self, updates, *, robustly):
        """Combine the learned fields; None if there are too few clients for the aggregator."""
        aggregator = self.federation.aggregator
        if aggregator is not None and robustly:
            return aggregator._combine(updates, self._memory)
        return {name: updates.sum(name) for name in updates.specs}

    def _audited(self, channel, updates, totals, specs, key):
        """Encrypt the audited clients' uploads, and use the decrypted sum if these are all clients.

        The sum of a sample is only checked, because ciphertexts are noisy and their noise cannot
        be repeated by a seed.
        """
        codes = updates.codes
        channel.check(max(updates.each(_largest)), len(codes))
        chosen = channel.audited(codes, key)
        places = np.searchsorted(codes, sorted(chosen)).tolist()
        vectors = [as_vector(updates.one(place), 0) for place in places]
        decrypted = channel.sum(vectors, len(codes))
        self.ledger.count(encrypted=len(vectors))
        if channel.scheme.audit != "all":
            return totals
        return fields_of(decrypted, specs)

    def count_encrypted(self, clients: NDArray[np.int64], n_values: int, nbytes: int) -> None:
        """Count ciphertexts of `n_values` numbers from these clients (codes)."""
        self.ledger.up(clients, np.full(len(clients), nbytes), None)
        self._uploads[clients] += 1
        self._coordinates[clients] += n_values

    def privacy_report(self, server_sees: str) -> PrivacyReport:
        """Report the privacy loss of all uploads so far, given what the server sees of them."""
        if self.releases is not None:
            report = self.releases.report(int(self._coordinates.max(initial=0)), server_sees)
        else:
            mechanism = self.federation.local_dp
            report = PrivacyReport.of(mechanism, self._uploads, self._coordinates, server_sees)
        if self.masks is None:
            return report
        plan, trust = self.masks.plan, report.trust.replace("uploads", "sums")
        seen = f"{plan.threshold} of the client's {plan.n_neighbors} neighbours"
        return replace(report, trust=f"{trust}; a single upload is seen by the server with {seen}")


class StepTotal:
    """What has arrived of all blocks' updates in one step.

    Parameters
    ----------
    uplink : Uplink
    specs : dict of {str: FieldSpec}
    learned : bool
        Whether they are uploads of a round.

    Attributes
    ----------
    is_trusted : bool
        Whether they come from our own clients, who have diverged if all uploads are broken.
        Others may be broken in other ways, and count as if none had arrived.
    """

    def __init__(
        self, uplink: Uplink, specs: dict[str, FieldSpec], *, learned: bool = False
    ) -> None:
        self.uplink = uplink
        self.specs = specs
        self.learned = learned
        self.is_trusted = True
        self.sums: dict[str, np.ndarray] = {}
        self.held: list[HeldUpdates] = []
        self.senders: list[np.ndarray] = []
        self.arrived: list[np.ndarray] = []
        self.accepted: list[np.ndarray] = []
        self.counts: Counts = Counts()
        self.n_arrived: int = 0
        self.n_accepted: int = 0
        self.n_without_noise: int = 0

    def add(self, updates: ClientUpdates) -> None:
        """Add the updates of a block, and count their bytes."""
        uplink, n_accepted = self.uplink, int(updates.accepted.sum())
        senders = updates.clients[updates.sends]
        nbytes, payload, coordinates = updates.sizes[:, updates.sends]
        if uplink.channel is not None:
            nbytes = np.full(len(senders), uplink.channel.nbytes(aligned_size(self.specs)))
        if uplink.masks is not None:
            # Counted when all have come, because masked numbers depend on how many they are.
            nbytes = np.zeros_like(nbytes)
        uplink.ledger.up(senders, nbytes, payload if self.learned else None)
        uplink._uploads[senders] += 1
        uplink._coordinates[senders] += coordinates
        self.senders.append(senders)
        self.arrived.append(updates.clients[updates.arrives])
        self.accepted.append(updates.clients[updates.accepted])
        self.n_arrived += len(self.arrived[-1])
        self.n_accepted += n_accepted
        self.counts = self.counts.plus(updates.counts)
        if updates.held is not None:
            self.held.append(updates.held)
        else:
            add_sums(self.sums, updates.fields)
            self.n_without_noise += n_accepted * updates.lacks_noise


def aligned_size(specs: dict[str, FieldSpec]) -> int:
    """Length of the vector that every client encrypts, which must be equal for all."""
    for name, spec in specs.items():
        if spec.rows != "all":
            raise RuntimeError(
                f"Field {name!r} has rows of some items only, which cannot be added under "
                'encryption; a method must declare FieldSpec(..., rows="all") for secure sums.'
            )
    return sum(int(np.prod(spec.shape, dtype=np.int64)) for spec in specs.values())


def as_vector(updates: ClientUpdates, client: int) -> NDArray[np.float64]:
    """Return all numbers of one client, by its place, one field after the other."""
    return np.concatenate([np.ravel(values) for values in updates.whole(client).values()])


def fields_of(vector: NDArray[np.float64], specs: dict[str, FieldSpec]) -> dict[str, np.ndarray]:
    """Return the fields again, of one vector or of a sum."""
    ends = np.cumsum([np.prod(spec.shape, dtype=np.int64) for spec in specs.values()])
    parts = np.split(vector, ends[:-1])
    return {
        name: np.rint(part.reshape(spec.shape)).astype(np.int64)
        if spec.is_integer
        else part.reshape(spec.shape)
        for (name, spec), part in zip(specs.items(), parts, strict=True)
    }


def _add_noise(totals, specs, mechanism: GaussianMechanism | LaplaceMechanism, n_clients, key):
    """Add the noise of `n_clients` clients, drawn for their sum.

    Each client's numbers are on a grid, which is too fine to matter for the sum.
    """
    for name, spec in specs.items():
        mechanism._check_spec(name, spec)
        generator = key.generator(f"noise of {name}")
        noise = mechanism.summed_noise(n_clients, spec.shape, generator)
        totals[name] = totals[name] + noise


def _largest(updates):
    """Bound the absolute numbers that these clients send."""
    sizes = [0.0]
    for rows in updates.fields.values():
        center = 0.0 if rows.center is None else np.abs(rows.center).max(initial=0)
        sizes.append(rows.largest().max(initial=0) + center)
    return float(max(sizes))
