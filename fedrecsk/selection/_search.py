"""Choose hyperparameters where the data are: a search like those of scikit-learn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, check_random_state, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedrecsk._utils.constraints import AtLeast1, AtLeast2, Between0And1, Jobs, Seed
from fedrecsk._utils.parameters import PlainParameters, suggest
from fedrecsk._utils.sklearn_compat import (
    CallbackSupportMixin,
    Interval,
    fit_context,
    get_threadpool_controller,
)
from fedrecsk._utils.threads import Threads
from fedrecsk.base import FitReport, attributes_of, fitted_copy
from fedrecsk.cluster import _frames
from fedrecsk.data._checks import check_fitted
from fedrecsk.federated.base import FederatedRecommender
from fedrecsk.protocol import refusals
from fedrecsk.protocol.early_stopping import HoldOut
from fedrecsk.selection._halving import Candidate, Halving, rungs_of
from fedrecsk.selection._noise import check_private, noise_of_a_search
from fedrecsk.simulation import continuing
from fedrecsk.simulation.both_sides import parameters_of_a_run
from fedrecsk.simulation.run import Run

# Parameters that say how to fit and not what; candidates have the same.
FIXED = {
    "federation__central_dp": "the noise of all candidates is calibrated together",
    "n_rounds": "rounds are the resource of the search",
    "random_state": "all candidates hold out the same rows",
    "early_stopping": "the search ends the rounds of candidates",
    "scoring": "scores must be comparable; set scoring of the search",
    "validation_fraction": "all candidates hold out the same rows; set it of the search",
    "n_iter_no_change": "the search ends the rounds of candidates",
    "tol": "the search ends the rounds of candidates",
    "warm_start": "it does not change the model",
    "n_jobs": "it does not change the model",
}


def _has(name: str) -> Callable[[Any], bool]:
    """Return a check of whether the best estimator, or before the fit any, has a method."""

    def check(search):
        getattr(getattr(search, "best_estimator_", search.estimator), name)
        if not search.refit:
            raise AttributeError(f"refit=False fits no best_estimator_, which {name} needs.")
        return True

    return check


@dataclass(eq=False, repr=False)
class FederatedSearch(MetaEstimatorMixin, CallbackSupportMixin, PlainParameters):
    """Search hyperparameters where the data are, by successive halving over rounds.

    All candidates are trained side by side: one round of the search is one round of each candidate
    that is left, and their messages travel together. After 10% of the rounds, clients evaluate all
    candidates on rows that they hold out, and send sums alone; the best third goes on from where
    it is. So it does again after 30% and 75%. The winner's last rounds are on all rows. In
    contrast to scikit-learn's searches, no data leaves the clients, and every byte is counted.

    Parameters
    ----------
    estimator : FederatedRecommender or Pipeline
        A federated method, or a Pipeline that ends in one.
    param_distributions : dict or list of dict
        Names of parameters, with lists to choose from or distributions with ``rvs``, as in
        :class:`~sklearn.model_selection.RandomizedSearchCV`. Parameters of the federation are
        ``federation__...``, and those of a Pipeline's method ``<step>__...``.
    n_candidates : int, default=27
        Number of candidates. The estimator as it is, with its own parameters, is always the first
        one. If there are only lists, and no more combinations than that, all of them are tried.
    factor : int, default=3
        One in `factor` candidates is kept at each cut.
    min_rounds : int or "auto", default="auto"
        Rounds before the first cut, at least 10% of `n_rounds`: after few rounds, step sizes lead
        that lose later. "auto": as many as leave room for all cuts, at least 10%.
    scoring : str or None, default=None
        What clients measure on the rows that they hold out: "loss" (the method's own), "rmse",
        "mae", or a ranking metric with a cutoff, such as "ndcg@10" or "hr@10". None: "rmse" for
        models of ratings, and "ndcg@10" for others.
    epsilon_scores : float or None, default=None
        With ``Federation(central_dp=...)``, which requires it: the part of the privacy budget that
        the scores of all candidates spend together.
    validation_fraction : float in (0, 1), default=0.1
        Share of its rows that each client holds out.
    validation_rows : {"random", "latest"}, default="random"
        Whether these are random rows or each user's latest, to choose a model of what comes next.
        The latest need candidates that all read times, such as those with a `history_half_life`.
    refit : bool or "anew", default=True
        Whether the winner goes on to `n_rounds` with all rows, including those held out. A method
        that cannot go on from its last model is fitted anew, and "anew" does so for all methods.
    n_jobs : int or None, default=None
        Number of threads. The result does not depend on it.
    random_state : int, RandomState instance or None, default=None
        Seed of the candidates, and of the method if its `random_state` is not an int.

    Attributes
    ----------
    best_estimator_ : estimator
        The winner, fitted to all rows. Only with `refit`, like all methods below.
    best_params_ : dict
        Its parameters.
    best_score_ : float
        Its score at the last cut.
    best_index_ : int
        Its row of `cv_results_` at the last cut.
    gain_ : float
        By how much it beats the estimator's own parameters at the last cut: 0.0 if these won, NaN
        if they diverged.
    cv_results_ : dict of ndarray
        A row for each candidate at each cut: `iter`, `n_resources` (rounds), `params`,
        ``param_<name>``, `mean_test_score` (greater is better: errors are negative) and
        `rank_test_score`. A candidate that diverged scores NaN.
    n_candidates_ : list of int
        Number of candidates that were evaluated at each cut.
    n_resources_ : list of int
        Rounds that they had run.
    n_iterations_ : int
        Number of cuts.
    n_rounds_ : int
        Rounds in all: those of the search, in which all candidates share, and the last ones.
    refit_ : {"warm", "anew"} or None
        How the winner came to know all rows; ``best_estimator_.communication_`` counts its bytes.
    history_ : list of dict
        For each round of the search `round`, `candidates` (how many), `bytes_down`, `bytes_up` and
        `score`, the best one at a cut, NaN in other rounds.
    communication_ : Ledger
        All bytes of the search: of all candidates, of their evaluation, and of the last rounds.
    privacy_ : PrivacyReport
        Of all that clients have sent.
    n_features_in_ : int
        Number of columns of X.
    scoring_ : str
        What clients measured.

    Raises
    ------
    ValueError
        By fit, before any work: if there is only one candidate; if a parameter is unknown, or
        cannot be searched; if `min_rounds` is too small, or larger than `n_rounds`; if no row can
        be held out; with local differential privacy; or if a privacy budget is too small, or cannot
        be calibrated. Later: if all candidates diverge.
    TypeError
        By fit: if `estimator` is not a federated method, or X is a Dask DataFrame.

    Warns
    -----
    FitFailedWarning
        If some candidates diverged.
    UserWarning
        If the winner diverged, as `fit` does.

    See Also
    --------
    sklearn.model_selection.HalvingRandomSearchCV : The search of those who hold all rows.
    fedrecsk.deployment.flower.server_app : The same search, where the clients are machines.

    Notes
    -----
    **Bytes.** What is equal for several candidates is sent once: the catalogue, and usually the
    set-up and the first model. A client that is asked to evaluate a model does not receive it again
    to train it. If a round sends clients the rows of their own items only, a random part of the
    clients evaluates each candidate: at least 50, and otherwise as many as make a client receive
    two whole models at a cut on average. In `communication_`, `messages_up` and `messages_down`
    count messages that travel together once.

    **Cohorts.** With ``client_fraction < 1``, the cohort of the next round evaluates a model, and a
    cut uses the mean over the rounds of one pass over the clients, or over a part of them.

    **Central privacy.** The rounds of all candidates, their scores, and the winner's last rounds
    are releases, and the noise is calibrated so that all of them together spend the `epsilon` of
    ``CentralDP``. Every client then counts once in a score, however many rows it has, and its RMSE
    or MAE as no more than half of the rating scale. Cohorts, secure sums, adaptive clips and noise
    by the clients are refused.

    **Scores.** `best_score_` was used to choose, so it is too good. Report a score on other rows.
    It has no standard error, because clients send no squares. Over n rows that of an RMSE is about
    ``RMSE / sqrt(2 n)`` if errors are normal and independent, and more if users differ. Over n
    users that of a ranking metric is at most ``0.5 / sqrt(n)``. The noise of `gain_` is usually
    less, because all candidates are evaluated on the same rows.

    Examples
    --------
    >>> from fedrecsk import RFRec
    >>> from fedrecsk.datasets import make_ratings
    >>> from fedrecsk.selection import FederatedSearch
    >>> X, y = make_ratings(n_users=60, n_items=40, n_ratings=1500, random_state=0)
    >>> grid = {"reg_user": [0.01, 0.04, 0.16], "learning_rate": [0.05, 0.1, 0.2]}
    >>> search = FederatedSearch(RFRec(4, n_rounds=40), grid, random_state=0).fit(X, y)
    >>> search.n_candidates_, search.n_resources_
    ([9, 3], [10, 30])
    >>> sorted(search.best_params_)
    ['learning_rate', 'reg_user']
    >>> search.gain_ > 0
    True
    >>> items, scores = search.recommend([0, 1], 3)
    """

    __metadata_request__fit: ClassVar[dict] = {"clients": True, "sample_weight": True}
    __metadata_request__score: ClassVar[dict] = {"sample_weight": True}

    estimator: BaseEstimator
    param_distributions: dict | list
    _: KW_ONLY
    n_candidates: AtLeast2 = 27
    factor: AtLeast2 = 3
    min_rounds: AtLeast1 | Literal["auto"] = "auto"
    scoring: str | None = None
    epsilon_scores: Annotated[float, Interval(Real, 0, 1e6, closed="right")] | None = None
    validation_fraction: Between0And1 = 0.1
    validation_rows: Literal["random", "latest"] = "random"
    refit: bool | Literal["anew"] = True
    n_jobs: Jobs = None
    random_state: Seed = None

    # ------------------------------------------------------------------------------- fit

    @suggest
    @fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Search, and fit the winner to all rows.

        Parameters
        ----------
        X, y, clients, sample_weight
            As in the `fit` of the method.

        Returns
        -------
        self : object
            The fitted search. An error, or Ctrl-C, leaves it as it was.
        """
        if _frames.is_frame(X):
            raise TypeError(
                "X is a Dask DataFrame, and a search cannot evaluate clients on a cluster; pass "
                "X.compute(), or fit the method to X."
            )
        steps, drawn = self._draw()
        candidates = [_Simulated(params, model) for params, model in drawn]
        if steps:
            X = steps.fit_transform(X, y)
        given = {"X": X, "y": y, "clients": clients, "sample_weight": sample_weight}
        rungs, scoring = self._prepare(candidates, given)
        first = candidates[0]
        report = FitReport(self, *first.rows, first.data, rungs[-1] + 1)
        report.begin()
        with (
            get_threadpool_controller().limit(limits=1, user_api="blas"),
            Threads(self.n_jobs) as parallel,
        ):
            for one in candidates:
                one.loop.parallel = parallel
            halving = Halving(candidates, rungs, self.factor)
            halving.set_up()
            while not halving.is_over:
                close = report.step("round")
                halving.round()
                if close(
                    lambda: {"best_estimator_": self._joined(steps, halving.leader.model_now())}
                ):
                    halving.stop()
        leader, how, model = halving.leader, None, None
        if self.refit:
            how, model = leader.refit(given, self.refit)
        else:
            # A refit checks its own model.
            check_fitted(leader.method, leader.data, leader.loop.attributes_now())
        attributes = halving.attributes(how, model) | {"scoring_": scoring}
        attributes["n_features_in_"] = first.model.n_features_in_
        if self.refit:
            attributes["best_estimator_"] = self._joined(steps, model)
        vars(self).pop("best_estimator_", None)
        vars(self).update(attributes)
        report.end()
        return self

    def _draw(self):
        """Return the steps before the method, or None, and candidates as (params, model)."""
        steps, method, prefix = None, self.estimator, ""
        if isinstance(method, Pipeline):
            name, method = method.steps[-1]
            steps, prefix = clone(self.estimator[:-1]), f"{name}__"
        if not isinstance(method, FederatedRecommender):
            raise TypeError(
                "FederatedSearch needs a federated method, or a Pipeline that ends in one, got "
                f"{method!r}; search other models with GridSearchCV."
            )
        _check_method(method)
        if method._setting().central_dp is not None:
            check_private(method, self.scoring, self.epsilon_scores)
        elif self.epsilon_scores is not None:
            raise ValueError(
                f"epsilon_scores={self.epsilon_scores:g} needs Federation(central_dp=...), without "
                "which nothing keeps it; leave it out."
            )
        rng = check_random_state(self.random_state)
        seed = method.random_state
        seed = seed if isinstance(seed, Integral) else int(rng.randint(2**31 - 1))
        candidates = []
        for params in self._params(rng, method, prefix):
            model = clone(self.estimator).set_params(**params)
            model = model[-1] if prefix else model
            _check_method(model)
            if self.validation_rows == "latest":
                _check_times(model, params)
            candidates.append((params, model._set(random_state=seed)))
        if len(candidates) < 2:
            raise ValueError(
                "There is only one candidate, so there is nothing to choose; give more values in "
                "param_distributions."
            )
        return steps, candidates

    def _metric(self, method):
        """Return what clients measure."""
        return self.scoring or ("rmse" if method._sees_ratings else "ndcg@10")

    @property
    def _holds_out(self):
        """Which rows clients hold out."""
        return HoldOut(self.validation_fraction, latest=self.validation_rows == "latest")

    def _params(self, rng, method, prefix):
        """Return the parameters of the candidates, first those that the estimator has."""
        spaces, n_others = self.param_distributions, self.n_candidates - 1
        spaces = [spaces] if isinstance(spaces, Mapping) else spaces
        drawn = None
        if not any(hasattr(values, "rvs") for one in spaces for values in one.values()):
            drawn = list(ParameterGrid(spaces))
        if drawn is None or len(drawn) > self.n_candidates:
            drawn = list(ParameterSampler(spaces, self.n_candidates, random_state=rng))
        else:
            n_others = len(drawn)
        for params in drawn:
            for name in params:
                _check_searchable(name, prefix)
            clone(self.estimator).set_params(**params)
        # Those of the federation that it stands for if it has none.
        setting = method._setting().get_params().items()
        now = {f"{prefix}federation__{name}": value for name, value in setting}
        now |= self.estimator.get_params()
        names = sorted({name for params in drawn for name in params} & now.keys())
        default = {name: now[name] for name in names}
        others = [
            params
            for params in drawn
            if any(not np.array_equal(now.get(name), value) for name, value in params.items())
        ]
        return [default, *others[:n_others]]

    def _prepare(self, candidates, given):
        """Check everything, read the data, and make the runs; return the rounds of the cuts."""
        method = candidates[0].model
        scoring = self._metric(method)
        # As it was given: candidates set their noise.
        mechanism, noise = copy.deepcopy(method._setting().central_dp), None
        for one in candidates:
            one.read(given, scoring, self.validation_fraction, candidates[0])
        n_rounds = [one.n_rounds for one in candidates]
        rungs = rungs_of(min(n_rounds), len(candidates), self.factor, self.min_rounds)
        if mechanism is not None:
            plan = {"rungs": rungs, "factor": self.factor, "refit": self.refit}
            noise = noise_of_a_search(candidates, mechanism, self.epsilon_scores, **plan)
        # The noise of fits with the same seed must not be known to clients, who know the seed.
        own = self.estimator[-1] if isinstance(self.estimator, Pipeline) else self.estimator
        is_seeded = self.random_state is not None or own.random_state is not None
        is_secret = noise is not None and not is_seeded
        for one in candidates:
            one.begin(noise, self._holds_out, is_secret=is_secret)
        return rungs, scoring

    def _joined(self, steps, model):
        """Return a model, behind the fitted steps of a Pipeline if it has some."""
        if steps is None:
            return model
        whole = clone(self.estimator)
        whole.steps = [*steps.steps, (whole.steps[-1][0], model)]
        return whole

    # ----------------------------------------------------------------- what is found

    @property
    def gain_(self) -> float:
        """By how much the winner beats the estimator's own parameters at the last cut."""
        check_is_fitted(self)
        found = self.cv_results_
        # Those of the first candidate.
        own = found["params"][0]
        rows = zip(found["iter"], found["params"], found["mean_test_score"], strict=True)
        last = [
            score
            for number, params, score in rows
            if number == self.n_iterations_ - 1 and params is own
        ]
        return float(self.best_score_ - last[0]) if last else float("nan")

    @available_if(_has("predict"))
    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Call `predict` of `best_estimator_`.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)

        Returns
        -------
        y_pred : ndarray of shape (n_samples,), dtype float64
        """
        check_is_fitted(self)
        return self.best_estimator_.predict(X)

    @available_if(_has("recommend"))
    def recommend(self, *args: Any, **options: Any) -> Any:
        """Call `recommend` of `best_estimator_`, with the same arguments.

        Returns
        -------
        items, scores : ndarrays
            As the method returns them.
        """
        check_is_fitted(self)
        return self.best_estimator_.recommend(*args, **options)

    @available_if(_has("score"))
    def score(
        self, X: ArrayLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Call `score` of `best_estimator_`.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), default=None
        sample_weight : array-like of shape (n_samples,), default=None

        Returns
        -------
        score : float
            R^2 of ratings, or NDCG@10.
        """
        check_is_fitted(self)
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return self.best_estimator_.score(X, y, **weights)

    def __sklearn_tags__(self) -> Tags:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        for name in ("estimator_type", "classifier_tags", "regressor_tags", "input_tags"):
            setattr(tags, name, copy.deepcopy(getattr(inner, name)))
        tags.target_tags.required = inner.target_tags.required
        return tags


# ---------------------------------------------------------------------------- candidates


@dataclass(eq=False)
class _Simulated(Candidate):
    """A candidate whose clients are in this process."""

    # X, y and weights as tables, and encoded.
    rows: list[Any] = field(default_factory=list)
    data: Any = None
    method: Any = None

    def read(self, given, scoring, share, first):
        """Check the parameters, and read the data; all candidates of the same data share them."""
        model = self.model
        model._check_before_fit()
        self.method = method_of(model, scoring, share)
        if model._setting().central_dp is not None:
            # Found later; an epsilon would be that of this fit alone.
            _set_noise(self.method, 1.0)
        *self.rows, self.data = self.method._read_fit(**given)
        plan = self.method._plan()
        plan.scoring.check(plan, self.data.n_items)
        if self.data.features is None and self.data.fingerprint() == first.data.fingerprint():
            self.data = first.data
        plan = model._plan()
        self.n_rounds = plan.rounds(plan.units(self.data))
        for name in {"n_features_in_", "feature_names_in_"} & vars(self.method).keys():
            setattr(model, name, getattr(self.method, name))

    def begin(self, noise, holds_out, *, is_secret):
        """Make the server and the clients, with the noise of a search (Noise), or None."""
        self.noise, changed = noise, {"holds_out": holds_out}
        if noise is not None:
            for one in (self.model, self.method):
                _set_noise(one._set(n_rounds=self.n_rounds), noise.of_rounds)
            changed["scoring"] = noise.scoring_of(self.method)
        self.loop = Run.new(self.method, self.data, **changed)
        if is_secret:
            self.loop.server.secret = None
            self.model._set(random_state=None)

    def model_now(self):
        """Return the model as if the rounds ended here."""
        return fitted_copy(self.model, attributes_of(self.data) | self.loop.attributes_now())

    def refit(self, given, refit):
        """Fit the model to all rows; return how, and the model."""
        model, run, data = self.model, self.loop, self.data
        if not self.goes_on(run.server.round, refit):
            return "anew", model.fit(**given)
        n_left = self.n_rounds - run.server.round

        def fit(data, report):
            changed = run.data.client_ids
            attributes = continuing.update(model, run, data, report, n_left, changed)
            model._run = model._run if model.warm_start else None
            return attributes

        # What may not change if the model is updated later.
        run.parameters = parameters_of_a_run(model)
        return "warm", model._learn(data, FitReport(model, *self.rows, data, n_left), fit)


def method_of(model: Any, scoring: str, share: float) -> Any:
    """Return the method that a candidate is trained by, with a share of rows held out."""
    return clone(model)._set(scoring=scoring, validation_fraction=share, warm_start=False)


def _set_noise(method, noise_multiplier):
    """Set the noise of the rounds, whatever epsilon they spend."""
    method._set(
        federation__central_dp__epsilon=None,
        federation__central_dp__noise_multiplier=noise_multiplier,
    )


# ------------------------------------------------------------------------------- checks


def _check_method(method):
    """Raise ValueError if the estimator, as it is given, cannot be searched."""
    method._validate_params()
    refusals.check("search", method._plan())


def _check_times(method, params):
    """Raise ValueError if clients cannot hold out the latest rows for a candidate."""
    rows = 'validation_rows="random"'
    if not method._reads_times:
        known = [name for name in ("timestamps", "history_half_life") if hasattr(method, name)]
        cure = f"Set {' and '.join(known)}, or use" if known else "Use"
        raise ValueError(
            f"A candidate of {type(method).__name__} does not read the times of rows, so clients "
            f"do not know which are the latest: {params}. {cure} {rows}."
        )
    if any(name.endswith("timestamps") for name in params):
        raise ValueError(
            f"'timestamps' cannot be searched with the latest rows, which depend on it; use {rows}."
        )
    if method._setting().adversary is not None:
        raise ValueError(
            f"The rows that an adversary adds would be the latest, and held out; use {rows}."
        )


def _check_searchable(name, prefix):
    """Raise ValueError if a parameter cannot be searched."""
    own = name.removeprefix(prefix)
    if prefix and own == name:
        raise ValueError(
            f"{name!r} is not a parameter of the Pipeline's method, which begins with {prefix!r}; "
            "the steps before it are the same for all candidates."
        )
    for fixed, why in FIXED.items():
        if own == fixed or own.startswith(f"{fixed}__"):
            raise ValueError(f"{name!r} cannot be searched: {why}.")
