"""SecAgg+: sums of masked vectors, from which the server learns the sum and nothing else."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from fedrecsk._utils.constraints import Above0To1, AtLeast2, From0Below1, Positive
from fedrecsk._utils.sklearn_compat import Interval
from fedrecsk.privacy._secagg_protocol import FEWEST_CLIENTS, MaskingPlan
from fedrecsk.privacy._secure_aggregation import SecureAggregation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.updates import FieldSpec

# Numbers that are not learned (counts, sums of ratings or losses) are larger, and have coarser
# steps, by this many bits.
COARSER_BITS = 11
# Of a masked number, of 64 bits with its sign.
MOST_BITS = 63
# Bits of security: the odds that the graph gives a client too many colluding neighbours.
SECURITY_BITS = 40
# Bits of correctness: the odds that a client has too few neighbours left to unmask it.
CORRECTNESS_BITS = 30


@dataclass(eq=False, repr=False)
class SecAggPlus(SecureAggregation):
    """Secure sums by masks that cancel: SecAgg+ (Bell et al., CCS 2020).

    The server learns the sum over the clients whose uploads arrived, and nothing else, as long as
    it follows the protocol and fewer than `threshold` of a client's neighbours collude with it. A
    lying server sees no sum over a single client, as long as at most ``2 t - k - 1`` of a client's
    k neighbours, of whom t must answer, collude with it. But over two rounds it can send the same
    model, and leave one client out of the second sum: the difference is that client's upload, if
    it depends on the model alone. Only noise protects from this, see
    ``CentralDP(noise="clients")``. Each client generates its own keys.
    Numbers are rounded to fixed point and added exactly. Clients may be lost at any time. Needs the
    extra ``fedrecsk[privacy]``.

    Parameters
    ----------
    threshold : "auto" or float in (0, 1], default="auto"
        Share of a client's neighbours that must answer so that its masks can be removed; above a
        half. As many colluding neighbours reveal its upload. "auto": as large as `max_dropout`
        allows.
    n_neighbors : "auto" or int, default="auto"
        Number of neighbours of each client. "auto": the fewest at which, in a random graph,
        `max_dropout` and `max_colluding` clients do no harm, but for odds of 2 ** -30 that a sum is
        lost and of 2 ** -40 that any client is exposed; all others, if clients add noise. An even
        number, or all others.
    max_dropout : float in [0, 0.5), default=1/3
        Share of the clients of a sum that may be lost. Fewer of them need fewer neighbours, and
        less noise if clients add it. In sums over few clients, safety comes first, and fewer may be
        lost.
    max_colluding : float in [0, 1), default=0.05
        Share of the clients that may collude with the server, even with a lying one, as long as it
        draws the graph at random.
    max_abs : float, default=16.0
        Largest size of a learned number that a client may send. Real numbers that are not learned,
        such as sums of ratings or losses, may be 2,048 times as large, and integers
        ``2 ** fraction_bits`` times.
    fraction_bits : int, default=17
        Bits after the binary point: learned numbers are rounded to multiples of
        ``2 ** -fraction_bits``, other real numbers to 2,048 times that.

    Notes
    -----
    A masked number has the fewest bits at which a sum over all clients, with their noise, cannot
    overflow. Keys are
    X25519, expanded by HKDF-SHA256, and signed by Ed25519; masks are ChaCha20's key stream; shares
    are Shamir's, over the prime 2 ** 128 + 51, and encrypted by ChaCha20-Poly1305; neighbours
    confirm the list of survivors to one another by HMAC-SHA256. The server draws the graph. If it
    places colluding clients around one client on purpose, this goes unnoticed, and a client
    withstands ``2 t - k - 1`` of them in all.

    Examples
    --------
    >>> from fedrecsk.privacy import SecAggPlus
    >>> scheme = SecAggPlus()
    >>> plan = scheme.plan(6040)
    >>> plan.n_neighbors, plan.threshold, plan.n_bits
    (862, 480, 35)
    """

    threshold: Above0To1 | Literal["auto"] = "auto"
    n_neighbors: AtLeast2 | Literal["auto"] = "auto"
    _: KW_ONLY
    max_dropout: Annotated[float, Interval(Real, 0, 0.5, closed="left")] = 1 / 3
    max_colluding: From0Below1 = 0.05
    max_abs: Positive = 16.0
    fraction_bits: Annotated[int, Interval(Integral, COARSER_BITS, 40, closed="both")] = 17

    _extra = ("cryptography",)
    hides_sums = False

    def _check_parameters(self):
        if 2 * self.max_dropout + self.max_colluding >= 1:
            raise ValueError(
                f"max_dropout={self.max_dropout:g} and max_colluding={self.max_colluding:g} leave "
                "too few honest clients against a server that lies about who is lost; 2 * "
                "max_dropout + max_colluding must be below 1."
            )
        self.plan(FEWEST_CLIENTS)

    def plan(self, n_clients: int, noisy: float | None = None) -> MaskingPlan:
        """Return neighbours, threshold and bits of a sum over `n_clients`, at least three.

        If clients add noise, `noisy` is the largest integer that their sum may have, or 0 if that
        is not known yet; None: they add none.

        Raises
        ------
        ValueError
            If `threshold` or `n_neighbors` does not keep what `max_dropout` and `max_colluding` ask
            for, or if numbers need more than 63 bits.
        """
        self._check_n_clients(n_clients)
        if n_clients < FEWEST_CLIENTS:
            raise ValueError(
                f"SecAggPlus needs at least {FEWEST_CLIENTS} clients in a sum, but got "
                f"{n_clients}: a sum over one is its upload, and of a sum over two each knows the "
                "other's part. Raise client_fraction, or find more clients."
            )
        n_bits = 1 + math.ceil(math.log2(max(n_clients * self._largest, noisy or 0) + 1))
        if n_bits > MOST_BITS:
            raise ValueError(
                f"Sums over {n_clients} clients need {n_bits} bits, and {MOST_BITS} is the most; "
                f"lower max_abs={self.max_abs:g} or fraction_bits={self.fraction_bits}."
            )
        n_neighbors = self.n_neighbors
        if noisy is not None and n_neighbors == "auto":
            n_neighbors = n_clients - 1
        neighbours = _neighbours(
            n_clients, self.threshold, n_neighbors, self.max_dropout, self.max_colluding
        )
        return MaskingPlan(n_clients, *neighbours, n_bits)

    def n_helpers(self, n_clients: int) -> int:
        """Return how many clients of a sum over `n_clients` may collude, by `max_colluding`."""
        return math.floor(self.max_colluding * n_clients)

    def sure_shares(self, n_clients: int) -> int:
        """Return how many shares of noise, beside a client's own, are in every sum with it.

        The noise must have variance V. If each client adds a share of variance V / m, with m this
        number, then whatever a server sends to whom, it sees no sum in which the honest clients
        beside any one of them have less noise than V.

        *Assumption.* At most c clients help the server, c = `max_colluding` of `n_clients`. They
        add no noise, or tell how much.

        *Proof.* A sum that is seen and has a client's upload has at least 2 t - k - c other honest
        clients (``fedrecsk/privacy/_secagg_protocol.py``). Here m = 2 t - k - c, so that the
        independent shares of these have variance (2 t - k - c) V / m = V; more shares only add to
        it. The server cannot make m larger than it is, because k and t belong to the name of the
        sum: clients with others are no neighbours, and a client that was told of more clients
        before refuses a sum whose m is below that of its share. Nor can it add up two sums with
        the upload, because a client masks one vector per exchange.
        """
        plan = self.plan(n_clients, noisy=0.0)
        return plan.max_colluding_with_liar + 1 - self.n_helpers(n_clients)

    def _bytes_of_vector(self, n_values: int, n_clients: int) -> int:
        return self.plan(n_clients).nbytes(n_values)

    @property
    def _largest(self):
        """Largest integer that a client may send."""
        return math.ceil(self.max_abs * 2**self.fraction_bits)

    def max_value(self, n_clients: int = 1) -> float:
        """Return the largest size of a value that may enter a sum, whatever `n_clients` is."""
        return self._largest / 2.0**self.fraction_bits

    def precision(self, n_clients: int = 1, max_abs: float = 1.0) -> float:
        """Bound on the absolute error of a sum: half a unit of the fixed point for each client."""
        self._check_n_clients(n_clients)
        return n_clients * 2.0 ** -(self.fraction_bits + 1)

    def max_integer(self, n_clients: int = 1) -> int:
        return self._largest

    def unit_of(self, spec: FieldSpec) -> float:
        """Return the step to which clients round the numbers of a field."""
        if spec.is_integer:
            return 1.0
        return 2.0 ** -(self.fraction_bits - (0 if spec.learned else COARSER_BITS))

    def fixed(
        self, numbers: NDArray[Any], unit: float, *, checks: bool = True
    ) -> NDArray[np.int64]:
        """Return the nearest integers of numbers in units; if `checks`, none may be too large."""
        if unit != 1 or numbers.dtype.kind == "f":
            numbers = np.rint(numbers * (1 / unit))
        if checks and numbers.size:
            self.check_fixed(max(float(numbers.max()), -float(numbers.min())), unit)
        return numbers.astype(np.int64)

    def check_fixed(self, largest: float, unit: float) -> None:
        """Raise a ValueError if an integer of size `largest`, in units, is too large."""
        if not largest <= self._largest:
            raise ValueError(
                f"A number of size {largest * unit:.6g} is too large for {self}, which holds "
                f"{self._largest * unit:.6g} in this field. Scale the values down, or raise "
                f"max_abs to at least {largest / 2.0**self.fraction_bits:.4g}."
            )

    def describe(self, n_clients: int, noisy: float | None = None) -> str:
        """Say what each party of a sum learns, alone and with helpers; parameters as of `plan`."""
        plan = self.plan(n_clients, noisy)
        return (
            f"The server sees the sum over the clients that answered. With {plan.threshold} of a "
            f"client's {plan.n_neighbors} neighbours it sees that client's upload; "
            f"{plan.max_colluding} learn nothing but the sum less their own uploads. If the server "
            f"lies, {plan.max_colluding_with_liar} of them may help it, and one sum shows no "
            "upload; two sums of a model that it repeats do, unless clients add noise. "
            "A client alone sees keys, shares that say nothing, and the model."
        )


@functools.lru_cache
def _neighbours(n_clients, threshold, n_neighbors, max_dropout, max_colluding):
    """Return the number of neighbours and the threshold."""
    others = n_clients - 1

    def keeps(k):
        return _threshold(min(k, others), n_clients, threshold, max_dropout, max_colluding)[1]

    if n_neighbors == "auto":
        # Even numbers, and all others.
        candidates = range(2, others + 2, 2)
    else:
        k = min(int(n_neighbors), others)
        if k < others and k % 2:
            raise ValueError(
                f"n_neighbors={n_neighbors} must be even: half of a client's neighbours are on "
                "each side of it."
            )
        candidates = range(k, k + 1)
    first, last = 0, 0
    while last < len(candidates) - 1 and not keeps(candidates[last]):
        first, last = last + 1, min(2 * last + 1, len(candidates) - 1)
    # More neighbours are never worse, but for rounding.
    k = min(candidates[bisect_left(candidates, True, first, last, key=keeps)], others)
    t, enough = _threshold(k, n_clients, threshold, max_dropout, max_colluding)
    if not enough and k < others:
        culprit = f"n_neighbors={n_neighbors}"
        culprit = culprit if threshold == "auto" else f"{culprit} with threshold={threshold:g}"
        raise ValueError(
            f"{culprit} is too few among {n_clients} clients of whom {max_dropout:.3g} may be lost "
            f"and {max_colluding:.3g} collude: a client would be exposed, or a sum lost, too "
            'often. Set n_neighbors="auto" and threshold="auto", or lower max_dropout or '
            "max_colluding."
        )
    if not enough and threshold != "auto" and n_clients > FEWEST_CLIENTS:
        n_lost, n_helping = math.ceil(max_dropout * k), math.floor(max_colluding * n_clients)
        raise ValueError(
            f"threshold={threshold:g} asks for {t} of {k} neighbours, but {n_lost} of them may be "
            f"lost, and {n_helping} may help a server that lies, which sees uploads if {t} is not "
            f'above {(k + n_helping) / 2:g}; set threshold="auto", or lower max_dropout or '
            "max_colluding."
        )
    # Of few clients fewer may be lost, but none is exposed.
    return k, max(t, (k + math.floor(max_colluding * n_clients)) // 2 + 1) if k == others else t


def _threshold(k, n_clients, threshold, max_dropout, max_colluding):
    """Return the threshold among k neighbours, and whether it keeps both promises."""
    from scipy.stats import hypergeom

    others = n_clients - 1
    n_lost, n_colluding = math.floor(max_dropout * n_clients), math.floor(max_colluding * n_clients)
    if k == others:
        # It is no matter of chance who is a neighbour.
        t = max(2, others - n_lost if threshold == "auto" else math.ceil(threshold * k))
        return t, t <= others - n_lost and 2 * t - k > n_colluding
    counts = np.arange(k + 1)

    def odds(n_marked):
        """Return the odds that a client has this many neighbours of those marked."""
        return np.exp(hypergeom.logpmf(counts, others, max(0, n_marked), k))

    # Of all n clients, at all t: the odds of too few answers, and of enough helpers. A server that
    # lies opens an upload if 2 t - k neighbours help it.
    lost = n_clients * np.concatenate([[0.0], np.cumsum(odds(others - n_lost))[:-1]])
    helped = n_clients * np.cumsum(odds(min(others, n_colluding))[::-1])[::-1]
    exposed = helped[np.maximum(2 * counts - k, 0)]
    if threshold == "auto":
        fits = np.flatnonzero(lost <= 2.0**-CORRECTNESS_BITS)
        t = max(2, int(fits[-1]))
    else:
        t = max(2, math.ceil(threshold * k))
    # Half a client's neighbours in a row, all lost or colluding, cut the ring.
    cut = n_clients * (max_dropout + max_colluding) ** (k // 2)
    enough = (
        lost[t] <= 2.0**-CORRECTNESS_BITS
        and exposed[t] <= 2.0**-SECURITY_BITS
        and cut <= 2.0**-SECURITY_BITS
    )
    return t, bool(enough)
