"""From the clients to the server: validation, robust aggregation, sums and their audit."""

from __future__ import annotations

import numpy as np

from fedrecsk._checks import Diverged
from fedrecsk.privacy.local_dp import PrivacyReport
from fedrecsk.simulation.messages import Total, Upload
from fedrecsk.uploads import add_sums


class Uplink:
    """Takes what clients contribute, and makes of it what the server gets to see.

    Parameters
    ----------
    federation : Federation
    ledger : Ledger
    downlink : Downlink
        Which owes encrypted sums to the clients.
    channel : SecureChannel or None
    n_clients : int
    """

    def __init__(self, federation, ledger, downlink, channel, n_clients):
        self.federation = federation
        self.ledger = ledger
        self.downlink = downlink
        self.channel = channel
        self._uploads = np.zeros(n_clients, dtype=np.int64)
        self._coordinates = np.zeros(n_clients, dtype=np.int64)

    def collect(self, contributions, forms, key, *, learned=False):
        """Add up the contributions to one step.

        Parameters
        ----------
        contributions : iterable of Contribution
            Well-formed, and taken one at a time.
        forms : dict of {str: Form}
        key : Key
        learned : bool
            Whether they are what clients have learned in a round.

        Returns
        -------
        Upload or None
            None if nothing arrived, or too few uploads for the aggregator.

        Raises
        ------
        ValueError
            If uploads arrived and every one of them held NaN or infinite values, or was malformed.
        """
        totals, deferred, batches = {}, {}, []
        n_arrived, n_accepted, n_without_noise = 0, 0, 0
        sent = False
        for contribution in contributions:
            sent = True
            self._measure(contribution, forms, learned)
            n_arrived += int(contribution.arrives.sum())
            n_accepted += int(contribution.accepted.sum())
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
            if n_arrived:
                when = "the set-up" if key.round < 0 else f"round {key.round}"
                raise Diverged(
                    f"The clients diverged: all {n_arrived} uploads of {when} held NaN or infinite "
                    "values."
                )
            return None
        if batches:
            changes = self._combined(batches)
            if changes is None:
                return None
            add_sums(totals, changes)
            for batch in batches:
                add_sums(totals, batch.sum_of_rest())
            if self.channel is not None:
                totals = self._audited(batches, totals, forms, key)
        for group, ((name, _), one) in enumerate(deferred.items()):
            generator = key.generator(f"compression of {name} by group {group}")
            add_sums(totals, {name: one.total(generator).reshape(forms[name].shape)})
        if self.federation.local_dp is not None and n_without_noise:
            self._add_noise(totals, forms, n_without_noise, key)
        if sent and self.channel is not None:
            self.downlink.owe(self.channel.nbytes(aligned_size(forms)))
        totals = {name: Total(totals[name], n_accepted) for name in forms}
        return Upload(n_accepted, batches, **totals)

    def _combined(self, batches):
        aggregator = self.federation.aggregator
        if aggregator is not None:
            return aggregator._combine_batches(batches)
        sums = {}
        for batch in batches:
            add_sums(sums, {name: batch.sum_of_changes(name) for name in batch.changes})
        return sums

    def _add_noise(self, totals, forms, n_clients, key):
        """The noise of so many clients, drawn for their sum."""
        mechanism = self.federation.local_dp
        for name, form in forms.items():
            mechanism._check_form(name, form)
            generator = key.generator(f"noise of {name}")
            noise = mechanism.summed_noise(n_clients, form.shape, generator)
            totals[name] = totals[name] + noise

    def _audited(self, batches, totals, forms, key):
        """Encrypt the audited clients' uploads; take the decrypted sum if that is all of them.

        A sample is only checked, so that the noise of ciphertexts, which no seed can repeat,
        stays out of the model.
        """
        accepted = np.concatenate([batch.clients[batch.accepted] for batch in batches])
        self.channel.check(max(_largest(batch) for batch in batches), len(accepted))
        chosen = self.channel.audited(accepted, key)
        vectors = [
            np.concatenate([np.ravel(values) for values in batch.whole(client).values()])
            for batch in batches
            for client in np.flatnonzero(batch.accepted & np.isin(batch.clients, list(chosen)))
        ]
        decrypted = self.channel.sum(vectors, len(accepted))
        self.ledger.count(encrypted=len(vectors))
        if self.channel.scheme.audit != "all":
            return totals
        ends = np.cumsum([np.prod(form.shape, dtype=np.int64) for form in forms.values()])
        parts = np.split(decrypted, ends[:-1])
        return {
            name: np.rint(part.reshape(form.shape)).astype(np.int64)
            if form.is_integer
            else part.reshape(form.shape)
            for (name, form), part in zip(forms.items(), parts, strict=True)
        }

    def _measure(self, contribution, forms, learned):
        sends = contribution.sends
        clients = contribution.clients[sends]
        nbytes, payload, coordinates = (sizes[sends] for sizes in contribution.sizes)
        if self.channel is not None:
            nbytes = np.full(len(clients), self.channel.nbytes(aligned_size(forms)))
        self.ledger.up(clients, nbytes, payload if learned else None)
        self._uploads[clients] += 1
        self._coordinates[clients] += coordinates

    def privacy_report(self, server_sees):
        """What the uploads so far cost in privacy, given what the server sees of them."""
        mechanism = self.federation.local_dp
        return PrivacyReport.of(mechanism, self._uploads, self._coordinates, server_sees)


def aligned_size(forms):
    """Numbers in the vector that every client encrypts; they must be the same for all."""
    for name, form in forms.items():
        if form.rows != "all":
            raise RuntimeError(
                f"Field {name!r} has rows of some items only, which do not add up under "
                'encryption; a method must declare Form(..., rows="all") under a secure sum.'
            )
    return sum(int(np.prod(form.shape, dtype=np.int64)) for form in forms.values())


def _largest(batch):
    """Bound on the size of any number that an accepted client sends."""
    changes = [c.largest(batch.accepted).max(initial=0) for c in batch.changes.values()]
    counts = [c.largest(batch.accepted).max(initial=0) for c in batch.counts.values()]
    centers = [np.abs(center).max(initial=0) for center in batch.centers.values()]
    return float(max(changes, default=0) + max([*counts, *centers], default=0))
