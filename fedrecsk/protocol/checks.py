"""Checks of an estimator whose server and clients run apart, outside the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sklearn.base import clone

from fedrecsk.compression._compressors import BlockCompressor

if TYPE_CHECKING:
    from typing import Any, Literal

    from fedrecsk.privacy import Party


def bare(estimator: Any) -> Any:
    """Check an estimator's parameters and return a copy for one side of a deployment."""
    method = clone(estimator).set_params(random_state=None).set_callbacks()
    method._validate_params()
    method._check_before_fit()
    if method.items is None:
        raise ValueError(
            f"{type(method).__name__} needs the catalogue, because it does not see "
            "the data of all clients; set items= to the ids of all items on offer."
        )
    federation = method._setting()
    method._check_on_devices(federation)
    if method._n_exchanges:
        raise ValueError(
            f"A Device does not talk to other devices yet, as {type(method).__name__} needs, which "
            "only the simulator does; call fit."
        )
    _check_compression(federation)
    if federation.aggregator is not None:
        federation.aggregator._check_specs(method._upload_specs(len(method.items)))
    if federation.adversary is not None:
        raise ValueError(
            "A Device does not attack, which only the simulator does; set "
            "federation.adversary=None, or call fit."
        )
    return method


def check_keys(method: Any, party: Party | None, side: Literal["server", "clients"]) -> None:
    """Raise unless a side of a `bare` method has its keys, if it encrypts, and no others."""
    encrypts = method._setting().encrypts
    if encrypts:
        check_secure(method)
    if encrypts != (party is not None):
        what = "has secure_aggregation" if encrypts else "has no secure_aggregation"
        to = " (of EncryptedServer.of)" if side == "server" else ""
        hint = (
            f"pass this side of the keys, party=keys.{side}{to}, or set it to None"
            if encrypts
            else "set it to CKKS(), for example, or pass no party"
        )
        raise ValueError(f"The federation {what}; {hint}.")
    if party is not None:
        check_side(party, side)


def check_side(party: Party, side: Literal["server", "clients"], name: str = "These") -> None:
    """Raise unless keys are those of a side."""
    if side == "server" and party.holds_secret_key:
        raise ValueError(
            f"{name} are the clients' keys, with which the server could decrypt every upload; "
            "delete them from this machine, and pass the server's: keys.server, or the path of "
            "server.key."
        )
    if side == "clients" and not party.holds_secret_key:
        raise ValueError(
            f"{name} are the server's keys, which cannot encrypt; pass the clients': "
            "keys.clients, or the path of clients.key."
        )


def check_secure(method: Any) -> None:
    """Raise if a method cannot be fitted on devices under secure sums."""
    if method.early_stopping:
        raise ValueError(
            "Devices do not evaluate models under secure sums yet, which only the simulator does; "
            "set early_stopping=False, or call fit."
        )
    if method._setting().sampling == "poisson":
        raise ValueError(
            'With sampling="poisson" only the server knows the cohorts, but under secure sums '
            'all clients must; set federation.sampling="auto".'
        )
    if method._choose_cohort is not None:
        raise ValueError(
            f"{type(method).__name__} chooses its cohorts from what it has learned, which the "
            "server of secure sums does not know; set federation.secure_aggregation=None."
        )


def _check_compression(federation):
    """Raise if the server could not reconstruct compressed uploads."""
    compressor = federation.compression
    if compressor is None or not compressor.up:
        return
    if not isinstance(compressor, BlockCompressor) or compressor._is_changed:
        raise ValueError(
            f"A Device cannot send what {type(compressor).__name__} makes of an upload, whose form "
            "the server does not know; use TopK, LowRank or Quantization as they are, or call fit."
        )
    if federation.dropout > 0 and federation.dropout_mode == "stale":
        raise ValueError(
            "A Device sends compressed changes from the latest message, but with "
            'dropout_mode="stale" it would start from an older one; set dropout_mode="upload" or '
            '"offline", or call fit.'
        )
