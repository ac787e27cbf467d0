"""The worked method of docs/add_a_method.md, and what the documentation site takes in."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrecsk import Federation
from fedrecsk.protocol.keys import Key
from tests.conftest import fits_in_blocks, make_toy
from tests.test_testing import Ridge, RidgeAlgorithm

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def make(**parameters):
    return Ridge(**{"n_factors": 3, "n_rounds": 5, "random_state": 0} | parameters)


def test_an_example_begins_with_its_question_which_titles_its_page():
    for path in EXAMPLES:
        first = path.read_text().splitlines()[0]
        assert first.startswith('"""'), path
        assert "?" in first, path


# ----------------------------------------------------------------- markup that is shown as text

CONF = f"""
import sys
sys.path.insert(0, {str(DOCS)!r})
extensions = ["myst_parser", "_pages"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
"""
RIGHT = (
    "| x |\n|---|\n\n:::{note}\nText.\n:::\n\n<!-- x --y -->\n\n0.5<!-- x --> and 1<!-- y -->.\n\n"
    "- One.\n\n  <!-- x -->\n\n  | x |\n  |---|\n\n$|x|$ is one, `|` too.\n"
)
WRONG = {
    "table.md": ("| x |\n| 1 |\n", "'| x |'"),
    "list.md": ("- One.\n\n  | x |\n  | 1 |\n", "'| x |'"),
    "fence.rst": ("::: note\n", "'::: note'"),
    "comment.rst": ("<!-- note -->\n", "'<!"),
}


@pytest.mark.full
def test_markup_that_a_page_shows_as_text_is_warned_of(tmp_path):
    pytest.importorskip("myst_parser", reason="needs fedrecsk[docs]")
    (tmp_path / "conf.py").write_text(CONF)
    (tmp_path / "index.rst").write_text("Home\n====\n\n.. toctree::\n   :glob:\n\n   *\n")
    for name, (text, _) in {"right.md": (RIGHT, ""), **WRONG}.items():
        (tmp_path / name).write_text(f"Title\n=====\n\n{text}")
    command = [sys.executable, "-m", "sphinx", "-q", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    warnings = done.stderr.splitlines()
    assert len(warnings) == len(WRONG), done.stderr
    for name, (_, shown) in WRONG.items():
        (warning,) = (one for one in warnings if name in one)
        assert f"the page shows the markup {shown}" in warning


# -------------------------------------------------------------------------- the prose checker

LONG = "The server adds up " + " ".join(["uploads"] * 40)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("An RMSE of .82, and `--clip .2` of [0.1, .3](a.md).\n", ["leading zero", "leading zero"]),
        ("| RMSE |\n|---|\n| 80 % |\n", ["without a space"]),
        ("One line.\n\nWhoever asks.\n", ["name the role"]),
        ("Measured at commit 6d52fb6c.\n", ["leave commits"]),
        (f"{LONG}.\n", ["44 words"]),
        (f"It ends. {LONG[:200]}. {LONG[:200]}.\n", []),
        (f"```python\n# {LONG} .5\n```\n\n| {LONG} |\n|---|\n", []),
    ],
)
def test_prose_is_checked(text, advice):
    file = ROOT / ".ci" / "check_prose.py"
    spec = importlib.util.spec_from_file_location("check_prose", file)
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    found = [problem for _, problem in checker.problems("docs/page.md", text)]
    assert len(found) == len(advice)
    assert all(part in problem for part, problem in zip(advice, found, strict=True))


# ------------------------------------------------------------------------ the worked method


def naive(X, y, weight, clients, model, lost):
    """The method's lines with explicit loops; `lost` holds (round, client) pairs."""
    users, u = np.unique(X[:, 0], return_inverse=True)
    items, i = np.unique(X[:, 1], return_inverse=True)
    seed = int(np.random.RandomState(model.random_state).randint(2**31 - 1))
    Q = 0.1 * Key(seed).generator("items").standard_normal((len(items), 1 + model.n_factors))
    P = np.zeros((len(users), 1 + model.n_factors))
    level = np.average(y, weights=weight)
    client_names = np.unique(clients)
    per_item = np.bincount(i, weight) / len(client_names)

    def solve(user):
        mine = u == user
        Z = np.hstack([np.ones((mine.sum(), 1)), Q[i[mine], 1:]])
        W = np.diag(weight[mine])
        target = y[mine] - level - Q[i[mine], 0]
        ridge = model.reg * weight[mine].sum() * np.eye(Z.shape[1])
        P[user] = np.linalg.inv(Z.T @ W @ Z + ridge) @ Z.T @ W @ target
        return W @ (Z @ P[user] - target)

    for round in range(model.n_rounds):
        total, n_delivered = np.zeros_like(Q), 0
        for code, client in enumerate(client_names):
            delivered = (round, code) not in lost
            n_delivered += delivered
            for user in np.unique(u[clients == client]):
                errors = solve(user)
                if delivered:
                    for item, error in zip(i[u == user], errors, strict=True):
                        total[item] += error * np.append(1, P[user, 1:])
        if n_delivered:
            step = total / n_delivered / per_item[:, None] + model.reg * Q
            Q = Q - model.learning_rate * step
    for user in range(len(users)):
        solve(user)
    return level + P[u, 0] + Q[i, 0] + (P[u, 1:] * Q[i, 1:]).sum(axis=1)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("n_clients", [12, 3], ids=["users", "silos"])
def test_the_worked_method_equals_a_loop_over_clients(n_clients, dropout, monkeypatch):
    X, y = make_toy()
    weight = np.random.default_rng(2).uniform(0.5, 2, len(y))
    clients = np.unique(X[:, 0], return_inverse=True)[1] % n_clients
    lost = set()
    spy = RidgeAlgorithm.update

    def update(self, block, clients, message, turn, key):
        lost.update((key.round, int(c)) for c in block.clients[~turn.delivers])
        return spy(self, block, clients, message, turn, key)

    monkeypatch.setattr(RidgeAlgorithm, "update", update)
    model = make(federation=Federation(dropout=dropout))
    for fitted in fits_in_blocks(model, X, y, clients=clients, sample_weight=weight):
        assert bool(lost) == (dropout > 0)
        expected = naive(X, y, weight, clients, model, lost)
        assert fitted.predict(X) == pytest.approx(expected, abs=1e-10)


def test_the_worked_method_sends_what_the_page_says():
    X, y = make_toy()
    ledger = make().fit(X, y).communication_
    matrix = 4 * 9 * (1 + 3)
    assert ledger.bytes_up == 12 * (4 * (2 + 9) + 5 * matrix)
    catalogue = 8 * 9
    assert ledger.bytes_down == 12 * (catalogue + 6 * (4 + matrix))
