"""The hooks of a federated method: what an author writes, and what all methods inherit."""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from fedrecsk._utils.sklearn_compat import Interval, get_threadpool_controller
from fedrecsk._utils.threads import N_JOBS
from fedrecsk.base import Recommender
from fedrecsk.base._item_weights import history_of
from fedrecsk.federated import _cluster, _private, _round_loop, _weak_fits
from fedrecsk.federated._hooks import HookAlgorithm
from fedrecsk.federated._updating import Updating
from fedrecsk.protocol import blocks as _blocks
from fedrecsk.protocol import refusals
from fedrecsk.protocol.central_noise import CentralNoise
from fedrecsk.protocol.clients import personal_attributes
from fedrecsk.protocol.federation import Federation
from fedrecsk.protocol.keys import Key, Keys
from fedrecsk.protocol.messages import Message
from fedrecsk.protocol.participation import Sampling
from fedrecsk.protocol.server import server_sees

if TYPE_CHECKING:
    from typing import Any, Self

    from fedrecsk.privacy import PrivacyReport


@dataclass(eq=False, repr=False)
class FederatedRecommender(Updating, Recommender):
    """Base class of the federated methods.

    A method gives the hooks below, in the order of a paper's algorithm. `server` is the server's
    state and `state` the private one of a block of clients, both dicts. The two exchange only a
    :class:`~fedrecsk.protocol.Message` (download) and
    :class:`~fedrecsk.protocol.Updates`. `self` is a copy of the estimator with its
    parameters only: do not set attributes on it.

    Server hooks get the shared key, a :class:`~fedrecsk.protocol.keys.Key`; client hooks get
    :class:`~fedrecsk.protocol.keys.Keys`, a shared and a private one.
    """

    _: KW_ONLY
    n_rounds: int = 100
    client_fraction: float = 1.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    tol: float = 1e-4
    warm_start: bool = False
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | None = None
    federation: Federation | None = None

    _parameter_constraints: ClassVar[dict] = Recommender._parameter_constraints | {
        "n_rounds": [Interval(Integral, 1, None, closed="left")],
        "client_fraction": [Interval(Real, 0, 1, closed="right")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "n_jobs": N_JOBS,
        "random_state": ["random_state"],
        "federation": [Federation, None],
    }

    # The users' models on the workers of a Dask cluster: Parts, or None if they are here.
    _parts = None

    # Whether clients keep more than one vector of their own for each rating, in a way that is
    # exact only if all clients of a block have received the same broadcasts and updated in the
    # same rounds. `_update_unrated_items` is called for such methods alone.
    _shares_state = False

    # Whether `_client_update` returns uploads client by client if ``turn.separate`` is True.
    # If not, blocks have one client each if single uploads are needed.
    _single_uploads = False

    # How many times in each round devices send something to each other, before their update.
    # `Device` refuses such methods.
    _n_exchanges = 0

    # What the server needs of a round's uploads: "sums", or "clients" for methods that treat
    # clients individually. Their `_aggregate` gets the single uploads (``upload.single()``), and
    # their messages may have :class:`~fedrecsk.protocol.PerClient` fields. Secure sums are
    # refused.
    _server_sees = "sums"

    # Whether `_broadcast` may return None; clients then continue with their last message.
    _may_be_silent = False

    # Whether ``Federation(sampling="auto")`` means cohorts that take turns.
    _prefers_rotation = False

    # Why the method has no local noise; None: it has.
    _no_local_dp: ClassVar[str | None] = None

    # Whether a client sends in one of the rounds only, to a sum that is all of the server's state,
    # and from which it can take its part back.
    _sends_once = False

    # The parameter that says how many numbers of `_dtype` every user keeps; None if there is no
    # such parameter. By it, fits for which there is not enough memory are refused.
    _user_width = None

    # How clients that promote an item move it: a method (view, rows, moves) that returns, for each
    # field in which clients send rows of items, what each of the adversary's uploads must hold in
    # these rows, as changes of shape (len(rows), width), so that the server moves their item
    # vectors by `moves`, as far as such clients can know. Everything else in their uploads is as
    # if they had learned nothing. None: clients send no rows of items.
    _upload_moving = None

    # --------------------------------------------------------------- before the rounds

    def _check_setting(self, federation, data, blocks):
        """Raise, before any work, if the method does not suit its federation or data."""

    def _check_on_devices(self, federation):
        """Raise, before any work, if only the simulator can run the method in its federation."""

    # Whether clients may join after the set-up: the server keeps nothing for each client.
    _admits_late_clients = True

    def _setup_specs(self, n_items):
        """Return what all clients send before the rounds: a dict of FieldSpec, empty if nothing."""
        return {}

    def _setup_request(self, catalogue):
        """Server: what clients must know to answer. A Message; pure."""
        return Message()

    def _setup_update(self, block, message, key):
        """Clients: their answer, added up over the block: Updates."""
        raise NotImplementedError(f"{type(self).__name__} needs _setup_update(...).")

    def _begin(self, catalogue, sums, key):
        """Server: its first state, from the catalogue and the Upload of the answers, if any."""

    def _initial_broadcast(self, server):
        """Server: what it sends to every client once, after the set-up. A Message; pure.

        Its fields are part of the message that `_init_clients` and `_personalize` get.
        """
        return Message()

    # -------------------------------------------------------------------- each round, down

    # Server: how it chooses the clients of this round: a method (server, n_clients, size, key) that
    # returns a mask of shape (n_clients,) of about `size` of them, or None, by which, as without
    # such a method, the federation's `sampling` draws them. `dropout` then applies to the cohort,
    # whoever chooses. Not for methods with `_shares_state`. Pure.
    _choose_cohort = None

    def _model(self, server):
        """Server: the model as clients receive it. A Message; pure."""

    def _model_delta(self, server):
        """Server: what a client with the last model needs instead. A Message; pure.

        None: the whole model.
        """
        return None

    def _broadcast(self, server, key):
        """Server: this round's download. A Message, or None if `_may_be_silent`; pure."""
        return self._model(server)

    def _decode_broadcast(self, message, key):
        """Clients: a message with the fields that they derive from it. Pure.

        `key` is the shared one. It is computed once for all clients that receive the message.
        """
        return message

    # ---------------------------------------------------------------- each round, clients

    def _update_unrated_items(self, common, message, key):
        """Clients: what those of equal history share, computed once for all of them.

        Only where `_shares_state`; `common` is None at first, and the result is in
        ``state["common"]`` of all their blocks.
        """

    def _init_clients(self, block, message, key):
        """Clients: their private state, a dict, from the announcement and a first broadcast.

        Clients of a block may take part for the first time later than others. Therefore, unless
        `_shares_state`, nothing in the state may depend on that broadcast.
        """

    def _upload_specs(self, n_items):
        """Return what a client sends in a round: a dict of FieldSpec by name."""

    def _exchange(self, block, state, message, turn, step, key):
        """Clients: what those in ``turn.active`` send to the other devices of their groups.

        Called `_n_exchanges` times in a round, for the clients that have received its message.

        Returns
        -------
        state : dict
        messages : GroupMessages
        """
        raise NotImplementedError(f"{type(self).__name__} needs _exchange(...).")

    def _after_exchange(self, block, state, means, turn, step):
        """Clients: their state, given the mean of the messages in each client's group.

        `means` has a row for each client of the block: over its own message and all that it
        received; zero for clients in no group.
        """
        raise NotImplementedError(f"{type(self).__name__} needs _after_exchange(...).")

    def _client_update(self, block, state, message, turn, key):
        """Clients: one local update of those in ``turn.active``; the others stay as they are.

        Returns
        -------
        state : dict
        updates : Updates or None
            Sums over the clients in ``turn.delivers``, or with ``turn.separate`` each one's own.
        loss : tuple of float or None
            Sum of the training losses and of their weights, for `loss_curve_`; never sent.
        """

    # ----------------------------------------------------------------- each round, server

    def _upload_centers(self, message):
        """Server: what a client that has changed nothing would send, from the last message.

        A dict of arrays, for the fields of `_upload_specs` where that is not zero: the `center`
        of :class:`~fedrecsk.protocol.SparseRows`. A server that needs single uploads of
        deployed clients computes their changes from it, without trusting the clients. Pure.
        """
        return {}

    def _aggregate(self, server, upload, key):
        """Server: its step on the round's Upload (None if there is none). Returns its state."""

    # ------------------------------------------------------------------- partial_fit

    # What of the server's state a fit to more rows goes on from, by name.
    _carried: ClassVar[tuple[str, ...]] = ()

    def _resumed(self, server, before, places):
        """Server: its state after the set-up, with what it has learned from fewer rows.

        `places` are the codes now of the items of the state `before`, -1 if they are gone. Pure.
        """
        return server | {n: _carried(server[n], before[n], places) for n in self._carried}

    def _memory(self, state):
        """Clients: what they go on from in a fit to more rows; arrays of the state, by whose.

        With a row for each of the "users", of the "clients", or of the clients' "rows": the items
        that each has, as in ``block.row_items``.
        """
        return {"users": [self._private_vectors(state)]}

    def _recalled(self, state, remembered):
        """Clients: their first state, with what they have from fewer rows.

        `remembered` has a mask and arrays for each name of `_memory`; where `_sends_once`, it is
        a mask of the clients whose uploads the server has.
        """
        for name, arrays in self._memory(state).items():
            known, before = remembered[name]
            for now, values in zip(arrays, before, strict=True):
                now[known] = values
        return state

    def _taking_back(self, state):
        """Clients: their state before a round in which they take back all that they have sent."""
        raise NotImplementedError(f"{type(self).__name__} needs _taking_back(state).")

    # ------------------------------------------------------------------------- the end

    def _personalize(self, block, state, message, turn, key):
        """Clients: the step of those in ``turn.active`` on the final model; pure.

        The message has the announcement's fields too. `state` is None for new users and for
        clients that have taken part in no round. The result for other clients' users is
        ignored, and no user's vector may depend on which other clients are active.
        """
        return self._init_clients(block, message, key) if state is None else state

    def _final_model(self, server):
        """Server: what a client needs to recommend. A Message; pure."""
        return self._model(server)

    @abstractmethod
    def _server_attributes(self, message):
        """Fitted attributes that are the server's, from the final message; a dict."""

    def _attributes_of_state(self, server):
        """Fitted attributes that the server has in its state and does not send; a dict."""
        prior = self._algorithm().item_prior(server)
        return {} if prior is None else {"_content": prior}

    @abstractmethod
    def _user_attributes(self, block, state):
        """Fitted attributes that are the users' own; a dict; pure.

        Arrays with a row per user of the block, with names that begin with ``user_``. Anything
        else needs a class method ``joined(parts)``.
        """

    def _validation_losses(self, held_out):
        """Clients: loss and weight of each held-out row under a model fitted for these users.

        The loss is multiplied by the weight already; the default is the squared error.
        """
        predicted = self._score_pairs(held_out.users, held_out.items)
        return held_out.weights * (held_out.values - predicted) ** 2, held_out.weights

    def _item_vectors(self, message):
        """Return a broadcast's item vectors (n_items, width), as an adversary reads them.

        A user's scores are their product with some vector, up to a constant; biases are a column.
        """
        for name in ("item_factors", "item_vectors"):
            if name in message:
                return message[name].values
        raise TypeError(
            f"{type(self).__name__} broadcasts neither item_factors nor item_vectors; implement "
            "_item_vectors(self, message) to attack it with a View's item_vectors."
        )

    def _private_vectors(self, state):
        """Clients: their users' vectors, with which a curious server's guesses are compared."""
        return state["users"] if isinstance(state, dict) else state.users

    # --------------------------------------------------------------- what is inherited

    @property
    def _sees_ratings(self):
        """Whether it trains on how much users like an item, instead of whether they do."""
        return self.__sklearn_tags__().target_tags.required

    @property
    def _treats_clients_apart(self):
        """Whether the server must see single uploads."""
        return self._server_sees == "clients"

    def _algorithm(self):
        """Return the method's algorithm, with these hyperparameters."""
        return HookAlgorithm(self)

    def _made(self, kind, **parts):
        """Return an algorithm of a class, with its fields from this estimator and `parts`."""
        names = [one.name for one in fields(kind) if one.name not in parts]
        own = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if "dtype" in names:
            own["dtype"] = self._dtype
        return kind(**own, **parts)

    def _setting(self):
        """Return the federation that the method runs in."""
        return Federation() if self.federation is None else self.federation

    def _sampling(self):
        """Return how clients are drawn in each round."""
        rotates = self._algorithm().traits.rotates
        return Sampling.of(self._setting(), self.client_fraction, rotates=rotates)

    def _rounds(self, n_clients):
        """Return the rounds of a fit to so many clients: `n_rounds`, or what "auto" stands for."""
        return self.n_rounds

    def _cohort_share(self, n_clients):
        """Return `client_fraction`, or the share of one client, the smallest cohort."""
        return max(self.client_fraction, 1 / n_clients)

    def _n_tasks(self, data):
        return self._rounds(data.n_clients)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; ``federation__...`` of a federation that is None makes one.

        Returns
        -------
        self : object
        """
        nested = any(name.startswith("federation__") for name in params)
        if nested and self.federation is None and params.get("federation") is None:
            params["federation"] = Federation()
        return super().set_params(**params)

    def _least_bytes(self, data):
        # A round's sums, the server's model, and users' vectors during and after the rounds.
        itemsize = np.dtype(getattr(self, "_dtype", np.float32)).itemsize
        specs = self._algorithm().fields(data.n_items).values()
        total = sum(spec.size * np.dtype(spec.sum_dtype).itemsize for spec in specs)
        model = [spec for spec in specs if spec.learned and not spec.is_integer]
        total += itemsize * sum(f.size for f in model if f.shape[0] == data.n_items)
        if self._user_width is not None and self.client_fraction == 1:
            total += 2 * itemsize * data.n_users * getattr(self, self._user_width)
        return total

    def _check_before_fit(self):
        federation = self._setting()
        federation._validate_params()
        refusals.check(type(self).__name__, self._algorithm().traits, federation)
        if federation.secure_aggregation is not None:
            _private.check_secure(self)
        if federation.central_dp is not None:
            _private.check(self, federation.central_dp)
        if federation.local_dp is not None:
            _private.check_local(self)

    def _prepared(self, X, y=None, clients=None, sample_weight=None, catalogue=None):
        data = super()._prepared(X, y, clients, sample_weight, catalogue)
        _private.warn_of_cost(self, data.n_clients)
        return data

    def _private_problems(self, part):
        """Return what else does not suit "central_dp" or "local_dp", one text for each."""
        return []

    def planned_privacy(self, n_clients: int) -> PrivacyReport:
        """Report what a fit with central privacy will guarantee, before it has begun.

        Parameters
        ----------
        n_clients : int
            Number of clients.

        Returns
        -------
        report : PrivacyReport
            ``privacy_`` of the fit, if all clients take part as planned. With cohorts of a fixed
            size at random and ``random_state=None``, the fit's may differ.

        Raises
        ------
        ValueError
            If the federation has no `central_dp`, or if the method does not suit it.
        """
        federation = self._setting()
        if federation.central_dp is None:
            raise ValueError(
                f"{type(self).__name__} has no central_dp, so there is nothing to plan; set "
                "federation=Federation(central_dp=CentralDP(epsilon=10))."
            )
        self._validate_params()
        self._check_before_fit()
        seed = check_random_state(copy.deepcopy(self.random_state)).randint(2**31 - 1)
        releases = CentralNoise(self, federation, n_clients, Key(int(seed)), Key(int(seed)))
        return releases.planned(server_sees(self, federation))

    def _fit_on_cluster(self, X, y, clients, sample_weight):
        return _cluster.fit(self, X, y, clients, sample_weight)

    def _fit(self, data, report):
        # Not before the fit has ended: a refused one must not lose the last one's users.
        report.static |= {"_parts": None}
        return _round_loop.fit(self, data, report)

    def _check_after_fit(self, data):
        # A history that fades is not there to rank the user's old rows.
        fades = getattr(self, "history_half_life", None) is not None
        if self._setting().adversary is None and not fades:
            _weak_fits.warn_if_weak(self, data)

    def _watch(self, data, n_rounds):
        """Run the rounds for a curious server; see :func:`_round_loop.watch`."""
        return _round_loop.watch(self, data, n_rounds)

    def __getattr__(self, name: str) -> Any:
        if vars(self).get("_parts") is not None and name.startswith("user_"):
            raise AttributeError(
                f"The users of this {type(self).__name__} are on the workers of a Dask cluster; "
                "pass a Dask DataFrame, or use fedrecsk.cluster.gather(model), which returns a "
                f"model that has {name} here."
            )
        # Raise as Python does, or as `available_if` does.
        return object.__getattribute__(self, name)

    def _forget_features(self, users):
        """Forget what this object has of these users beside their rows."""

    def _kept_rows(self, user):
        run = getattr(self, "_run", None)
        if run is not None:
            data = run.data
            (code,) = data.user_ids.codes(self.user_ids_[user : user + 1])
            if code >= 0:
                return history_of(data, code, getattr(self, "history_half_life", None))
        return super()._kept_rows(user)

    def _new_user_attributes(self, data):
        clients = clone(self)
        message = self._algorithm().decode(self._final_message, Key(0))
        keys, blocks, attributes = Keys(Key(0), Key(0)), _blocks.cut(data), []
        with get_threadpool_controller().limit(limits=1, user_api="blas"):
            for block in blocks:
                ids, block = data.client_ids[block.clients], self._as_newcomers(block)
                attributes.append(personal_attributes(clients, block, ids, message, keys))
        joined = _blocks.by_user([block.users for block in blocks], attributes)
        return {name: rows for name, rows in joined.items() if name.startswith("user_")}

    def _as_newcomers(self, block):
        """Return a block of users that were not in fit, with the codes that their draws need."""
        return block


def _carried(now, before, places):
    """Return a copy of `before`, its rows of items at `places` among those of `now`."""
    if isinstance(before, tuple):
        parts = [_carried(*pair, places) for pair in zip(now, before, strict=True)]
        return type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)
    if np.ndim(before) == 0 or len(before) != len(places) or np.shape(now) == np.shape(before):
        return copy.deepcopy(before)
    changed, known = np.array(now), places >= 0
    changed[places[known]] = before[known]
    return changed
