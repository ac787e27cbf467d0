"""One field of a block's updates, against arrays that are written out in full."""

import numpy as np
import pytest

from fedrecsk.updates import FieldSpec, SparseRows, as_integers

N_CLIENTS, N_ROWS, WIDTH = 5, 7, 3
KINDS = [
    "own rows",
    "default",
    "default alone",
    "factors",
    "default and factors",
    "held",
    "chosen",
    "integers",
]


def make(kind, seed=0):
    """Random rows of a kind; client 3 has no own rows."""
    rng = np.random.default_rng(seed)
    mask = rng.random((N_CLIENTS, N_ROWS)) < 0.5
    mask[3] = False
    if kind == "default alone":
        mask[:] = False
    indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    rows = np.nonzero(mask)[1]
    values = rng.standard_normal((len(rows), WIDTH))
    spec, others = FieldSpec((N_ROWS, WIDTH)), {}
    if kind in ("held", "chosen"):
        spec = FieldSpec((N_ROWS, WIDTH), kind)
    if kind == "integers":
        spec, values = FieldSpec((N_ROWS, WIDTH), dtype="int8"), rng.integers(-9, 9, values.shape)
    if "default" in kind:
        others["default"] = rng.standard_normal((N_ROWS, WIDTH))
    if "factors" in kind:
        others["factors"] = rng.standard_normal(N_CLIENTS)
    return SparseRows(indptr, rows, values, spec=spec, **others)


def written_out(rows):
    """The same as one whole array per client, by its definition."""
    whole = np.zeros((rows.n_clients, N_ROWS, WIDTH))
    for client in range(rows.n_clients):
        if rows.default is not None:
            whole[client] = rows.default
        span = slice(rows.indptr[client], rows.indptr[client + 1])
        whole[client, rows.rows[span]] = rows.values[span]
        if rows.factors is not None:
            whole[client] *= rows.factors[client]
    return whole


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_numbers_of_each_client_are_those_of_whole_arrays(kind):
    rows, whole = make(kind), written_out(make(kind))
    other = np.random.default_rng(1).standard_normal((N_ROWS, WIDTH))
    np.testing.assert_allclose(rows.whole(), whole)
    np.testing.assert_allclose(rows.whole(slice(2, 5)), whole[:, 2:5])
    np.testing.assert_allclose(rows.norms(), np.sqrt((whole**2).sum(axis=(1, 2))), atol=1e-7)
    np.testing.assert_allclose(rows.products(other), (whole * other).sum(axis=(1, 2)), atol=1e-12)
    assert (rows.largest() >= np.abs(whole).max(axis=(1, 2)) - 1e-12).all()
    np.testing.assert_allclose(
        rows.per_row(lambda changes: (changes**2).sum(axis=1)), (whole**2).sum(axis=(0, 2))
    )


@every_kind
def test_sums_are_those_of_whole_arrays(kind):
    rows, whole = make(kind), written_out(make(kind))
    weights = np.array([0.0, 1.0, -2.0, 0.5, 3.0])
    np.testing.assert_allclose(rows.sum(), whole.sum(axis=0), atol=1e-12)
    np.testing.assert_allclose(rows.sum(weights), np.tensordot(weights, whole, 1), atol=1e-12)
    assert rows.sum().dtype == (np.int64 if kind == "integers" else np.float64)


@every_kind
def test_other_rows_are_those_of_whole_arrays(kind):
    rows, whole = make(kind), written_out(make(kind))
    who, factors = np.array([True, False, True, True, False]), np.arange(5) - 1.5
    np.testing.assert_allclose(rows.take(who).whole(), whole[who])
    np.testing.assert_allclose(rows.scaled(-2.0).whole(), -2 * whole)
    np.testing.assert_allclose(rows.scaled(factors).whole(), factors[:, None, None] * whole)
    np.testing.assert_allclose(rows.written_out().whole(), whole)
    scaled = rows.scaled_rows(lambda numbers, changes: numbers * changes.any(axis=1))
    np.testing.assert_allclose(scaled.whole(), np.arange(N_ROWS)[:, None] * whole)
    # Nothing was changed in place.
    np.testing.assert_allclose(rows.whole(), whole)


@every_kind
def test_single_clients_are_those_of_whole_arrays(kind):
    rows, whole = make(kind), written_out(make(kind))
    updates = [rows.update(client) for client in range(N_CLIENTS)]
    for one, (numbers, change) in zip(whole, updates, strict=True):
        np.testing.assert_allclose(one[numbers], change)
    again = SparseRows.listed(updates, rows.spec)
    np.testing.assert_allclose(again.whole(), whole)
    assert again.values.dtype == updates[0].change.dtype


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_clients_with_broken_numbers_are_found(broken):
    rows = make("default")
    values = rows.values.copy()
    values[rows.indptr[1]] = broken
    assert rows.with_values(values).finite().tolist() == [True, False, True, True, True]
    default = np.full((N_ROWS, WIDTH), broken)
    everywhere = SparseRows(rows.indptr, rows.rows, rows.values, default, spec=rows.spec)
    assert not everywhere.finite().any()
    # What is left out of a sum may be broken.
    weights = np.array([1.0, 0.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(rows.with_values(values).sum(weights), rows.sum(weights))


def test_numbers_too_large_to_be_squared_are_no_error():
    rows = SparseRows.stacked(np.full((2, N_ROWS, WIDTH), 1e200), spec=FieldSpec((N_ROWS, WIDTH)))
    assert np.isinf(rows.norms()).all()


@pytest.mark.parametrize("shape", [(9,), (9, 4), (9, 2, 3)])
def test_fields_of_any_shape(shape):
    values = np.random.default_rng(0).standard_normal((3, *shape))
    rows = SparseRows.stacked(values, spec=FieldSpec(shape))
    np.testing.assert_allclose(rows.sum(), values.sum(axis=0))
    np.testing.assert_allclose(rows.update(1).change, values[1])
    np.testing.assert_allclose(rows.norms(), np.linalg.norm(values.reshape(3, -1), axis=1))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (FieldSpec((3,), dtype="int8"), [-128, 2, 127]),
        (FieldSpec((3,), dtype="uint8"), [0, 2, 255]),
        (FieldSpec((3,), dtype="bool"), [0, 1, 1]),
        (FieldSpec((3,), bits=True), [-1, 1, 1]),
    ],
)
def test_numbers_become_the_nearest_integers_that_can_be_sent(spec, expected):
    assert as_integers([-1e9, 2.4, 1e9], spec).tolist() == expected
    assert np.isnan(as_integers([np.nan, 1, 1], spec)[0])
