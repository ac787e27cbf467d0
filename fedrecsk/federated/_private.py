"""What a method must fulfil to be fitted under central differential privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrecsk.privacy import CentralDP


def check(method: Any, mechanism: CentralDP) -> None:
    """Raise ValueError if central privacy would not protect all that a method sends."""
    name = type(method).__name__
    if method._treats_clients_apart:
        raise ValueError(
            f"{name} treats clients individually, so there is no sum to which central_dp could add "
            "noise; set central_dp=None, or use a method whose server needs sums only."
        )
    if method._chooses_cohorts:
        raise ValueError(
            f"{name} chooses its cohorts itself, and how often a client takes part may then depend "
            "on the data; set central_dp=None."
        )
    if method.early_stopping:
        raise ValueError(
            "early_stopping uses validation errors, on which central_dp adds no noise; set "
            "early_stopping=False with central_dp."
        )
    if method.items is None:
        raise ValueError(
            "With central_dp the catalogue must be public, because one derived from the data "
            "reveals who is in them; set items= to the ids of all items on offer."
        )
    if "rating_scale" in method.get_params(deep=False) and method.rating_scale is None:
        raise ValueError(
            "With central_dp the rating scale must be public instead of derived from the data; "
            "set rating_scale=(low, high), for example (1, 5)."
        )
    if method.warm_start and mechanism.epsilon is not None:
        raise ValueError(
            f"CentralDP(epsilon={mechanism.epsilon:g}) is spent by the planned rounds, and "
            "warm_start would add more; set noise_multiplier instead of epsilon, so that "
            "privacy_ adds up what each fit spends."
        )
    n_items = len(method.items)
    specs = dict(method._upload_specs(n_items))
    for step in range(method._n_setups):
        specs |= method._setup_specs(n_items, step)
    for field, spec in specs.items():
        if spec.bits or (spec.is_integer and spec.learned):
            raise ValueError(
                f"{name} sends codes or exact integers ({field}), which noise would destroy; set "
                "central_dp=None, or use a method that sends real numbers."
            )
        if spec.rows != "all":
            options = method._parameter_constraints.get("upload", [])
            choices = {choice for one in options for choice in getattr(one, "options", ())}
            hint = 'set upload="all"' if "all" in choices else None
            raise ValueError(
                f"{name} sends only some rows of its matrix {field!r}, and which ones reveals the "
                "items that a client holds; with central_dp clients must send whole matrices: "
                f"{hint or 'use a method that does, such as RFRec'}."
            )
    unknown = sorted(set(mechanism.field_weights or {}) - set(specs))
    if unknown:
        raise ValueError(
            f"CentralDP(field_weights=...) names {unknown[0]!r}, but {name} sends "
            f"{', '.join(sorted(specs))}; use these names."
        )
