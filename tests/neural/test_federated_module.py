"""FederatedModule against a loop over clients, and what it refuses."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedrecsk import Federation
from fedrecsk.neural import FederatedModule, Net, PFedRec
from fedrecsk.neural._training import loss_function
from fedrecsk.neural.modules import GMF, NeuMF
from fedrecsk.simulation.run import Run
from tests.conftest import fits_in_blocks
from tests.reference.neural import federated_module as reference


class Everything(nn.Module):
    """A module with all kinds of parameters."""

    def __init__(self, n_users, n_items, width=3, dtype=torch.float64):
        super().__init__()
        self.user = nn.Embedding(n_users, width, dtype=dtype)
        self.item = nn.Embedding(n_items, width, dtype=dtype)
        self.item_bias = nn.Parameter(torch.zeros(n_items, dtype=dtype))
        self.own_item_bias = nn.Parameter(torch.zeros(n_items, dtype=dtype))
        self.own_bias = nn.Parameter(torch.zeros((), dtype=dtype))
        self.hidden = nn.Linear(width, 2, dtype=dtype)
        self.scale = nn.Parameter(torch.ones(2, dtype=dtype))

    def forward(self, users, items):
        hidden = torch.tanh(self.hidden(self.user(users) * self.item(items)))
        biases = self.item_bias[items] + self.own_item_bias[items] + self.own_bias
        return hidden @ self.scale + biases


PRIVATE = ("user*", "own*")


def rated_of(data, client, targets, weights):
    """The users of a client as the reference takes them."""
    users = []
    for u in range(data.client_indptr[client], data.client_indptr[client + 1]):
        span = slice(data.indptr[u], data.indptr[u + 1])
        rows = zip(data.items[span].tolist(), targets[span], weights[span], strict=True)
        users.append({item: (float(t), float(w)) for item, t, w in rows})
    return users


def two_rounds_by_a_loop(model, X, y, clients):
    """Server and private parameters after two rounds, from the same beginning as the fit."""
    run = Run.new(model, model._prepared(X, y, clients))
    algorithm, data = run.server.algorithm, model._prepared(X, y, clients)
    key, layout = run.server.key, algorithm.layout
    state = algorithm.begin(type("Catalogue", (), {"n_items": data.n_items}), None, key)
    message = algorithm.announce(replace(state, mean_rating=np.average(data.values)))
    block = run.clients[0].block
    first = algorithm.enter(block, message, run.clients[0].keys)
    feedback, columns = first.feedback, layout.columns(data.n_items)
    parts = {name: layout.parts[name] for name in layout.sent}
    shapes = {n: (-1, *p.shape) if p.kind == "item" else p.shape for n, p in parts.items()}
    server = {name: state.parameters[name].reshape(shape) for name, shape in shapes.items()}
    own_users = []
    for c in range(data.n_clients):
        span, own = slice(data.client_indptr[c], data.client_indptr[c + 1]), {}
        for name, column in columns.items():
            part, rows = layout.parts[name], first.users[span, column]
            rows = rows if part.kind == "user" else rows[0]
            shape = part.shape if part.kind == "private" else (-1, *part.shape)
            own[name] = rows.reshape(shape)
        own_users.append((rated_of(data, c, feedback.targets, feedback.weights), own))
    plan = algorithm.training
    settings = {
        "n_negatives": plan.n_negatives,
        "n_epochs": plan.n_epochs,
        "batch_size": plan.batch_size,
    }
    make = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}.get(model.optimizer, model.optimizer)
    for round in range(2):
        seeds = reference.seeds_of(run.clients[0].keys.at(round).private, data.n_clients)
        sums, n_visits = reference.one_round(
            algorithm.recipe.make,
            PRIVATE,
            server,
            own_users,
            data.n_items,
            loss_function(model.loss),
            lambda module: [make(module.parameters(), lr=model.learning_rate)],
            settings,
            seeds,
        )
        for name in server:
            divisor = data.n_clients
            if layout.parts[name].kind == "item" and model.aggregation == "visits":
                divisor = np.maximum(n_visits, 1).reshape(-1, *[1] * (server[name].ndim - 1))
            server[name] = server[name] + sums[name] / divisor
    return server


@pytest.mark.parametrize(
    ("loss", "optimizer", "silos", "aggregation"),
    [
        ("bce", "adam", False, "visits"),
        ("squared", "sgd", True, "mean"),
        ("bce", partial(torch.optim.RMSprop, momentum=0.5), True, "visits"),
    ],
    ids=["adam", "sgd in silos", "an optimiser of torch in silos"],
)
def test_equals_a_loop_over_clients(toy, loss, optimizer, silos, aggregation):
    X, y = toy
    clients = X[:, 0] % 5 if silos else None
    model = FederatedModule(
        Everything,
        private=PRIVATE,
        loss=loss,
        optimizer=optimizer,
        aggregation=aggregation,
        learning_rate=0.05,
        local_epochs=2,
        batch_size=7,
        n_negatives=2,
        n_rounds=2,
        random_state=3,
        federation=Federation(wire_dtype="float64"),
    )
    expected = two_rounds_by_a_loop(model, X, y, clients)
    for fitted in fits_in_blocks(model, X, y, clients=clients):
        for name, values in expected.items():
            got = fitted.parameters_[name].reshape(values.shape)
            np.testing.assert_allclose(got, values, rtol=1e-9, atol=1e-12, err_msg=name)


def test_chunks_and_threads_of_torch_do_not_matter(toy, monkeypatch):
    module = Net(NeuMF, layers=(8, 4))
    n_threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    expected = FederatedModule(module, n_rounds=3, random_state=0).fit(*toy)
    assert torch.get_num_threads() == n_threads
    assert torch.equal(torch.random.get_rng_state(), state)
    monkeypatch.setattr("fedrecsk.neural._training.ROWS_ON_CPU", 1)
    torch.set_num_threads(n_threads + 1)
    torch.manual_seed(5)
    try:
        model = FederatedModule(module, n_rounds=3, random_state=0).fit(*toy)
    finally:
        torch.set_num_threads(n_threads)
    np.testing.assert_allclose(model.predict(toy[0]), expected.predict(toy[0]), rtol=1e-5)


FEATURES = torch.arange(40.0, dtype=torch.float64).reshape(20, 2).sin()


class Featured(Everything):
    """A module with features of items, which a reference may train so slowly that they stay."""

    def __init__(self, n_users, n_items, is_fixed=True):
        super().__init__(n_users, n_items)
        self.features = nn.Parameter(FEATURES[:n_items].clone(), requires_grad=not is_fixed)
        self.slope = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=not is_fixed)

    def forward(self, users, items):
        tilt = (self.user(users)[..., :2] * self.slope * self.features[items]).sum(-1)
        return super().forward(users, items) + tilt


@pytest.mark.parametrize("module", [Everything, Featured])
def test_scores_are_the_modules(toy, module):
    model = FederatedModule(module, private=PRIVATE, n_rounds=2, random_state=0).fit(*toy)
    items = torch.arange(model.n_items_)
    for code, user in enumerate(model.user_ids_.tolist()):
        built = model.to_module(user)
        with torch.no_grad():
            scores = built(torch.zeros_like(items), items).numpy()
        codes = np.full(model.n_items_, code)
        np.testing.assert_allclose(model._model().score_all(np.array([code]))[0], scores, rtol=1e-9)
        np.testing.assert_allclose(
            model._model().score_pairs(codes, items.numpy()), scores, rtol=1e-9
        )


def test_a_module_of_all_users_is_there_if_they_have_no_layers_of_their_own(toy):
    X, y = toy
    model = FederatedModule(loss="squared", n_rounds=2, client_fraction=0.3, random_state=0)
    module = model.fit(X, y).to_module()
    users = torch.from_numpy(np.searchsorted(model.user_ids_, X[:, 0]))
    items = torch.from_numpy(np.searchsorted(model.item_ids_, X[:, 1]))
    with torch.no_grad():
        scores = module(users, items).numpy()
    np.testing.assert_allclose(model.predict(X), scores + model.global_bias_, rtol=1e-5)
    with pytest.raises(ValueError, match="User 10000 is not known"):
        model.to_module(10_000)
    model = PFedRec(3, n_rounds=2, personal_items=True, random_state=0).fit(X)
    with pytest.raises(
        ValueError, match=r"score.weight, score.bias .* private.*pass the id of one"
    ):
        model.to_module()


def test_fixed_parameters_are_neither_trained_nor_sent(toy):
    X, y = toy
    clients = X[:, 0] % 5
    rates = {"features": 1e-300, "slope": 1e-300, "*": 0.1}
    settings = {"private": PRIVATE, "optimizer": "sgd", "n_rounds": 3, "random_state": 0}
    settings["federation"] = Federation(wire_dtype="float64")
    fixed = FederatedModule(Featured, learning_rate=0.1, **settings).fit(X, y, clients=clients)
    trained = FederatedModule(Net(Featured, is_fixed=False), learning_rate=rates, **settings)
    trained.fit(X, y, clients=clients)
    kept = FEATURES[: fixed.n_items_]
    np.testing.assert_allclose(trained.parameters_["features"], kept, atol=1e-200)
    assert trained.parameters_.keys() - fixed.parameters_.keys() == {"features", "slope"}
    for name, values in fixed.parameters_.items():
        np.testing.assert_allclose(values, trained.parameters_[name], rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(fixed.predict(X), trained.predict(X), rtol=1e-9)
    sent = [sum(row["bytes_up"] for row in one.communication_.entries) for one in (fixed, trained)]
    assert sent[0] < sent[1]


def test_new_users_and_unknown_items_are_scored_by_features_too(toy):
    model = FederatedModule(Featured, private=PRIVATE, n_rounds=2, random_state=0).fit(*toy)
    new = [[777, item] for item in model.item_ids_[:3]]
    assert np.isfinite(
        model.fold_in(new, [5, 3, 1]).predict([[777, model.item_ids_[5]], [1, 999]])
    ).all()


@pytest.mark.parametrize("n_negatives", [0, 2])
def test_early_stopping_measures_a_loss_of_ones_own(toy, n_negatives):
    def squared(scores, targets):
        return (scores - targets) ** 2

    settings = {"early_stopping": True, "n_rounds": 4, "random_state": 0}
    model = FederatedModule(loss=squared, n_negatives=n_negatives, **settings).fit(*toy)
    losses = [row["validation_loss"] for row in model.history_]
    # Ratings are 3 on average, and scores begin near 0.
    assert 9 / (1 + n_negatives) < losses[0] < 14 / (1 + n_negatives)


def test_lists_of_arguments_with_the_same_elements_make_other_modules(toy):
    widths = []
    for sizes, others in (([4], [3, 4, 5]), ([4, 3], [4, 5])):
        net = Net(sized, sizes=sizes, others=others)
        model = FederatedModule(net, n_rounds=1, random_state=0).fit(*toy)
        widths.append(model.item_factors_.shape[1])
    assert widths == [1, 2]


def sized(n_users, n_items, sizes, others):
    """A module whose vectors are as long as its first list."""
    return GMF(n_users, n_items, n_factors=len(sizes))


class Reshaped(GMF):
    """GMF that looks its rows up by other tensors than the codes that it is called with."""

    def forward(self, users, items):
        return super().forward(users[..., None], items.clone().reshape(-1, 1)).squeeze(-1)


@pytest.mark.parametrize("silos", [False, True])
def test_rows_may_be_looked_up_by_codes_of_another_shape(toy, silos):
    X, y = toy
    settings = {"optimizer": "sgd", "learning_rate": 1.0, "n_rounds": 2, "random_state": 0}
    clients = X[:, 0] % 5 if silos else None
    expected, found = (
        FederatedModule(one, **settings).fit(X, y, clients=clients) for one in (GMF, Reshaped)
    )
    for name, values in expected.parameters_.items():
        np.testing.assert_allclose(found.parameters_[name], values, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found.user_factors_, expected.user_factors_, rtol=1e-4, atol=1e-7)


# ----------------------------------------------------------------------------- refusals


class Changed(nn.Module):
    """A module that can be changed in one place."""

    def __init__(self, n_users, n_items, change=None):
        super().__init__()
        self.user, self.item = nn.Embedding(n_users, 2), nn.Embedding(n_items, 2)
        self.n_items, self.extra = n_items, None
        if change is not None:
            change(self)

    def forward(self, users, items):
        scores = (self.user(users) * self.item(items)).sum(-1)
        return scores if self.extra is None else self.extra(self, scores, users, items)


def changed(**attributes):
    def change(module):
        for name, value in attributes.items():
            setattr(module, name, value(module) if name != "extra" else value)

    return Net(Changed, change=change)


def branch(module, scores, users, items):
    return scores + 1 if scores.sum() > 0 else scores


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (lambda n_users: nn.Linear(1, 1), "could not be built with n_users=2 and n_items=3"),
        (changed(norm=lambda m: nn.BatchNorm1d(2)), "buffer norm.running_mean"),
        (changed(drop=lambda m: nn.Dropout(0.5)), "drop is a Dropout"),
        (changed(extra=lambda m, s, u, i: nn.functional.dropout(s)), "draws random numbers"),
        (changed(extra=lambda m, s, u, i: s[..., None]), "in the shape of users"),
        (changed(extra=lambda m, s, u, i: None / s), "could not score four pairs"),
        (changed(extra=branch), "could not be vectorised"),
        (changed(extra=lambda m, s, u, i: s + i), "in another way than as rows"),
        (changed(dense=lambda m: nn.Linear(m.n_items, 2)), "The shape of dense.weight"),
        (changed(padded=lambda m: nn.Embedding(4, 2, padding_idx=0)), "Embedding with padding_idx"),
        (changed(mine=lambda m: nn.Parameter(m.user.weight * 0, False)), "mine has a row per user"),
        (
            changed(few=lambda m: nn.Parameter(torch.ones(7, 2)[: m.n_items], False)),
            "few has 7 rows",
        ),
        (changed(odd=lambda m: nn.Parameter(torch.full((1,), torch.nan), False)), "odd has .*NaN"),
        (changed(none=lambda m: nn.Linear(0, 2)), "none.weight is empty"),
        (changed(more=lambda m: nn.Embedding(m.n_items + 1, 2)), "exactly n_users or n_items rows"),
        (changed(extra=lambda m, s, u, i: s - s.mean()), "depends on the other pairs"),
        (changed(extra=lambda m, s, u, i: s.detach()), "without a gradient"),
        (changed(extra=lambda m, s, u, i: (s, s)), "got tuple"),
        (changed(half=lambda m: nn.Linear(1, 1).half()), "half.weight has dtype torch.float16"),
        (changed(extra=lambda m, s, u, i: s / 0 * 0), "scores that are not finite"),
        (changed(extra=lambda m, s, u, i: s.long()), "float32 or float64, got torch.int64"),
        (lambda n_users, n_items: nn.Identity(), "The module has no parameters"),
    ],
)
def test_modules_that_cannot_be_simulated_are_refused(toy, module, match):
    with pytest.raises(ValueError, match=match):
        FederatedModule(module).fit(*toy)


def test_parameters_that_scores_do_not_depend_on_are_named(toy):
    model = FederatedModule(changed(idle=lambda m: nn.Linear(2, 1)), n_rounds=1)
    with pytest.warns(UserWarning, match=r"do not depend on idle.weight, idle.bias of the module"):
        model.fit(*toy)


def test_tied_parameters_are_one(toy):
    tied = changed(again=lambda m: m.item, extra=lambda m, s, u, i: s + m.again(i).sum(-1))
    model = FederatedModule(tied, n_rounds=1, random_state=0).fit(*toy)
    assert list(model.parameters_) == ["item.weight"]
    assert torch.equal(model.to_module().again.weight, model.to_module().item.weight)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"private": ()}, 'user.weight has a row per user, .* Add "user.weight" to private'),
        ({"private": ("user*", "usr")}, "pattern 'usr', but no parameter .* user.weight, item"),
        ({"private": ("*",)}, "All parameters of the module are private"),
        ({"learning_rate": {"user*": 0.1}}, "no pattern that matches item.weight"),
        ({"learning_rate": {"*": -1.0}}, "must be above 0"),
        ({"learning_rate": {"x": 1.0, "*": 1.0}}, "learning_rate has the pattern 'x'"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS could not train"),
        ({"optimizer": partial(torch.optim.AdamW)}, "AdamW moves numbers whose gradient is zero"),
        ({"optimizer": partial(torch.optim.SGD, lr=0.5)}, "optimizer sets lr"),
        ({"optimizer": torch.optim.Adafactor}, "Adafactor mixes coordinates"),
        ({"device": "cuda:77"}, "device='cuda:77' is not there"),
        ({"device": "abacus"}, "device='abacus' is not there"),
        ({"device": "meta"}, "device='meta' is not there"),
        ({"loss": nn.MSELoss}, "loss could not be computed: .*give an object"),
        ({"loss": lambda scores, targets: (scores - targets).mean()}, 'Use reduction="none"'),
        ({"loss": lambda s, t: (s - t.mean()) ** 2}, "loss depends on other examples"),
        ({"loss": lambda s, t: -t * torch.log_softmax(s, -1)}, "loss depends on other examples"),
        ({"loss": lambda s, t: s - t if s.mean() > 0 else t - s}, "depends on other examples"),
        ({"loss": lambda s, t: (s - t) ** 2 * torch.rand(s.shape)}, "draws random numbers"),
        ({"loss": lambda s, t: (s.detach() - t) ** 2}, "no gradient by the scores"),
    ],
)
def test_wrong_parameters_are_refused(toy, parameters, match):
    with pytest.raises(ValueError, match=match):
        FederatedModule(**parameters).fit(*toy)


def test_what_is_no_module_or_pattern_is_refused(toy):
    for built in (GMF(3, 5), Net(GMF(3, 5))):
        with pytest.raises(TypeError, match="object of GMF, already built; give its class, GMF"):
            FederatedModule(built).fit(*toy)
    with pytest.raises(TypeError, match="private has 3, which is not a string"):
        FederatedModule(private=("user*", 3)).fit(*toy)
    with pytest.raises(ValueError, match=r"module__width sets an argument of a Net.*module=Net"):
        FederatedModule(Everything).set_params(module__width=3)
    copy = FederatedModule(Net(GMF, n_factors=2), private="user*", n_rounds=1)
    copy.set_params(module__n_factors=5)
    assert copy.fit(*toy).item_factors_.shape[1] == 5


def root(scores, targets):
    """A loss that is NaN for targets of 5."""
    return torch.where(targets > 4, (targets - 6).sqrt(), scores**2)


def infinite(scores, targets):
    """A loss that is infinite for targets of 5."""
    return torch.where(targets > 4, scores**2 / 0, scores**2)


@pytest.mark.parametrize(
    ("loss", "value", "silos"), [(root, "nan", True), (infinite, "inf", False)]
)
def test_a_loss_that_is_not_finite_names_round_and_client(toy, loss, value, silos):
    X, y = toy
    clients = X[:, 0] % 5 if silos else X[:, 0]
    y = np.where(X[:, 0] == X[3, 0], 5.0, 1.0)
    match = f"Client {clients[3]} in round 0: the loss is {value}, although all parameters are"
    with pytest.raises(ValueError, match=match):
        FederatedModule(loss=loss, n_negatives=0).fit(X, y, clients=clients)


AT_THE_END = "while fitting its users to the model: the loss is nan"


def test_clients_that_fail_after_the_rounds_are_named(toy):
    X, y = toy
    clients = X[:, 0] % 5
    model = FederatedModule(n_negatives=0, n_rounds=1, client_fraction=0.5, random_state=0)
    run = model.set_params(warm_start=True).fit(X, y, clients=clients)._run
    updated = np.concatenate([one.client_ids[one._has_updated] for one in run.clients])
    user = X[~np.isin(clients, updated), 0][-1]
    y = np.where(X[:, 0] == user, 5.0, 1.0)
    model.set_params(loss=root, warm_start=False)
    with pytest.raises(ValueError, match=f"Client {clients[X[:, 0] == user][0]} {AT_THE_END}"):
        model.fit(X, y, clients=clients)


def test_new_clients_that_fail_are_named(toy):
    model = FederatedModule(loss=root, n_negatives=0, n_rounds=1, random_state=0)
    model.fit(toy[0], toy[1] % 4)
    new = [[777, item] for item in model.item_ids_[:3]]
    with pytest.raises(ValueError, match=f"Client 777 {AT_THE_END}"):
        model.fold_in(new, [5.0, 5.0, 5.0])
    with pytest.raises(ValueError, match=r"Client 777 diverged while .* its user_factors_ are inf"):
        model.set_params(learning_rate=1e14, optimizer="sgd").fold_in(new, [1.0, 2.0, 1.0])


def test_an_explosion_is_a_warning_that_names_the_learning_rate(toy):
    model = FederatedModule(learning_rate=300.0, n_rounds=3, client_fraction=0.3, random_state=0)
    with pytest.warns(UserWarning, match="diverged: .* learning_rate=300 .default 0.01. closer"):
        model.fit(toy[0])


def test_private_tables_of_items_must_fit_into_memory(toy, monkeypatch):
    monkeypatch.setattr("fedrecsk._utils.memory.available", lambda: 1500)
    model = FederatedModule(Everything, private=PRIVATE, client_fraction=0.1)
    with pytest.raises(ValueError, match=r"row per item \(own_item_bias\) for 12 users"):
        model.fit(*toy)
