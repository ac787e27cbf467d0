"""Which tests are `full`: left out of `python -m pytest`, and run by `-m "full or not full"`.

The fast lane has what methods share, where it is; every estimator's golden predictions and short
contract; and the tests of a few methods, which stand for the others; of many cases of one function,
some. Other tests are marked where they are: `@pytest.mark.full`, or `@pytest.mark.sampled` for one
case in STEP, as of comparisons with naive references in all settings.
"""

from sklearn.base import BaseEstimator

# A test over more estimators than this is of what they share, so that representatives suffice.
FEW = 9
# But these are the short form, are of each class's own text, or compare with golden numbers.
ON_EVERY_ESTIMATOR = (
    "tests/test_golden.py",
    "tests/test_signatures.py",
    "tests/test_parameters.py",
    "tests/test_contract.py::test_every_estimator_in_short",
    "tests/test_contract.py::test_every_federated_method_in_short",
    "tests/federated/test_loss_curves.py",
    # Its settings cover all pairs only together.
    "tests/life/",
)
# Each of these files is of one method or one family of methods: fast ones, and the others.
OF_METHODS = ("tests/centralized/", "tests/federated/", "tests/neural/")
FAST_METHODS = (
    "tests/centralized/test_bias_only.py",
    "tests/centralized/test_ease.py",
    "tests/centralized/test_mf.py",
    "tests/federated/test_fedeb.py",
    "tests/federated/test_loss_curves.py",
    "tests/federated/test_rfrec.py",
    "tests/federated/test_updating.py",
    "tests/federated/test_wmf.py",
)
REAL_DATA = {"ml100k", "ml1m"}
# Other processes, compiling everything once more, and the examples in docstrings.
SLOW = ("tests/deployment/", "tests/test_kernels.py", "fedrecsk/")
FAST_DEPLOYMENT = "tests/deployment/test_fit.py", "tests/deployment/test_search.py"
STEP = 7
# Of a function with more cases than MANY, the fast lane has one in three.
MANY, ONE_IN = 12, 3


def full(items):
    """Yield the items that are left out of the fast lane."""
    functions = {}
    for item in items:
        functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    for name, cases in functions.items():
        of_another_method = name.startswith(OF_METHODS) and not name.startswith(FAST_METHODS)
        slow = name.startswith(SLOW) and not name.startswith(FAST_DEPLOYMENT)
        slow = slow or REAL_DATA & set(getattr(cases[0], "fixturenames", ()))
        kept = set() if of_another_method or slow else set(_representative(name, cases))
        yield from (case for case in cases if case not in kept)


def _representative(name, cases):
    """Return the cases of one test function that are fast."""
    # Its import takes long, and must wait for tests/conftest.py.
    from tests.listed import REPRESENTATIVES

    if name.startswith(ON_EVERY_ESTIMATOR):
        # Names of golden predictions are "RFRec" or "RFRec, setting".
        of_settings = [case for case in cases if ", " in case.name]
        return [case for case in cases if case not in of_settings] + of_settings[::STEP]
    of_each = [_estimators(case) for case in cases]
    if len(set().union(*of_each)) > FEW:
        cases = [
            case
            for case, estimators in zip(cases, of_each, strict=True)
            if estimators & REPRESENTATIVES
        ]
    sampled = "naive_reference" in name or any(case.get_closest_marker("sampled") for case in cases)
    step = STEP if sampled else ONE_IN if len(cases) > MANY else 1
    return cases[::step]


def _estimators(case):
    """Return the names of the estimators that the case has as parameters."""
    from tests.listed import THINGS

    names = set()
    for value in case.callspec.params.values() if hasattr(case, "callspec") else ():
        if isinstance(value, str):
            name = value
        else:
            name = (value if isinstance(value, type) else type(value)).__name__
        if isinstance(THINGS.get(name), type) and issubclass(THINGS[name], BaseEstimator):
            names.add(name)
    return names
