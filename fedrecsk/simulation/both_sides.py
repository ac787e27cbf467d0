"""Make the server and the clients of a fit."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from sklearn.utils import check_random_state

from fedrecsk._utils.sklearn_compat import clone
from fedrecsk.data.item_features import fingerprint
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol.clients import ClientGroup, SharedHistory
from fedrecsk.protocol.clock import Clock
from fedrecsk.protocol.devices import profile_of
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.server import Server

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedrecsk.attacks._base import ActiveAttack
    from fedrecsk.data.interactions import Interactions, Population
    from fedrecsk.federated.base import FederatedRecommender
    from fedrecsk.protocol.blocks import Block
    from fedrecsk.protocol.federation import Federation
    from fedrecsk.protocol.plan import FitPlan

    M = TypeVar("M", bound=FederatedRecommender)


def fresh(estimator: FederatedRecommender) -> tuple[Key, FederatedRecommender]:
    """Return the key of a new fit, and the estimator's copy for it."""
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    return Key(seed), plain_copy(estimator)


def plain_copy(estimator: M) -> M:
    """Return a copy of an estimator that has neither a seed nor callbacks."""
    return clone(estimator)._set(random_state=None).set_callbacks()


def check_aggregator(plan: FitPlan, data: Population) -> None:
    """Raise, before any work, if an aggregator does not suit its clients or their uploads."""
    aggregator = plan.federation.aggregator
    if aggregator is None:
        return
    aggregator._check_clients(data, plan.sampling.smallest_cohort(data.n_clients))
    aggregator._check_specs(plan.algorithm.fields(data.n_items))


def secret_of(estimator: FederatedRecommender, data: Population, key: Key) -> Key:
    """Return the key of a fit's noise, which no fit of other data or parameters shares."""
    # Otherwise the noise of two fits with the same random_state could be subtracted.
    if estimator.random_state is None:
        return Key(secrets.randbits(63))
    parameters = parameters_of_a_run(estimator)
    mechanism = estimator._setting().central_dp
    if mechanism is not None and mechanism.epsilon is not None:
        # The noise then depends on the planned rounds.
        plan = estimator._plan()
        parameters["n_rounds"] = plan.rounds(plan.units(data))
    parameters.pop("random_state", None)
    # The clock changes no upload.
    clock = "federation__devices", "federation__schedule"
    parameters = {n: value for n, value in parameters.items() if not n.startswith(clock)}
    # So that fits without it draw what they drew before it was there.
    if parameters["federation__central_dp__unit"] == "client":
        del parameters["federation__central_dp__unit"]
    identity = repr((key.seed, data.fingerprint(), sorted(parameters.items(), key=str)))
    digest = hashlib.blake2b(identity.encode(), digest_size=8).digest()
    return Key(int.from_bytes(digest) >> 1)


def histories_of(plan: FitPlan, n_clients: int, key: Key) -> NDArray[np.int64]:
    """Equal numbers for clients that must have equal histories to share a block."""
    if not plan.algorithm.traits.shares_history:
        return np.zeros(n_clients, dtype=np.int64)
    return plan.sampling.histories(n_clients, key)


def groups_of(
    plan: FitPlan, histories: NDArray[np.int64], forger: ActiveAttack | None
) -> NDArray[np.int64]:
    """Equal numbers for clients that may share a block; `forger` is the attack that forges."""
    traits = plan.algorithm.traits
    apart = traits.treats_clients_apart
    uploads = plan.uploads(is_apart=apart, is_forged=forger is not None)
    if uploads != "sum" and not traits.single_uploads:
        return np.arange(len(histories))
    return histories if forger is None else 2 * histories + forger.controlled


def clients_of(
    plan: FitPlan,
    blocks: list[Block],
    keys: Keys,
    client_ids: np.ndarray,
    histories: NDArray[np.int64],
    *,
    user_codes: NDArray[np.int64] | None = None,
    shared: dict[int, SharedHistory],
    held_out: Interactions | None = None,
    forger: ActiveAttack | None = None,
) -> list[ClientGroup]:
    """Return one ClientGroup for each block; `shared` is filled by numbers of histories."""
    clients = []
    for block in blocks:
        first, forge, rest = block.clients[0], None, None
        if forger is not None and forger.controlled[first]:
            forge = forger.forge
        if held_out is not None:
            rest = _blocks.of_clients(held_out, block.clients)
        own = None if user_codes is None else user_codes[block.users]
        clients.append(
            ClientGroup(
                plan,
                block,
                keys,
                # Controlled clients compute what honest ones of the same history compute.
                shared=shared.setdefault(int(histories[first]), SharedHistory()),
                held_out=rest,
                forge=forge,
                client_ids=client_ids[block.clients],
                user_codes=own,
            )
        )
    return clients


def user_codes_of(plan: FitPlan, data: Interactions) -> NDArray[np.int64] | None:
    """Return the codes that users have in draws if they are clients; None if they are not."""
    if not plan.by_user:
        return None
    codes = np.empty(data.n_users, dtype=np.int64)
    codes[np.argsort(data.user_ids.values, kind="stable")] = np.arange(data.n_users)
    return codes


def server_of(estimator: FederatedRecommender, plan: FitPlan, data: Population, key: Key) -> Server:
    """Return the server of a new fit."""
    secret = key if plan.federation.central_dp is None else secret_of(estimator, data, key)
    return Server(plan, key, data.item_ids.values, data.value_range(), secret)


def clock_of(federation: Federation, data: Interactions, key: Key) -> Clock | None:
    """Return the simulated clock of a fit, None if its federation has no devices."""
    if federation.devices is None:
        return None
    profile = profile_of("devices", federation.devices)
    return Clock(profile, profile.draw(data.client_ids, key), np.diff(data.rating_indptr))


def keys_of(server: Server) -> Keys:
    """Return the keys of a server's clients, in a simulation."""
    # Shares of the noise must differ between fits; all else comes from the one key.
    mechanism = server.federation.central_dp
    shares = mechanism is not None and mechanism.noise == "clients"
    return Keys(server.key, server.secret if shares else server.key)


def parameters_of_a_run(estimator: FederatedRecommender) -> dict[str, object]:
    """Return the parameters that must not change between the rounds of one run."""
    # The fingerprint of the data has the catalogue.
    free = {"n_rounds", "n_jobs", "warm_start", "n_iter_no_change", "tol", "federation", "items"}
    parameters = estimator._all_params() | {
        f"federation__{name}": value for name, value in estimator._setting().get_params().items()
    }
    if not estimator.early_stopping:
        parameters.pop("scoring")
    for name in ("item_features", "user_features"):
        features = parameters.pop(name, None)
        if features is not None:
            parameters[name] = fingerprint(features)
    return {
        name: type(value).__name__ if hasattr(value, "get_params") else value
        for name, value in parameters.items()
        if name not in free
    }
