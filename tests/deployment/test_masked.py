"""Deployed fits with masked uploads, whose messages are bytes, without an engine."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from fedrecsk import FedEASE, Federation, FedMF, LocALS, PrivFedEB, RFRec
from fedrecsk.deployment.exchanges import NotEnough
from fedrecsk.deployment.keys import read_identity, write_identities
from fedrecsk.deployment.records import (
    masking_arrays,
    masking_of,
    pack,
    place_head,
    session_of,
    unpack,
)
from fedrecsk.privacy import CentralDP, MaskingFailed, SecAggPlus
from fedrecsk.privacy._secagg_protocol import MaskingClient, MaskingServer
from fedrecsk.protocol.secure_accounts import aligned_size
from fedrecsk.simulation import both_sides
from tests.conftest import make_toy
from tests.deployment.in_process import (
    Killed,
    coordinator,
    counts,
    kill,
    lose,
    make_nodes,
    prepared,
    simulated_key,
    spoil,
    step_of,
)

pytest.importorskip("cryptography", reason="needs fedrecsk[privacy]")

X, Y = make_toy()
SILOS = X[:, 0] % 5
SMALL = {"n_factors": 3, "n_rounds": 3, "random_state": 0}
FIVE = range(5)


def masked(estimator, **setting):
    scheme = SecAggPlus(max_dropout=0.4, max_colluding=0.0)
    federation = Federation(secure_aggregation=scheme, **setting)
    return prepared(clone(estimator).set_params(federation=federation), X, Y, SILOS)


def nodes_of(estimator, folder, identities=None, rows=slice(None), key=None):
    return make_nodes(
        estimator,
        X[rows],
        Y[rows],
        SILOS[rows],
        folder,
        identities=identities or write_identities(FIVE, folder / "identities"),
        private=key or simulated_key(estimator),
    )


def a_fit(folder, **settings):
    """A coordinator of masked FedMF, and its nodes."""
    estimator = masked(FedMF(client_fraction=1.0, **SMALL))
    nodes = nodes_of(estimator, folder)
    return coordinator(estimator, nodes, folder, **settings), nodes


@pytest.mark.parametrize(
    "estimator",
    [
        FedMF(client_fraction=1.0, **SMALL),
        LocALS(upload="all", reg_user=1.0, aggregation="clients", **SMALL),
        RFRec(**SMALL),
        FedEASE(upload="all", random_state=0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_deployed_fit_is_the_simulated_one(estimator, tmp_path):
    estimator = masked(estimator)
    simulated = clone(estimator).fit(X, Y, clients=SILOS)
    server = coordinator(estimator, nodes_of(estimator, tmp_path), tmp_path).run()
    name = "item_factors_" if hasattr(simulated, "item_factors_") else "item_weights_"
    np.testing.assert_allclose(getattr(server, name), getattr(simulated, name), rtol=0, atol=1e-6)
    assert server.privacy_.server_sees == "exact sums"
    assert server.privacy_.trust == simulated.privacy_.trust


def test_validation_losses_are_masked_too(tmp_path):
    losses = []
    for number, federation in enumerate([Federation(), None]):
        estimator = masked(RFRec(early_stopping=True, validation_fraction=0.3, **SMALL))
        if federation is not None:
            estimator.set_params(federation=federation)
        folder = tmp_path / str(number)
        one = coordinator(estimator, nodes_of(estimator, folder), folder)
        losses.append([row["validation_loss"] for row in one.run().history_])
    assert one.survivors == {("validate", 3): [0, 1, 2, 3, 4]}
    np.testing.assert_allclose(*losses, rtol=0, atol=0.01)


@pytest.mark.parametrize(
    "estimator", [RFRec(**SMALL), PrivFedEB(n_factors=3, n_rounds=3, random_state=0)]
)
def test_noise_of_the_clients_goes_through(estimator, tmp_path, monkeypatch):
    """Through the sums of the set-up, which PrivFedEB has, and of the rounds."""
    noise = CentralDP(clip=1.0, noise_multiplier=1e-4, epsilon=None, noise="clients")
    estimator = masked(estimator, central_dp=noise)
    # Where clients add noise, the simulator draws all that is private from the server's secret.
    monkeypatch.setattr(both_sides, "secret_of", lambda *given: simulated_key(estimator))
    simulated = clone(estimator).fit(X, Y, clients=SILOS)
    server = coordinator(estimator, nodes_of(estimator, tmp_path), tmp_path).run()
    np.testing.assert_allclose(server.item_factors_, simulated.item_factors_, rtol=0, atol=0.01)
    assert server.privacy_.epsilon == simulated.privacy_.epsilon
    assert server.privacy_.trust == simulated.privacy_.trust
    assert server.privacy_.server_sees == "noisy sums"
    assert 0 < server.privacy_.epsilon < np.inf


@pytest.mark.parametrize("noise", ["server", "clients"])
@pytest.mark.parametrize(
    "estimator",
    [
        LocALS(upload="all", reg_user=1.0, **SMALL),
        PrivFedEB(n_factors=3, n_rounds=3, random_state=0),
    ],
)
def test_silos_add_up_their_users(estimator, noise, tmp_path, monkeypatch):
    mechanism = CentralDP(clip=1.0, noise_multiplier=1e-6, noise=noise, unit="user")
    # Nodes number users silo by silo, for draws.
    silos = np.searchsorted(np.quantile(X[:, 0], [0.2, 0.4, 0.6, 0.8]), X[:, 0])
    estimator = masked(estimator, central_dp=mechanism)
    monkeypatch.setattr(both_sides, "secret_of", lambda *given: simulated_key(estimator))
    simulated = clone(estimator).fit(X, Y, clients=silos)
    key = simulated_key(estimator)
    identities = write_identities(FIVE, tmp_path / "identities")
    nodes = make_nodes(estimator, X, Y, silos, tmp_path, identities=identities, private=key)
    server = coordinator(estimator, nodes, tmp_path).run()
    np.testing.assert_allclose(server.item_factors_, simulated.item_factors_, rtol=0, atol=0.01)
    assert server.privacy_.epsilon == simulated.privacy_.epsilon
    assert server.privacy_.trust == simulated.privacy_.trust
    assert server.privacy_.neighbours == "one user more or less"
    assert server.communication_.bytes_up == simulated.communication_.bytes_up


def test_cohorts_of_any_size_are_summed(tmp_path):
    """Server and clients make the same plan for each, and one of fewer than three is lost."""
    silos = X[:, 0] % 9
    estimator = prepared(FedMF(**SMALL | {"n_rounds": 12}, client_fraction=0.5), X, Y, silos)
    federation = Federation(secure_aggregation=SecAggPlus(), sampling="poisson")
    estimator.set_params(federation=federation)
    with pytest.warns(ConvergenceWarning, match="In 3 of 12 rounds too few clients were left"):
        simulated = clone(estimator).fit(X, Y, clients=silos)
    identities = write_identities(range(9), tmp_path / "identities", fewest=3)
    key = simulated_key(estimator)
    nodes = make_nodes(estimator, X, Y, silos, tmp_path, identities=identities, private=key)
    server = coordinator(estimator, nodes, tmp_path).run()
    sizes = counts(server)
    assert sizes == [size if size > 2 else 0 for size in counts(simulated)]
    assert len(set(sizes)) > 4


@pytest.mark.parametrize(
    ("scheme", "noise_multiplier"),
    [({}, 100.0), ({"max_abs": 1.0}, 3.0), ({"fraction_bits": 11}, 2.0)],
)
def test_sums_of_noisy_uploads_do_not_wrap(scheme, noise_multiplier, tmp_path, monkeypatch):
    sent, found, run, total = {}, {}, MaskingClient.mask, MaskingServer.total

    def mask(client, values, shares):
        sent[client.session] = sent.get(client.session, 0) + values
        return run(client, values, shares)

    def unmasked(server, answers):
        found[server.session] = total(server, answers)
        return found[server.session]

    monkeypatch.setattr(MaskingClient, "mask", mask)
    monkeypatch.setattr(MaskingServer, "total", unmasked)
    noise = CentralDP(clip=1.0, noise_multiplier=noise_multiplier, epsilon=None, noise="clients")
    federation = Federation(secure_aggregation=SecAggPlus(**scheme), central_dp=noise)
    estimator = prepared(RFRec(**SMALL, federation=federation), X, Y, SILOS)
    coordinator(estimator, nodes_of(estimator, tmp_path), tmp_path).run()
    assert len(found) == 3
    assert {s: one.tolist() for s, one in found.items()} == {s: v.tolist() for s, v in sent.items()}


every_request = pytest.mark.parametrize(
    "request_kind", ["round keys", "round shares", "round", "round confirm", "round unmask"]
)


def garble(reply):
    """The reply is for a client that has no code."""
    return pack({}, {"masks/x": np.zeros(5, np.uint8)})


def garble_long(reply):
    """The reply is for a client whose code Python does not read."""
    return pack({}, {f"masks/{'9' * 5000}": np.zeros(5, np.uint8)})


@every_request
@pytest.mark.parametrize("change", [lose, garble, garble_long])
def test_an_answer_that_is_lost_or_malformed_does_not_stop_a_round(change, request_kind, tmp_path):
    one, _ = a_fit(tmp_path, quorum=0.8)
    spoil(one, change, kind=request_kind, node=1003, number=1)
    server = one.run()
    assert server.n_rounds_ == 3
    is_in_the_sum = request_kind in ("round confirm", "round unmask")
    assert counts(server) == [5, 4 + is_in_the_sum, 5]


@pytest.mark.parametrize(
    "change",
    [lambda keys: keys[:120], lambda keys: keys[5:], lambda keys: keys ^ 1, lambda keys: keys[:0]],
)
def test_keys_that_their_owner_has_not_signed_are_lost(change, tmp_path):
    def spoiled(reply):
        head, arrays = unpack(reply)
        return pack(head, {"masks/": change(arrays["masks/"])})

    one, _ = a_fit(tmp_path, quorum=0.8)
    spoil(one, spoiled, kind="round keys", node=1003, number=1)
    assert counts(one.run()) == [5, 4, 5]


def test_below_the_threshold_a_round_is_lost_and_the_fit_goes_on(tmp_path, caplog):
    (one, _), answered = a_fit(tmp_path, quorum=0.4), []

    def lose_three(reply):
        answered.append(reply)
        return reply if len(answered) > 3 else None

    spoil(one, lose_three, number=1)
    assert counts(one.run()) == [5, 0, 5]
    assert "The sum of round 1 is lost, and the model stays as it is" in caplog.text


def test_the_server_sees_no_upload(tmp_path):
    """What crosses in two fits to other ratings of one client has no number in common."""
    one, _ = a_fit(tmp_path)
    sent = []

    def tamper(request, reply):
        if request.kind == "round":
            head, arrays = unpack(reply)
            assert head == {}
            sent.append(arrays["masks/"].tobytes())
        return reply

    one.exchanges.carrier.tamper = tamper
    one.run()
    n_values = 9 * 3 + 9
    n_bits = one.server.uplink.masks.plan.n_bits
    assert {len(content) for content in sent} == {-(-n_values * n_bits // 8)}
    assert len(set(sent)) == len(sent) == 15
    bits = np.unpackbits(np.frombuffer(b"".join(sent), np.uint8))
    # As many ones as zeros, within five standard deviations.
    assert abs(bits.mean() - 0.5) < 2.5 / np.sqrt(len(bits))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The server of a fit that nothing has stopped."""
    return a_fit(tmp_path_factory.mktemp("whole"))[0].run()


@every_request
def test_a_killed_server_goes_on_with_the_same_sum(request_kind, tmp_path, whole):
    estimator = masked(FedMF(client_fraction=1.0, **SMALL))
    nodes = nodes_of(estimator, tmp_path)
    first = coordinator(estimator, nodes, tmp_path)
    kill(first, request_kind, 1, 1002)
    with pytest.raises(Killed):
        first.run()
    again = coordinator(estimator, nodes, tmp_path)
    assert again.is_resumed
    np.testing.assert_allclose(again.run().item_factors_, whole.item_factors_, atol=1e-4)


def test_an_update_is_masked_too(tmp_path):
    """And equal to the simulated one."""
    old = np.arange(len(X)) % 4 > 0
    estimator = masked(FedMF(client_fraction=1.0, warm_start=True, **SMALL | {"n_rounds": 10}))
    simulated = clone(estimator).fit(X[old], Y[old], clients=SILOS[old])
    keys = [simulated._run.server.key]
    simulated.partial_fit(X[~old], Y[~old], clients=SILOS[~old])
    keys.append(simulated._run.server.key)
    identities = write_identities(FIVE, tmp_path / "identities")
    for rows, key in zip((old, old | ~old), keys, strict=True):
        nodes = nodes_of(estimator, tmp_path, identities, rows, key)
        update = key is not keys[0]
        server = coordinator(estimator, nodes, tmp_path, key=key, update=update).run()
    assert server.n_rounds_ == 2
    np.testing.assert_allclose(server.item_factors_, simulated.item_factors_, rtol=0, atol=1e-5)


def test_a_node_does_not_unmask_two_sums_of_one_round(tmp_path):
    one, nodes = a_fit(tmp_path)
    answers = {}

    def tamper(request, reply):
        if request.node == 1000 and request.kind.startswith("round"):
            again = nodes[1000].answer(request.content)
            assert again == reply
            head, arrays = unpack(request.content)
            if request.kind == "round confirm":
                # Another list gets the confirmation of the first.
                other = nodes[1000].answer(pack(head, arrays | {"masks/": arrays["masks/"] ^ 1}))
                assert other == reply
            answers[request.kind] = reply
        return reply

    one.exchanges.carrier.tamper = tamper
    one.run()
    assert len(answers) == 5


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("round", "place", "another place"),
        ("setup", "place", "another place"),
        ("setup", "number", "setup 1, but the fit has 1 set-up"),
    ],
)
def test_a_server_gets_no_second_sum_of_the_same_uploads(kind, change, why, tmp_path):
    """Else the first sum, less a second one without a client, would be this client's upload."""
    estimator = masked(LocALS(upload="all", reg_user=1.0, aggregation="clients", **SMALL))
    nodes = nodes_of(estimator, tmp_path)
    one = coordinator(estimator, nodes, tmp_path)
    # Requests of the first sum, and what nodes say that refuse those of the second.
    requests, refused = {}, []

    def ask(stage, messages):
        """Ask the nodes as for the first sum; the vector of client 0 does not arrive."""
        name, answers = kind if stage == "vectors" else f"{kind} {stage}", {}
        for code, message in messages.items():
            member = one.members.by_code[code]
            head, arrays = unpack(requests[name, member.node])
            if change == "place":
                head["place"] = place_head(member.place) | {"n_clients": 6}
            else:
                head["number"] = 1
            others = {label: a for label, a in arrays.items() if not label.startswith("masks/")}
            content = pack(head, others | masking_arrays(message))
            reply, sent = unpack(nodes[member.node].answer(content))
            if "refused" in reply:
                refused.append(reply["refused"])
            elif (stage, code) != ("vectors", 0):
                answers[code] = masking_of(sent)
        return answers

    def attack(request, reply):
        if request.kind.startswith(kind):
            requests[request.kind, request.node] = request.content
        if len(requests) == 5 * 5:
            server, number = one.server, int(change == "number")
            plan, ring = server.uplink.masks.ring_of(np.arange(5), server.key)
            size = aligned_size(server._specs((kind, number)))
            session = session_of(one.progress.fit, kind, number, "")
            with pytest.raises(MaskingFailed, match="Only 0 clients sent keys"):
                MaskingServer(plan, session, ring, size).run(ask)
            raise Killed
        return reply

    one.exchanges.carrier.tamper = attack
    with pytest.raises(Killed):
        one.run()
    assert len(refused) == 5
    assert all(why in text for text in refused)


@pytest.mark.parametrize(
    ("kind", "number", "why"),
    [
        ("withdraw", 0, "has sent nothing to an earlier fit that it could withdraw"),
        ("withdraw", 1, "asks for withdraw 1"),
        ("validate", 4, "asks for validate 4, but the fit has 4 validations"),
    ],
)
def test_a_node_answers_no_exchange_that_a_masked_fit_does_not_have(kind, number, why, tmp_path):
    """A client's upload to an earlier fit is in the sum of that fit, and in no other."""
    estimator = masked(FedEASE(upload="all", random_state=0, warm_start=True))
    if kind == "validate":
        estimator = masked(RFRec(early_stopping=True, validation_fraction=0.3, **SMALL))
    identities, said = write_identities(FIVE, tmp_path / "identities"), []
    nodes = nodes_of(estimator, tmp_path, identities)
    last = coordinator(estimator, nodes, tmp_path)
    last.run()
    one = coordinator(estimator, nodes, tmp_path)
    # An honest server does not go on from a masked sum.
    greeting, _ = unpack(one.exchanges.greeting)
    one.exchanges.greeting = pack(greeting | {"after": last.progress.fit}, {})

    def ask_for_more(request, reply):
        if request.kind == "round":
            head, arrays = unpack(request.content)
            asked = pack(head | {"kind": kind, "number": number}, arrays)
            said.append(unpack(nodes[request.node].answer(asked))[0]["refused"])
        return reply

    one.exchanges.carrier.tamper = ask_for_more
    one.run()
    assert said
    assert all(why in text for text in said)


def test_a_late_client_enters_at_the_next_keys(tmp_path):
    estimator = masked(FedMF(client_fraction=1.0, **SMALL))
    identities = write_identities(range(4), tmp_path / "identities")
    # Its identity is made later, by the same operator.
    identities |= write_identities([4], tmp_path / "identities")
    nodes = nodes_of(estimator, tmp_path, identities=identities)
    late = nodes.pop(1004)
    one = coordinator(estimator, nodes, tmp_path)

    def watch(request):
        if step_of(request) == ("round", 0):
            one.exchanges.carrier.connected[1004] = late

    one.exchanges.carrier.watch = watch
    server = one.run()
    assert counts(server) == [4, 5, 5]
    assert (tmp_path / "node 4" / "model.joblib").exists()


def test_nodes_of_another_operator_are_not_trusted(tmp_path, caplog):
    estimator = masked(FedMF(client_fraction=1.0, **SMALL))
    identities = write_identities(range(4), tmp_path / "identities")
    identities |= write_identities([4], tmp_path / "others")
    nodes = nodes_of(estimator, tmp_path, identities=identities)
    with pytest.raises(NotEnough):
        coordinator(estimator, nodes, tmp_path).run()
    assert "has no certificate of this node's operator" in caplog.text


def test_identities_are_read_by_their_owner_only(tmp_path):
    (path,) = write_identities(["a/b"], tmp_path).values()
    assert path.name == "client-a%2Fb.key"
    assert read_identity(path).certificate.endswith(b"a/b")
    with pytest.raises(FileExistsError):
        write_identities(["a/b"], tmp_path)
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        read_identity(path)
    with pytest.raises(ValueError, match="needs an identity"):
        read_identity(None)
    with pytest.raises(FileNotFoundError, match="write_identities"):
        read_identity(tmp_path / "missing")
    wrong = tmp_path / "wrong.key"
    wrong.write_text("{}")
    wrong.chmod(0o600)
    with pytest.raises(ValueError, match="does not hold the identity"):
        read_identity(wrong)
