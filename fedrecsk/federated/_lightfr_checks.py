"""What LightFR refuses before any work is done."""

from __future__ import annotations

import numpy as np

from fedrecsk._checks import cure
from fedrecsk._fixed_point import FRACTION_BITS
from fedrecsk._rating_scale import check_ratings, check_scale
from fedrecsk.simulation.participation import cohort_size


def check_parameters(model):
    """Raise if parameters contradict one another."""
    _check_federation(model, model._setting())
    if model.rating_scale is not None:
        check_scale(model.rating_scale)
    if model.aggregation == "parameter" and model.upload == "all":
        raise ValueError(
            'upload="all" hides the visited items among sums, but a vote on an item is +1 or '
            '-1, never 0; use upload="visited" with aggregation="parameter".'
        )
    if isinstance(model.init, np.ndarray):
        _check_init(model.init, model.n_bits)


def _check_federation(model, federation):
    if federation.secure_aggregation is not None and model.upload == "visited":
        raise ValueError(
            "With secure_aggregation LightFR must send whole matrices, because rows of only some "
            'items cannot be added encrypted; set upload="all", with aggregation="full" or '
            '"gradient".'
        )
    if federation.compression is not None:
        raise ValueError(
            f"{type(federation.compression).__name__} shortens real numbers, but LightFR "
            "sends codes and integers; set compression=None, and n_bits for shorter codes."
        )
    if federation.local_dp is not None:
        raise ValueError(
            "LightFR has no local_dp: noise on the scale of its gradients would drown their "
            "signs. Use RFRec for local differential privacy."
        )


def _check_init(init, n_bits):
    if init.ndim != 2 or init.shape[1] != n_bits:
        raise ValueError(
            f"init has shape {init.shape}, but with n_bits={n_bits} it must be "
            f"(n_items, {n_bits}); set n_bits to its number of columns."
        )
    if not np.isfinite(init.astype(float)).all():
        raise ValueError("init contains NaN or infinity; give finite item factors.")


def check_setting(model, federation, data):
    """Raise if the parameters do not suit the data or the federation."""
    if isinstance(model.init, np.ndarray) and len(model.init) != data.n_items:
        raise ValueError(
            f"init has {len(model.init)} rows, but there are {data.n_items} items; give one row "
            "per item, in ascending order of the items' ids."
        )
    if model.targets == "implicit" and not (data.values > 0).any():
        raise ValueError(
            "No row of X has y > 0, so there are no positives. Pass y=None to count every row, "
            'shift y so that positives are above 0, or use targets="ratings".'
        )
    check_rows(model, data, model._scale((data.values.min(), data.values.max())))
    if federation.secure_aggregation is not None:
        _check_scheme(model, federation.secure_aggregation, data)


def check_rows(model, data, scale):
    """Raise for ratings off their scale, and for weights too large for exact sums."""
    if model.targets == "ratings":
        if scale[0] == scale[1]:
            raise ValueError(
                f'All ratings are {scale[0]:g}, which is no scale for targets="ratings"; pass '
                'rating_scale=(low, high), for example (1, 5), or use targets="implicit".'
            )
        check_ratings(data.values, scale)
    if _largest_sum(model, data) >= 2**62:
        raise ValueError(
            "The exact sums of LightFR may not fit into 64-bit integers with these weights and "
            f"parameters. {cure(model, data)} Fewer n_bits, user_bits or n_negatives help too."
        )


def _largest_sum(model, data):
    """Bound on every integer that occurs, as a float."""
    own = data.weights * (model.alpha + 1)
    if model.aggregation == "full":
        mass = max(np.bincount(data.items, own).max(), np.bincount(data.users, own).max())
        heaviest = 1 + own.max()
        mass += heaviest * (data.n_users + data.n_items)
    elif model.aggregation == "parameter":
        # What adds up over clients are signs.
        mass = np.bincount(data.clients, data.weights).max() * (1 + model.n_negatives)
    else:
        mass = data.weights.sum() * (1 + model.n_negatives) * model.memory
    regs = (model.reg_user + model.reg_item) * max(data.n_users, data.n_items, model._top)
    mass = mass + max(model.shrinkage, model.sparse_shrinkage) + regs * model._top
    return 2.0**FRACTION_BITS * 4 * model._top * model._limit * mass


def _check_scheme(model, scheme, data):
    n_clients = cohort_size(data.n_clients, model.client_fraction)
    n_users = np.diff(data.client_indptr).max()
    weight = n_users * (data.weights.max() * (1 + model.alpha + model.n_negatives) + 1)
    largest = 2.0**FRACTION_BITS * 2 * model._top * model._limit * weight
    if largest > scheme.max_value(n_clients):
        raise ValueError(
            f"LightFR's integers may be as large as {largest:.3g}, but {scheme} holds "
            f"{scheme.max_value(n_clients):.3g} in a sum over {n_clients} clients; use "
            "CKKS(8192, (60, 60, 60)), or Paillier(fraction_bits=0), which is exact."
        )
