import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from fedrecsk.datasets import _load, _plain, load_ratings

FIELDS = st.one_of(
    st.integers(-3, 10**18).map(str),
    st.sampled_from(["007", "-0", "+7", "1.50", "1.5", ".5", "5.", "", "ann", "bob b", " 7", "é"]),
    st.text('0123456789.-e"ab \t', max_size=6),
)
RATINGS = st.one_of(
    st.decimals(-10, 10, places=2, allow_nan=False).map(str),
    st.sampled_from(["5", "4.5", "-0", "-0.0", "nan", "1e3", "0.1234567890123456", ""]),
)
USUAL = st.tuples(st.integers(0, 99).map(str), st.integers(0, 99).map(str), st.just("4.5"))
ROWS = st.lists(st.one_of(USUAL, USUAL, USUAL, st.tuples(FIELDS, FIELDS, RATINGS)), min_size=1)


def read(path, **options):
    try:
        return load_ratings(path, **options)
    except ValueError as error:
        return str(error)


def assert_same(first, second):
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
        return
    assert first.data.dtype == second.data.dtype
    assert_array_equal(first.data, second.data)
    assert (first.target is None) == (second.target is None)
    if first.target is not None:
        assert_array_equal(first.target.view(np.int64), second.target.view(np.int64))
    assert first.DESCR == second.DESCR


@settings(deadline=None, max_examples=200)
@given(
    ROWS,
    st.sampled_from([",", "\t", "::", ";", "|", " "]),
    st.sampled_from(["\n", "\r\n", "\n\n", "\r"]),
    st.sampled_from(["", "user{0}item{0}rating\n", '"user"{0}"item"{0}"rating"\n', "\n"]),
    st.booleans(),
    st.sampled_from(["utf-8", "latin-1", "utf-8-sig"]),
    st.sampled_from([7, 50, 2**22]),
)
def test_the_fast_way_reads_what_the_careful_one_does(
    tmp_path_factory, rows, sep, end, header, ends, encoding, block
):
    path = tmp_path_factory.getbasetemp() / "ratings.txt"
    text = header.format(sep) + end.join(map(sep.join, rows)) + (end if ends else "")
    path.write_bytes(text.encode(encoding))
    options = {"sep": sep, "encoding": encoding}
    careful = read(path, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plain, "_LARGE", 4)
        patch.setattr(_plain, "_BLOCK", block)
        assert_same(read(path, **options), careful)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_large_file_is_read_fast(tmp_path, monkeypatch, compress):
    lines = "".join(f"{k % 10},item {k % 7},{k % 5}.5,{k}\n" for k in range(1000))
    path = tmp_path / "ratings.csv"
    path.write_bytes(compress(b"userId,itemId,rating,timestamp\n" + lines.encode()))
    monkeypatch.setattr(_plain, "_LARGE", 1000)
    monkeypatch.setattr(_plain, "_BLOCK", 1000)
    # With no way to read it with care.
    monkeypatch.setattr(_load, "_convert", None)
    X, y = load_ratings(path, return_X_y=True)
    assert X[-1].tolist() == [9, "item 5", 999]
    assert_array_equal(y, np.arange(1000) % 5 + 0.5)


def test_a_damaged_gzip_file_is_named(tmp_path, monkeypatch):
    path = tmp_path / "ratings.csv"
    lines = "".join(f"{k},{k * k % 997},4\n" for k in range(5000))
    path.write_bytes(gzip.compress(lines.encode())[:-500])
    monkeypatch.setattr(_plain, "_LARGE", 1000)
    monkeypatch.setattr(_plain, "_BLOCK", 1000)
    with pytest.raises(ValueError, match="damaged gzip file"):
        load_ratings(path)
