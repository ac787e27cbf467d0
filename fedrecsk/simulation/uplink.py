"""Uploads on the server: robust aggregation, sums, and audits of encryption."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedrecsk._checks import Diverged
from fedrecsk.privacy.report import PrivacyReport
from fedrecsk.simulation.contributions import Counts
from fedrecsk.simulation.messages import Total, Upload
from fedrecsk.simulation.release import warn_of_delta
from fedrecsk.uploads import add_sums

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from fedrecsk.privacy import GaussianMechanism, LaplaceMechanism
    from fedrecsk.simulation.contributions import Contribution
    from fedrecsk.simulation.downlink import Downlink
    from fedrecsk.simulation.encryption import SecureChannel
    from fedrecsk.simulation.federation import Federation
    from fedrecsk.simulation.keys import Key
    from fedrecsk.simulation.ledger import Ledger
    from fedrecsk.simulation.release import Releases
    from fedrecsk.uploads import Batch, Form


class Uplink:
    """Turns the clients' contributions into what the server sees.

    Parameters
    ----------
    federation : Federation
    ledger : Ledger
    downlink : Downlink
        Sends encrypted sums to the clients.
    channel : SecureChannel or None
    n_clients : int
    releases : Releases or None
        Adds central noise.
    """

    def __init__(
        self,
        federation: Federation,
        ledger: Ledger,
        downlink: Downlink,
        channel: SecureChannel | None,
        n_clients: int,
        releases: Releases | None = None,
    ) -> None:
        self.federation = federation
        self.releases = releases
        self.ledger = ledger
        self.downlink = downlink
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

    def measure(self, contributions: Iterable[Contribution], forms: dict[str, Form]) -> None:
        """Count the contributions of late clients to the set-up, which nothing else is made of."""
        for one in contributions:
            self._measure(one, forms, False)
            accepted = int(one.accepted.sum())
            self.ledger.count(messages_up=accepted, rejected=int(one.arrives.sum()) - accepted)

    def collect(
        self,
        contributions: Iterable[Contribution],
        forms: dict[str, Form],
        key: Key,
        *,
        learned: bool = False,
        trusted: bool = True,
        centers: dict[str, np.ndarray] | None = None,
    ) -> Upload | None:
        """Combine the contributions to one step.

        Parameters
        ----------
        contributions : iterable of Contribution
            Well-formed contributions, read one at a time.
        forms : dict of {str: Form}
        key : Key
        learned : bool
            Whether they are uploads of a round.
        trusted : bool
            Whether they come from our own clients, who have diverged if all uploads are broken.
            Others may be broken in other ways, and count as if none had arrived.
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
        totals, deferred, batches = {}, {}, []
        n_arrived, n_accepted, n_without_noise = 0, 0, 0
        senders, counts, sent = [], Counts(), False
        for contribution in contributions:
            sent = True
            self._measure(contribution, forms, learned)
            n_arrived += int(contribution.arrives.sum())
            n_accepted += int(contribution.accepted.sum())
            counts = counts.plus(contribution.counts)
            senders.append(contribution.clients[contribution.sends])
            if contribution.batch is not None:
                batches.append(contribution.batch)
                continue
            add_sums(totals, contribution.sums)
            n_without_noise += contribution.n_without_noise
            for name, one in contribution.deferred:
                place = name, id(one.common)
                deferred[place] = deferred[place].merged(one) if place in deferred else one
        self.ledger.count(messages_up=n_accepted, rejected=n_arrived - n_accepted)
        if n_accepted == 0:
            if n_arrived and trusted:
                when = "the set-up" if key.round < 0 else f"round {key.round}"
                raise Diverged(
                    f"The clients diverged: all {n_arrived} uploads of {when} held NaN or infinite "
                    "values."
                )
            if self.releases is None or not (sent or self.releases.always):
                return None
        if batches:
            changes = self._combined(batches)
            if changes is None:
                return None
            add_sums(totals, changes)
            for batch in batches:
                add_sums(totals, batch.sum_of_rest())
            if self.channel is not None:
                totals = self._audited(self.channel, batches, totals, forms, key)
        for group, ((name, _), one) in enumerate(deferred.items()):
            generator = key.generator(f"compression of {name} by group {group}")
            add_sums(totals, {name: one.total(generator).reshape(forms[name].shape)})
        mechanism = self.federation.local_dp
        if mechanism is not None and n_without_noise:
            _add_noise(totals, forms, mechanism, n_without_noise, key)
        if sent and self.channel is not None:
            self.downlink.owe(self.channel.nbytes(aligned_size(forms)))
        if self.releases is not None:
            self.releases.charge(senders, key, counts)
            return self.releases.publish(totals, forms, key, counts, centers or {})
        totals = {name: Total(totals[name], n_accepted) for name in forms}
        return Upload(n_accepted, batches, **totals)

    def _combined(self, batches):
        aggregator = self.federation.aggregator
        if aggregator is not None:
            return aggregator._combine_batches(batches, self._memory)
        sums = {}
        for batch in batches:
            add_sums(sums, {name: batch.sum_of_changes(name) for name in batch.changes})
        return sums

    def _audited(self, channel, batches, totals, forms, key):
        """Encrypt the audited clients' uploads, and use the decrypted sum if these are all clients.

        The sum of a sample is only checked, because ciphertexts are noisy and their noise cannot
        be repeated by a seed.
        """
        accepted = np.concatenate([batch.clients[batch.accepted] for batch in batches])
        channel.check(max(_largest(batch) for batch in batches), len(accepted))
        chosen = channel.audited(accepted, key)
        vectors = [
            as_vector(batch, client)
            for batch in batches
            for client in np.flatnonzero(batch.accepted & np.isin(batch.clients, list(chosen)))
        ]
        decrypted = channel.sum(vectors, len(accepted))
        self.ledger.count(encrypted=len(vectors))
        if channel.scheme.audit != "all":
            return totals
        return fields_of(decrypted, forms)

    def _measure(self, contribution, forms, learned):
        sends = contribution.sends
        clients = contribution.clients[sends]
        nbytes, payload, coordinates = (sizes[sends] for sizes in contribution.sizes)
        if self.channel is not None:
            nbytes = np.full(len(clients), self.channel.nbytes(aligned_size(forms)))
        self.ledger.up(clients, nbytes, payload if learned else None)
        self._uploads[clients] += 1
        self._coordinates[clients] += coordinates

    def privacy_report(self, server_sees: str) -> PrivacyReport:
        """Report the privacy loss of all uploads so far, given what the server sees of them."""
        if self.releases is not None:
            return self.releases.report(int(self._coordinates.max(initial=0)), server_sees)
        mechanism = self.federation.local_dp
        return PrivacyReport.of(mechanism, self._uploads, self._coordinates, server_sees)


def aligned_size(forms: dict[str, Form]) -> int:
    """Length of the vector that every client encrypts, which must be equal for all."""
    for name, form in forms.items():
        if form.rows != "all":
            raise RuntimeError(
                f"Field {name!r} has rows of some items only, which cannot be added under "
                'encryption; a method must declare Form(..., rows="all") for secure sums.'
            )
    return sum(int(np.prod(form.shape, dtype=np.int64)) for form in forms.values())


def as_vector(batch: Batch, client: int) -> NDArray[np.float64]:
    """All numbers of one client's upload, one field after the other; `client` is its place."""
    return np.concatenate([np.ravel(values) for values in batch.whole(client).values()])


def fields_of(vector: NDArray[np.float64], forms: dict[str, Form]) -> dict[str, np.ndarray]:
    """The fields again, of one vector or of a sum."""
    ends = np.cumsum([np.prod(form.shape, dtype=np.int64) for form in forms.values()])
    parts = np.split(vector, ends[:-1])
    return {
        name: np.rint(part.reshape(form.shape)).astype(np.int64)
        if form.is_integer
        else part.reshape(form.shape)
        for (name, form), part in zip(forms.items(), parts, strict=True)
    }


def _add_noise(totals, forms, mechanism: GaussianMechanism | LaplaceMechanism, n_clients, key):
    """Add the noise of `n_clients` clients, drawn for their sum.

    Each client's numbers are on a grid, which is too fine to matter for the sum.
    """
    for name, form in forms.items():
        mechanism._check_form(name, form)
        generator = key.generator(f"noise of {name}")
        noise = mechanism.summed_noise(n_clients, form.shape, generator)
        totals[name] = totals[name] + noise


def _largest(batch):
    """Bound on the absolute values that accepted clients send."""
    changes = [c.largest(batch.accepted).max(initial=0) for c in batch.changes.values()]
    counts = [c.largest(batch.accepted).max(initial=0) for c in batch.counts.values()]
    centers = [np.abs(center).max(initial=0) for center in batch.centers.values()]
    return float(max(changes, default=0) + max([*counts, *centers], default=0))
