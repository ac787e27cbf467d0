"""What does not go together, and what to do instead: known from a plan, before any data are read.

What a method refuses by its own parameters is in its traits (``Traits.refuses``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from fedrecsk.aggregation import FLTrust
from fedrecsk.aggregation._comparison import Comparison
from fedrecsk.compression._compressors import BlockCompressor

if TYPE_CHECKING:
    from fedrecsk.protocol.plan import FitPlan

Where = Literal[
    "fit",
    "fit on devices",
    "fit on a cluster",
    "update",
    "search",
    "evaluation",
    "measurement of leaks",
    "deployment",
    "deployed update",
    "deployed search",
    "deployed evaluation",
    "late registration",
]
PLACES = get_args(Where)
Applies = Callable[["FitPlan"], object]


class Refusal(NamedTuple):
    """A part of a federation that does not suit a plan, or a plan that does not suit a place.

    Attributes
    ----------
    where : what is about to begin
    part : name of a part of the federation, which must be set, or of something else
    applies : function of a FitPlan that returns whether it is refused, or what is wrong
    reason : why, with the {name} of the method, the {part}, its {kind}, and what was {found}
    cure : what to do instead
    """

    where: Where
    part: str
    applies: Applies
    reason: str
    cure: str


# ------------------------------------------------------------------------------ what applies


def _always(plan):
    return True


def _has(name, value):
    """Return a function that returns whether a parameter of an algorithm has this value."""
    return lambda plan: getattr(plan.algorithm, name, None) == value


def _adds_under_encryption(plan):
    return plan.federation.encrypts and plan.federation.central_dp.noise == "server"


def _is_stale(plan):
    return plan.federation.dropout > 0 and plan.federation.dropout_mode == "stale"


def _loses_clips(plan):
    return plan.federation.central_dp.quantile and _is_stale(plan)


def _parts_no_users(plan):
    if not plan.by_user:
        return None
    if plan.traits.n_exchanges:
        return "lets clients send to one another"
    return None if plan.traits.single_uploads else "has no trait single_uploads"


def _forges_by_user(plan):
    return plan.by_user and plan.federation.adversary.forges


def _is_not_stale(plan):
    is_apart = plan.traits.treats_clients_apart or plan.traits.chooses_cohorts
    return plan.federation.is_asynchronous and (is_apart or not plan.traits.takes_stale)


def _is_silent(plan):
    is_silent = plan.federation.compresses_up and plan.traits.may_be_silent
    return is_silent and _has("aggregation", "clients")(plan)


def _is_opaque(plan):
    compressor = plan.federation.compression
    is_known = isinstance(compressor, BlockCompressor) and not compressor._is_changed
    return compressor.up and not is_known


def _is_unsteady(plan):
    compressor = plan.federation.compression
    return compressor is not None and not isinstance(compressor, BlockCompressor)


def _follows_changes(plan):
    return plan.federation.is_asynchronous and plan.federation.compression.down


def _goes_offline(plan):
    return plan.federation.is_asynchronous and plan.federation.dropout_mode != "upload"


def _draws_cohorts(plan):
    return plan.federation.is_asynchronous and plan.federation.sampling == "poisson"


def _compares(plan):
    return isinstance(plan.federation.aggregator, Comparison | FLTrust)


def _withdraws_masks(plan):
    return plan.federation.masks and plan.traits.sends_once


def _has_no_scale(plan):
    return plan.rates and getattr(plan.algorithm, "rating_scale", ()) is None


def _spent(plan):
    epsilon = plan.federation.central_dp.epsilon
    return plan.warm_start and epsilon is not None and f"{epsilon:g}"


def _specs(plan):
    """Return what a client sends, of any catalogue: what it is, not how much."""
    n_items = plan.n_items or 1
    return plan.algorithm.fields(n_items) | plan.algorithm.setup_fields(n_items)


def _is_exact(spec):
    return spec.bits or (spec.is_integer and spec.learned)


def _exact(plan):
    return ", ".join(name for name, spec in _specs(plan).items() if _is_exact(spec))


def _partial(plan):
    specs = _specs(plan).items()
    return ", ".join(repr(n) for n, one in specs if one.rows != "all" and not _is_exact(one))


def _sends_rows(plan):
    return any(spec.rows != "all" for spec in plan.algorithm.fields(1).values())


def _unknown_weights(plan):
    sent = sorted(_specs(plan))
    unknown = sorted(set(plan.federation.central_dp.field_weights or {}) - set(sent))
    return unknown and f"names {unknown[0]!r}, but {plan.name} sends {', '.join(sent)}"


# --------------------------------------------------------------------------------- the table

# Parts that have the same row.
_PRIVACY = "central_dp local_dp"
_CHANGING = "central_dp adversary aggregator dropout schedule"
# By place, parts, and whether it applies: the reason and, after the last semicolon, the cure.
_TEXTS: dict[tuple[Where, str, Applies], str] = {
    # -------------------------------------------------------------------- two parts of a federation
    ("fit", "aggregator", lambda p: p.federation.secure_aggregation): "secure_aggregation shows "
    "the server only sums, but {kind} looks at single uploads; set aggregator=None, or "
    "secure_aggregation=None.",
    ("fit", "compression", lambda p: p.federation.secure_aggregation): "Secure uploads can only "
    "be added, but uploads compressed by {kind} cannot be; set compression=None with "
    "secure_aggregation. CoLR is a method with small uploads that can be added.",
    ("fit", "local_dp", lambda p: p.federation.central_dp): "Federation has both central_dp and "
    "local_dp, which would add noise twice; set local_dp=None if clients trust the server, and "
    "otherwise central_dp=None.",
    ("fit", "aggregator", lambda p: p.federation.central_dp): "central_dp adds noise to a sum of "
    "clipped uploads, but {kind} combines them in another way, to which that noise does not fit; "
    "set aggregator=None. Clipping alone bounds what one client can do.",
    ("fit", "central_dp", lambda p: p.federation.compresses_up): "central_dp needs each client's "
    "upload at full precision, to bound its norm, and compression shortens uploads; set "
    "compression=None.",
    ("fit", "central_dp", _adds_under_encryption): "Under encryption the server sees no sum to "
    'which it could add noise; set CentralDP(noise="clients"), by which clients add it in shares.',
    ("fit", "central_dp", _loses_clips): "CentralDP with a quantile announces a new clip in each "
    "round, which clients that are offline do not receive; set "
    'dropout_mode="upload" or "offline", or quantile=None.',
    ("fit", "schedule", lambda p: p.federation.devices is None): "{kind} needs to know how long "
    "clients take; set devices, for example to DeviceProfile(speed=1.5) from fedrecsk.protocol, "
    'or "phones".',
    ("fit", "schedule", _is_unsteady): "{kind} must know how many bytes clients will send, and "
    "the compressor decides when it compresses; use Quantization, TopK or LowRank, or set "
    "schedule=None.",
    ("fit", "secure_aggregation", lambda p: p.federation.schedule): "A schedule does not go with "
    "{part}: the bytes of secure uploads depend on who answers; set {part}=None or schedule=None.",
    ("fit", "central_dp", lambda p: p.federation.schedule): "A schedule does not go with {part}: "
    "which uploads a sum has depends on how many rows clients have, which the noise does not "
    "hide; set {part}=None or schedule=None.",
    ("fit", "local_dp aggregator", lambda p: p.federation.is_asynchronous): "Asynchronous does "
    "not go with {part}: uploads of different rounds, which may be large, would be kept one by "
    "one; set {part}=None or schedule=None.",
    ("fit", "adversary", lambda p: p.federation.is_asynchronous): "Asynchronous does not go with "
    "{part}: attacks are on rounds in which all clients have the same model; set {part}=None or "
    "schedule=None.",
    ("fit", "compression", _follows_changes): "In asynchronous rounds clients do not follow the "
    'changes of the model, which is what is compressed on its way down; set direction="up".',
    ("fit", "dropout", _goes_offline): "In asynchronous rounds only clients that are online are "
    'asked; set dropout_mode="upload".',
    ("fit", "sampling", _draws_cohorts): "Asynchronous rounds have no cohorts; set "
    'sampling="random" or "rotating".',
    # -------------------------------------------------------------------- a method and a federation
    ("fit", "schedule", _is_not_stale): "{name} uploads what only fits the model of the same "
    "round, so that rounds cannot be asynchronous; set schedule=None or Synchronous(), or use "
    "FedEB, FedMF, FCF or LocALS.",
    ("fit", "secure_aggregation", lambda p: p.traits.treats_clients_apart): "{name} treats "
    "clients individually, so its server must see single uploads, which secure_aggregation hides; "
    "set secure_aggregation=None.",
    ("fit", "secure_aggregation", _sends_rows): "With secure_aggregation {name} must send whole "
    'matrices, because rows of only some items cannot be added encrypted; set upload="all".',
    ("fit", "central_dp", lambda p: p.traits.treats_clients_apart): "{name} treats clients "
    "individually, so there is no sum to which central_dp could add noise; set central_dp=None, "
    "or use a method whose server needs sums only.",
    ("fit", "central_dp", lambda p: p.traits.chooses_cohorts): "{name} chooses its cohorts "
    "itself, and how often a client takes part may then depend on the data; set central_dp=None.",
    ("fit", "central_dp", _parts_no_users): "{name} cannot treat each user of a client apart, as "
    'CentralDP(unit="user") asks for, because it {found}; set unit="client".',
    ("fit", "adversary", _forges_by_user): "{kind} forges the uploads of clients, and with "
    'CentralDP(unit="user") clients add up those of their users; set unit="client".',
    ("fit", "central_dp", _spent): "CentralDP(epsilon={found}) is spent by the planned rounds, "
    "and warm_start would add more; set noise_multiplier instead of epsilon, so that privacy_ "
    "adds up what each fit spends.",
    ("fit", "central_dp", _exact): "{name} sends codes or exact integers ({found}), which noise "
    "would destroy; set central_dp=None, or use a method that sends real numbers.",
    ("fit", "central_dp", _partial): "{name} sends only some rows of its matrix {found}, and "
    "which ones reveals the items that a client holds, so with central_dp clients must send whole "
    'matrices; set upload="all", or use a method that does, such as RFRec.',
    ("fit", "central_dp", _unknown_weights): "CentralDP(field_weights=...) {found}; use these "
    "names.",
    ("fit", _PRIVACY, lambda p: p.early_stopping): "early_stopping uploads validation errors, "
    "which {part} does not protect; set early_stopping=False with {part}.",
    ("fit", _PRIVACY, lambda p: p.n_items is None): "With {part} the catalogue must be public, "
    "because one derived from the data reveals who is in them; set items= to the ids of all items "
    "on offer.",
    ("fit", _PRIVACY, _has_no_scale): "With {part} the rating scale must be public instead of "
    "derived from the data; set rating_scale=(low, high), for example (1, 5).",
    ("fit", "secure_aggregation central_dp", _has("download", "local")): 'download="local" '
    'reports to the server which items a client holds, which {part} must hide; set download="all" '
    'or "auto".',
    # ---------------------------------------------------------------------- devices and deployments
    ("fit on devices", "items", lambda p: p.n_items is None): "{name} needs the catalogue, "
    "because it does not see the data of all clients; set items= to the ids of all items on "
    "offer.",
    ("fit on devices", "rating_scale", _has_no_scale): "The server does not know on which scale "
    "users rate; set rating_scale=(low, high), for example (1, 5).",
    ("fit on devices", "secure_aggregation", lambda p: p.federation.encrypts): "{kind} is for "
    "simulations, because on devices all clients would share one secret key; deploy with "
    "federation.secure_aggregation=SecAggPlus(), whose masks need no such key.",
    ("fit on devices", "method", lambda p: p.traits.n_exchanges): "The clients of {name} talk to "
    "one another, which only the simulator does; set n_common=0 if the method has it, or call "
    "fit.",
    ("fit on devices", "compression", _is_opaque): "A Device cannot send what {kind} makes of an "
    "upload, whose form the server does not know; use TopK, LowRank or Quantization as they are, "
    "or call fit.",
    ("fit on devices", "compression", lambda p: p.federation.compresses_up and _is_stale(p)): (
        'A Device sends compressed changes from the latest message, but with dropout_mode="stale" '
        'it would start from an older one; set dropout_mode="upload" or "offline", or call fit.'
    ),
    ("fit on devices", "compression", _is_silent): '{name} with aggregation="clients" sends '
    "compressed changes from the last broadcast, which a device may have missed, and the server "
    'could not tell from what they start; set aggregation="holders" or compression=None, or call '
    "fit.",
    ("fit on devices", "adversary", _always): "A Device does not attack, which only the simulator "
    "does; set federation.adversary=None, or call fit.",
    ("late registration", "central_dp", _always): "No client can join late under central_dp, "
    "whose plan and noise were made for the clients of the set-up; begin a new fit with all "
    "clients.",
    ("late registration", "method", lambda p: not p.traits.admits_late_clients): (
        "No client can join {name} late, because it keeps something for each client of the "
        "set-up; begin a new fit with all clients."
    ),
    ("deployment", "dropout", _always): "federation.dropout simulates lost uploads, and a real "
    "network loses its own; set federation.dropout=0, or call fit.",
    ("deployment", "devices", _always): "federation.devices simulates a clock, and real devices "
    "have their own; set federation.devices=None and schedule=None, or call fit.",
    ("deployed update", "early_stopping", lambda p: p.early_stopping): "With {part} a deployed "
    "{name} always begins anew; leave out update.",
    ("deployed update", "secure_aggregation", _withdraws_masks): "With {part} a deployed {name} "
    "always begins anew; leave out update.",
    ("deployed search", "central_dp", _always): "A deployed search cannot calibrate central_dp's "
    "noise to all its fits; leave it out, or search by fit.",
    ("deployed evaluation", _PRIVACY, _always): "evaluate adds no noise to what clients report, "
    "as {part} asks for; leave it out, or simulate it by federated_evaluate.",
    # ------------------------------------------------------------------------------------ a cluster
    **{
        ("fit on a cluster", part, applies): "On a Dask cluster only sums leave the workers, and "
        f"{what}; leave it out, use a method of sums, such as RFRec, FedEB, LocALS, FCF, FedMF, "
        "LightFR, FedEASE or FedSpectral, or fit in one process: X.compute()."
        for part, applies, what in (
            ("method", lambda p: p.traits.treats_clients_apart, "{name} treats clients apart"),
            ("method", lambda p: p.traits.n_exchanges, "clients of {name} send to each other"),
            ("aggregator", _compares, "{kind} compares clients number by number"),
            ("adversary", _always, "adversary replaces single uploads"),
            ("devices", _always, "devices need to know how many rows each client has"),
            ("warm_start", lambda p: p.warm_start, "warm_start keeps all clients"),
            (
                "predict_with",
                _has("predict_with", "local"),
                "predict_with keeps clients' own items",
            ),
        )
    },
    # ------------------------------------------------------------ updates, searches and evaluations
    ("update", "early_stopping", lambda p: p.traits.sends_once and p.early_stopping): (
        "Clients of {name} cannot withdraw uploads sent under {part}, because clients hold out "
        "rows; fit a clone of it to all rows that should count."
    ),
    ("update", "secure_aggregation", _withdraws_masks): "Clients of {name} cannot withdraw "
    "uploads sent under {kind}, because a sum over the few that change reveals them; fit a clone "
    "of it to all rows that should count.",
    ("update", _CHANGING, lambda p: p.traits.sends_once): "Clients of {name} cannot withdraw "
    "uploads sent under {part}, because the sum does not contain them as sent; fit a clone of it "
    "to all rows that should count.",
    ("search", "early_stopping", lambda p: p.early_stopping): "FederatedSearch ends the rounds of "
    "candidates itself; set early_stopping=False in {name}.",
    ("search", "devices", _always): "FederatedSearch runs its candidates side by side, for which "
    "there is no clock; set federation.devices=None and schedule=None.",
    ("search", "local_dp", _always): "local_dp does not protect what clients measure; set "
    "local_dp=None, or search with central_dp, which does.",
    **{
        ("search", "central_dp", applies): f"A search under central_dp does not support {what}; "
        "leave it out."
        for what, applies in {
            "noise by the clients": lambda p: p.federation.central_dp.noise == "clients",
            "an adaptive clip (quantile)": lambda p: p.federation.central_dp.quantile,
            "client_fraction below 1": lambda p: p.sampling.fraction < 1,
            "secure_aggregation": lambda p: p.federation.secure_aggregation,
        }.items()
    },
    ("evaluation", "local_dp", _always): "The federation of {name} has local_dp, which does not "
    "protect the sums of an evaluation; evaluate a model with central_dp, or with "
    "federation.local_dp=None.",
    ("measurement of leaks", "schedule", lambda p: p.federation.is_asynchronous): (
        "A curious server is watched in rounds, and asynchronous uploads come from several; set "
        "schedule=None, or Synchronous()."
    ),
}
REFUSALS: tuple[Refusal, ...] = tuple(
    Refusal(where, part, applies, *text.rsplit("; ", 1))
    for (where, parts, applies), text in _TEXTS.items()
    for part in parts.split()
)


def check(where: Where, plan: FitPlan) -> None:
    """Raise ValueError with all that a plan cannot have where it is about to begin."""
    federation = plan.federation
    found = [
        f"{plan.name} has no {one}: {reason}"
        for one, reason in plan.traits.refuses.items()
        if one == where or (where == "fit" and one not in PLACES and getattr(federation, one))
    ]
    for one in REFUSALS:
        part = getattr(federation, one.part, True)
        if one.where == where and part and (what := one.applies(plan)):
            text, kind = f"{one.reason}; {one.cure}", type(part).__name__
            found.append(text.format(name=plan.name, part=one.part, kind=kind, found=what))
    if len(found) > 1:
        raise ValueError("\n- ".join([f"{len(found)} settings do not suit this {where}:", *found]))
    if found:
        raise ValueError(found[0])
