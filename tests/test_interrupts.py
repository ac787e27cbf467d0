"""Ctrl-C in the middle of a fit ends it as Ctrl-C does, and leaves nothing behind."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

# Runs in a process of its own: a lost signal must not hit the tests, nor a late one.
SCRIPT = """
import os, signal, sys, threading, time, warnings
import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
import fedrecsk
from fedrecsk.base import FitReport
from fedrecsk.datasets import make_ratings

warnings.simplefilter("ignore")
X, y = make_ratings(n_users=800, n_items=400, n_ratings=60_000, random_state=0)
LONG = {"n_rounds": 10**6, "n_epochs": 10**6, "n_burn_in": 10**6}
SHORT = {"n_rounds": 2, "n_epochs": 2, "n_samples": 2, "n_burn_in": 1}


def given(model, parameters):
    known = model.get_params(deep=False)
    return model.set_params(**{n: v for n, v in parameters.items() if n in known})


def interrupt_after(seconds):
    # The clock starts when the first step does.
    step, begun = FitReport.step, threading.Event()

    def first_step(self, name):
        if not begun.is_set():
            begun.set()
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
            timer.daemon = True
            timer.start()
        return step(self, name)

    FitReport.step = first_step
    return lambda: setattr(FitReport, "step", step)


def interrupted(work, seconds):
    undo = interrupt_after(seconds)
    begin = time.monotonic()
    try:
        work()
    except KeyboardInterrupt:
        return time.monotonic() - begin
    finally:
        undo()
    raise AssertionError("not interrupted")


def arrays(model):
    return {n: v for n, v in vars(model).items() if n[-1] == "_" and isinstance(v, np.ndarray)}


def same(one, other):
    one, other = arrays(one), arrays(other)
    assert one.keys() == other.keys() and len(one) > 2
    assert all(np.array_equal(one[name], other[name]) for name in one)


def trial(name, n_jobs, delays):
    model = given(getattr(fedrecsk, name)(), {"random_state": 0, "n_jobs": n_jobs})
    given(model, SHORT)
    before = clone(model).fit(X, y)
    for seconds in delays:
        interrupted(lambda: given(model, LONG).fit(X, y), seconds)
    same(before, given(model, SHORT).fit(X, y))
    print(name, n_jobs)


def search(name):
    model = given(getattr(fedrecsk, name)(random_state=0), LONG)
    interrupted(lambda: cross_val_score(model, X, y, cv=2), 0.1)
    interrupted(lambda: GridSearchCV(model, {"n_factors": [4, 8]}, cv=2).fit(X, y), 0.1)
    print(name, "searched")
"""


def run(calls):
    """Run the calls after SCRIPT; returns what they print, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + "\n" + "\n".join(calls)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


FITS = [("RFRec", 1), ("FedMF", 2), ("SVDpp", 1), ("BayesianSVDpp", 2)]
SEARCHES = ["RFRec", "SVDpp"]


@pytest.fixture(scope="module")
def printed():
    """What one process prints in which all is interrupted, one after the other."""
    trials = [f"trial({name!r}, {n_jobs}, (0.01, 0.08))" for name, n_jobs in FITS]
    return run(trials + [f"search({name!r})" for name in SEARCHES])


def test_an_interrupt_ends_a_fit_and_leaves_nothing_behind(printed):
    assert printed[: len(FITS)] == [f"{name} {n_jobs}" for name, n_jobs in FITS]


def test_searches_do_not_swallow_it(printed):
    assert printed[len(FITS) :] == [f"{name} searched" for name in SEARCHES]
