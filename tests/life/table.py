"""What works together: what each step of a model's life does in each setting, for docs and tests.

``python -m tests.life.table`` writes the tables of docs/user_guide/together.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedrecsk.protocol.refusals import REFUSALS
from tests.life.settings import AXES, CENTRAL, METHODS, PLAIN, SUMS, can_be

SAME, GOES_ON, REFUSED, WARNS = "same", "goes on", "refused", "warns"
SHOWN = {SAME: "=", GOES_ON: "≈", REFUSED: "no", WARNS: "!"}

STEPS = (
    "fit",
    "partial_fit, old users",
    "partial_fit, repeated pairs",
    "partial_fit, new users",
    "partial_fit, new items",
    "partial_fit, items beyond the catalogue",
    "forget",
    "forget, unknown users",
    "forget, all users",
    "forget, all but two clients'",
    "add_items",
    "add_users",
    "fold_in",
    "fold_in, known users",
    "pickle",
    "clone",
    "export",
    "explain",
    "explain_with_rows",
    "evaluate",
    "search",
)
UPDATES = tuple(step for step in STEPS if step.startswith(("partial_fit", "forget")))
# Refused after any fit, as wrong calls.
WRONG_CALLS = (
    "partial_fit, items beyond the catalogue",
    "forget, unknown users",
    "forget, all users",
    "fold_in, known users",
)


class Rule(NamedTuple):
    """In settings with these values, these steps have this outcome; the first rule holds."""

    steps: tuple[str, ...]
    values: dict
    outcome: str
    # What the error or the warning says, as a regular expression, and the docs' footnote.
    says: str
    why: str


NOISE = ("noise by the server", "noise by clients", "noise for users")
TIMED = ("deadline", "asynchronous")
BEYOND = "not in (`items`|the index of item_features)|item_features has no row for .*; give it one"

RULES = (
    # ------------------------------------------------------------------------------ fit
    Rule(
        ("fit",),
        {"clients": ("users at two silos",)},
        REFUSED,
        "A user belongs to one client, .* a separate id on each: .*split_users",
        "a user with rows at several silos needs an id at each: `preprocessing.split_users`",
    ),
    Rule(
        ("fit",),
        {"method": SUMS, "federation": ("int8",)},
        REFUSED,
        "nothing to gain; set compression=None",
        "compression does not apply to counts, which clients send once",
    ),
    Rule(
        ("fit",),
        {"where": ("deployed",), "takes part": TIMED},
        REFUSED,
        r"real devices have their own|federation\.devices simulates a clock",
        "real devices have a clock of their own",
    ),
    Rule(
        ("fit",),
        {"where": ("Dask",), "takes part": TIMED},
        REFUSED,
        "devices need to know how many rows each client has",
        "the clock needs the number of rows of each client",
    ),
    Rule(
        ("fit",),
        {"takes part": TIMED, "federation": ("SecAggPlus", "CKKS", *NOISE)},
        REFUSED,
        "does not go with (secure_aggregation|central_dp).*schedule=None",
        "which uploads arrive in time depends on rows and bytes, which noise and masks do not hide",
    ),
    Rule(
        ("fit",),
        {"method": ("LightFR",), "federation": ("int8",)},
        REFUSED,
        "LightFR has no compression: it sends codes and integers, .*; set compression=None",
        "binary codes cannot be compressed further",
    ),
    Rule(
        ("fit",),
        {"takes part": ("asynchronous",), "federation": ("int8",)},
        REFUSED,
        'clients do not follow the changes.*set direction="up"',
        'asynchronous clients do not follow the changes of the model: compress only `"up"`',
    ),
    Rule(
        ("fit",),
        {"takes part": ("asynchronous",), "federation": ("NormClipping",)},
        REFUSED,
        "does not go with aggregator: uploads of different rounds",
        "asynchronous uploads come from different rounds",
    ),
    Rule(
        ("fit",),
        {
            "takes part": ("asynchronous",),
            "method": (*SUMS, "RFRec", "RFRecF", "PrivFedEB", "LightFR", "PFedRec"),
        },
        REFUSED,
        "rounds cannot be asynchronous; set schedule=None",
        "its uploads only fit the model of the same round",
    ),
    Rule(
        ("fit",),
        {"method": ("LightFR",), "federation": ("SecAggPlus", "CKKS")},
        REFUSED,
        r"LightFR's integers may be as large as .*; use SecAggPlus\(max_abs=",
        "its integers exceed the default range of secure sums: raise `max_abs`",
    ),
    Rule(
        ("fit",),
        {"method": ("FedEB",), "federation": NOISE},
        REFUSED,
        "FedEB has no central_dp.*Use PrivFedEB",
        "does not support central privacy: use `PrivFedEB`",
    ),
    Rule(
        ("fit",),
        {"method": ("LightFR",), "federation": NOISE},
        REFUSED,
        "codes or exact integers .*, which noise would destroy; set central_dp=None",
        "noise would destroy the codes",
    ),
    Rule(
        ("fit",),
        {"federation": NOISE, "catalogue": ("derived",)},
        REFUSED,
        "the catalogue must be public.*set items=",
        "the catalogue must be public: set `items`",
    ),
    Rule(
        ("fit",),
        {"federation": NOISE, "known": ("user features",)},
        REFUSED,
        "sums over users' features are too small for the noise.*leave one of the two out",
        "sums over users' features do not survive noise",
    ),
    Rule(
        ("fit",),
        {"where": ("deployed",), "takes part": ("dropout",)},
        REFUSED,
        "a real network loses its own; set federation.dropout=0",
        "a real network loses its own uploads",
    ),
    Rule(
        ("fit",),
        {"where": ("deployed",), "known": ("user features",), "catalogue": ("given",)},
        REFUSED,
        "user_features are in one DataFrame, which no device has; call fit, or leave them out",
        "users' features are in one DataFrame, which no device has",
    ),
    Rule(
        ("fit",),
        {"where": ("Dask",), "known": ("user features",)},
        REFUSED,
        "user_features are in one frame; leave them out",
        "users' features are in one DataFrame",
    ),
    Rule(
        ("fit",),
        {"where": ("deployed",), "catalogue": ("derived",)},
        REFUSED,
        "needs the catalogue, because it does not see the data of all clients; set items=",
        "no party has all rows to derive the catalogue from: set `items`",
    ),
    Rule(
        ("fit",),
        {
            "federation": ("noise by clients",),
            "takes part": ("dropout",),
            "clients": ("silos", "growing silos"),
            "catalogue": ("given",),
        },
        REFUSED,
        'clients in every cohort that nearly always answer.*or use noise="server"',
        "too few clients surely answer",
    ),
    Rule(
        ("fit",),
        {"where": ("deployed",), "federation": ("noise by clients",)},
        REFUSED,
        "clients in every cohort that nearly always answer",
        "needs more clients than a dozen, of whom some do not answer",
    ),
    # --------------------------------------------------------------------------- search
    Rule(
        ("search",),
        {"takes part": TIMED},
        REFUSED,
        "side by side, for which there is no clock; set",
        "candidates of a search run side by side, for which there is no clock",
    ),
    Rule(
        ("search",),
        {"method": CENTRAL},
        REFUSED,
        "needs a federated method.*GridSearchCV",
        "a centralised method has no rounds where the data are: use `GridSearchCV`",
    ),
    Rule(
        ("search",),
        {"where": ("Dask",)},
        REFUSED,
        "X is a Dask",
        "clients on a cluster cannot be evaluated yet",
    ),
    Rule(
        ("search",),
        {"where": ("deployed",), "federation": NOISE},
        REFUSED,
        "cannot calibrate central_dp's noise.*search by fit",
        "no party could calibrate the noise",
    ),
    Rule(
        ("search",),
        {"federation": ("noise by clients",)},
        REFUSED,
        "does not support noise by the clients; leave it out",
        "scores are noised by the server",
    ),
    Rule(
        ("search",),
        {"federation": NOISE, "takes part": ("cohorts",)},
        REFUSED,
        "does not support client_fraction below 1; leave it out",
        "every client must answer to be counted once",
    ),
    # ----------------------------------------------------------------------- wrong calls
    Rule(
        UPDATES,
        {"method": CENTRAL},
        REFUSED,
        "has no (partial_fit|forget); ",
        "centralised: fit anew",
    ),
    Rule(
        UPDATES,
        {"method": ("PrivFedEB",)},
        REFUSED,
        "PrivFedEB cannot continue from its last model; call fit on all rows",
        "its steps follow from counts that are made once: fit anew, or use `fold_in`",
    ),
    Rule(
        UPDATES,
        {"method": ("PFedRec",)},
        REFUSED,
        "PFedRec cannot continue from its last model; call fit on all rows",
        "trained networks are not taken up again: fit anew, or use `fold_in`",
    ),
    Rule(
        UPDATES,
        {"method": ("LightFR",)},
        REFUSED,
        "LightFR cannot continue from its last model; call fit on all rows",
        "its schedules and codes cannot be continued: fit anew, or use `fold_in`",
    ),
    Rule(
        UPDATES,
        {"where": ("Dask",)},
        REFUSED,
        "do not keep their rows; set warm_start=True",
        "clients on a cluster do not keep their rows: fit anew",
    ),
    # ------------------------------------------------------------ taking back from a sum
    *(
        Rule(
            UPDATES,
            {"method": SUMS, axis: values},
            REFUSED,
            f"cannot withdraw uploads sent under {what}.*fit a clone of it to all rows",
            "an upload cannot be withdrawn from this sum: fit anew",
        )
        for axis, values, what in (
            ("federation", ("SecAggPlus",), "SecAggPlus"),
            ("federation", NOISE, "central_dp"),
            ("federation", ("NormClipping",), "aggregator"),
            ("takes part", ("dropout",), "dropout"),
            ("takes part", TIMED, "schedule"),
        )
    ),
    Rule(
        ("forget, unknown users",),
        {},
        REFUSED,
        "The last fit had no .*; give ids of its users",
        "",
    ),
    Rule(
        ("forget, all but two clients'",),
        {"federation": ("SecAggPlus",)},
        REFUSED,
        "SecAggPlus needs at least 3 clients in a sum.*find more clients",
        "",
    ),
    Rule(("forget, all users",), {}, REFUSED, "Cannot forget all users; delete the model", ""),
    Rule(
        ("partial_fit, items beyond the catalogue",),
        {},
        REFUSED,
        BEYOND,
        "",
    ),
    Rule(
        ("fold_in, known users",),
        {},
        REFUSED,
        "is already known; give its whole history with replace=True",
        "",
    ),
    # --------------------------------------------------------------------- items, users
    Rule(
        ("add_items",),
        {"method": ("FedSpectral", "FedMF", "PFedRec")},
        REFUSED,
        "has no add_items|no attribute 'add_items'",
        "does not take `item_features`",
    ),
    Rule(
        ("add_items",),
        {"known": ("nothing", "user features", "times")},
        REFUSED,
        "fitted without item_features.*fit it with item_features",
        "needs `item_features`",
    ),
    Rule(
        ("add_users",),
        {"method": tuple(name for name in AXES["method"] if name not in ("FedEB", "LocALS"))},
        REFUSED,
        "has no add_users|no attribute 'add_users'",
        "does not take `user_features`",
    ),
    Rule(
        ("add_users",),
        {"known": ("nothing", "item features", "times")},
        REFUSED,
        "fitted without user_features.*fit it with user_features",
        "needs `user_features`",
    ),
    # ------------------------------------------------------------------- the public half
    Rule(
        ("export", "explain", "explain_with_rows"),
        {"method": ("FedMF", "RFRec", "RFRecF", "LightFR", "BiasedMF", "PFedRec")},
        REFUSED,
        "whom it trains step by step. Use one of EASE",
        "new users are trained step by step, not by a formula",
    ),
    Rule(
        ("explain", "explain_with_rows"),
        {"known": ("user features",)},
        REFUSED,
        "user_features",
        "scores depend on users' features too",
    ),
    Rule(
        ("explain",),
        {"method": ("ImplicitALS",)},
        REFUSED,
        "does not store the user's rows. Pass them as interactions=X",
        "the model does not store the user's rows: pass `interactions`",
    ),
    Rule(
        ("explain",),
        {
            "method": ("FedSpectral", "LocALS", "FCF"),
            "where": ("Dask",),
            "known": ("times",),
        },
        REFUSED,
        "pass its rows as interactions=",
        "times stay with the clients: pass `interactions`",
    ),
    Rule(
        ("explain",),
        {"method": ("FedEB", "PrivFedEB"), "where": ("Dask",)},
        REFUSED,
        "Pass them as interactions=",
        "ratings stay with the clients: pass `interactions`",
    ),
)


def kind_of(method):
    """Return what a method's model is."""
    return next((k for k, names in KINDS.items() if method in names), "rounds")


KINDS = {"sum": SUMS, "central": CENTRAL}


def rule_of(step, setting):
    """Return the first rule for a step in a setting, or None."""
    for rule in RULES:
        if step in rule.steps and all(setting[axis] in v for axis, v in rule.values.items()):
            return rule
    return None


def outcome_of(step, setting):
    """Return the outcome of a step in a setting."""
    rule = rule_of(step, setting)
    if rule is not None:
        return rule.outcome
    goes_on = step in UPDATES and kind_of(setting["method"]) == "rounds"
    return GOES_ON if goes_on else SAME


def can_fit(setting):
    """Return whether a fit in this setting is not refused."""
    return outcome_of("fit", setting) != REFUSED


# ------------------------------------------------------------------------------ for the docs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "user_guide" / "together.md"
BEGIN, END = "<!-- made by python -m tests.life.table -->", "<!-- end -->"
# Steps that are asked of each method, and those that depend on the setting.
ASKED = (
    "partial_fit, old users",
    "forget",
    "fold_in",
    "add_items",
    "add_users",
    "export",
    "explain",
)
FEATURES = {"add_items": "item features", "add_users": "user features"}
ROWS = ("federation", "takes part", "clients", "where", "known", "catalogue", "rows")


def row_of(method, axis, value):
    """Return a setting with this value, otherwise as plain as can be fitted, or None."""
    rows = {"rows": "frame"} if value == "Dask" else {}
    tried = [
        PLAIN | {"method": method, "catalogue": catalogue} | rows | {axis: value}
        for catalogue in AXES["catalogue"]
    ]
    tried = [one for one in tried if can_be(one)]
    return next(filter(can_fit, tried), tried[0] if tried else None)


def cell(step, setting, notes):
    """Return the outcome of a step with the number of its footnote, which may be new."""
    shown, rule = SHOWN[outcome_of(step, setting)], rule_of(step, setting)
    if rule is None or not rule.why:
        return shown
    if rule.why not in notes:
        notes.append(rule.why)
    return f"{shown} ({notes.index(rule.why) + 1})"


def of_methods(notes):
    """Yield the rows of the table of methods by steps."""
    yield ["", *(f"`{step.split(',')[0]}`" for step in ASKED)]
    for method in AXES["method"]:
        cells = []
        for step in ASKED:
            setting = PLAIN | {"method": method}
            with_features = setting | {"known": FEATURES.get(step, "nothing")}
            cells.append(cell(step, with_features if can_be(with_features) else setting, notes))
        yield [f"`{method}`", *cells]


def of_settings(notes):
    """Yield the rows of the table of settings by methods: what `partial_fit` and `forget` are."""
    methods = [name for name in AXES["method"] if name not in CENTRAL]
    yield ["", *(f"`{name}`" for name in methods)]
    for axis in ROWS:
        for value in AXES[axis]:
            if value == PLAIN[axis] and axis != "federation":
                continue
            cells = []
            for method in methods:
                setting = row_of(method, axis, value)
                if setting is None:
                    cells.append("")
                elif can_fit(setting):
                    cells.append(cell("forget", setting, notes))
                else:
                    cells.append(cell("fit", setting, notes).replace("no", "no fit"))
            if any(cells):
                yield [LABELS.get(value, value), *cells]


LABELS = {
    "SecAggPlus": "`SecAggPlus`",
    "CKKS": "`CKKS`",
    "int8": '`Quantization("int8")`',
    "noise by the server": "`CentralDP`",
    "noise by clients": '`CentralDP(noise="clients")`',
    "noise for users": '`CentralDP(unit="user")`',
    "NormClipping": "`NormClipping`",
    "given": "`items`",
    "derived": "items of X",
    "sparse": "first fit to a sparse matrix",
    "frame": "pandas frame",
    "growing silos": "silos that get new users",
    "deadline": "`Synchronous(deadline)`",
    "asynchronous": "`Asynchronous`",
}


def of_refusals():
    """Yield the rows of the table of what is refused before any data are read."""
    yield ["in a", "with", "because", "instead"]
    for one in REFUSALS:
        given = {"name": "FedX", "part": one.part, "kind": f"this {one.part}", "found": "..."}
        yield [one.where, f"`{one.part}`", *(text.format(**given) for text in one[-2:])]


def of_own_refusals():
    """Yield the rows of the table of what methods refuse themselves, with their defaults."""
    yield ["method", "has no", "because"]
    names = {}
    for name in [name for name in AXES["method"] if name not in CENTRAL]:
        for reason in METHODS[name]._algorithm().traits.refuses.items():
            names.setdefault(reason, []).append(f"`{name}`")
    for (part, reason), those in names.items():
        yield [", ".join(those), f"`{part}`", reason]


def shown(title, rows):
    """Return the lines of a table with a title."""
    head, *rows = rows
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return [f"## {title}", "", *lines, ""]


def markdown():
    """Return the tables and their footnotes."""
    notes = []
    able = "What each method can do, in one process and without protection"
    settings = "What `partial_fit` and `forget` are after a fit in each setting"
    lines = shown(able, of_methods(notes)) + shown(settings, of_settings(notes))
    lines += [f"{number}. {why[0].upper()}{why[1:]}." for number, why in enumerate(notes, 1)]
    lines += ["", *shown("What raises an error, and the way out", of_refusals())]
    lines += shown("What methods do not support", of_own_refusals())
    return "\n".join(lines).rstrip()


def page(text):
    """Return the page's text with the tables of now."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{markdown()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "PFedRec" not in AXES["method"]:
        raise SystemExit("The page has a neural method too: install torch.")
    PAGE.write_text(page(PAGE.read_text()))
