"""Tasks in threads."""

import threading
import time

import pytest
from joblib import cpu_count, parallel_config

from fedrecsk._utils.threads import WAVE, Threads


def slow_square(x):
    # Later ones end first.
    time.sleep(0.02 / (x + 1))
    return x * x


@pytest.mark.parametrize("n_jobs", [None, 1, 2, 3, -1])
def test_results_come_in_order(n_jobs):
    with Threads(n_jobs) as threads:
        for n_tasks in (0, 1, 9):
            results = list(threads(slow_square, range(n_tasks)))
            assert results == [x * x for x in range(n_tasks)]


def test_few_tasks_are_begun_ahead():
    begun = []
    with Threads(2) as threads:
        results = threads(begun.append, range(50))
        next(results)
        assert len(begun) <= WAVE * threads.n_threads


def test_an_error_reaches_the_caller_and_ends_the_threads():
    def fail(x):
        if x == 3:
            raise ValueError("of task 3")
        return x

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="of task 3"), Threads(2) as threads:
        list(threads(fail, range(20)))
    for one in set(threading.enumerate()) - before:
        one.join(600)
        assert not one.is_alive()


def test_processes_become_threads():
    seen = []
    with parallel_config("loky", n_jobs=2), Threads(None) as threads:
        list(threads(seen.append, range(40)))
    # A process would have a list of its own.
    assert sorted(seen) == list(range(40))


def test_joblib_s_setting_counts():
    # There may be fewer processors.
    with parallel_config("threading", n_jobs=2):
        assert Threads(None).n_threads == min(2, cpu_count())
    assert Threads(None).n_threads == 1
