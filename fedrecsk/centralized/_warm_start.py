"""What must be unchanged for a fit to continue where the last one ended."""


def resumed(estimator, data, total):
    """The run that `warm_start` continues, or None if there is none.

    Parameters
    ----------
    estimator : Recommender
        With the run of its last fit as `_run`, if it has one: an object with `fingerprint`,
        `parameters` and how much has been done, under the name `total`.
    data : Interactions
    total : str
        Name of the parameter with the total number of steps, such as "n_epochs".

    Raises
    ------
    ValueError
        If the data or a parameter has changed, or more has been done already.
    """
    run = getattr(estimator, "_run", None) if estimator.warm_start else None
    if run is None:
        return None
    steps = total.removeprefix("n_")
    if run.fingerprint != data.fingerprint():
        raise ValueError(
            f"warm_start continues the {steps} of the last fit, but X, y, clients, "
            "sample_weight or items have changed since; fit with warm_start=False, or use "
            "fold_in to add users."
        )
    parameters = parameters_of_a_run(estimator, total)
    changed = [name for name, value in run.parameters.items() if parameters[name] != value]
    if changed:
        raise ValueError(
            f"warm_start continues the {steps} of the last fit, but {changed[0]} has changed "
            f"from {run.parameters[changed[0]]!r} to {parameters[changed[0]]!r} since; set it "
            "back or fit with warm_start=False."
        )
    if getattr(estimator, total) < getattr(run, total):
        raise ValueError(
            f"{total}={getattr(estimator, total)} must be larger or equal to the "
            f"{getattr(run, total)} {steps} already run when warm_start=True."
        )
    return run


def parameters_of_a_run(estimator, total):
    """The parameters that must not change between the steps of one run.

    `items` is part of the fingerprint of the data.
    """
    free = {"items", total, "warm_start", "n_iter_no_change", "tol", "n_jobs"}
    return {k: v for k, v in estimator.get_params(deep=False).items() if k not in free}
