"""Files that people have: each is read right, or named in an error that says what to do."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import warnings
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedrecsk._iso_dates import iso_seconds
from fedrecsk.datasets import _formats, load_ratings

ROWS = "user,item,rating\n1,2,3\n4,5,4.5\n"
LONG = 2**17 + 1


def zipped(*names, text=ROWS):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, text)
    return content.getvalue()


@pytest.fixture
def write(tmp_path):
    def write(content, name="ratings.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (ROWS.encode("utf-16"), {}),
        (ROWS.encode("utf-32"), {}),
        (b"\xfe\xff" + ROWS.encode("utf-16-be"), {}),
        (ROWS.encode("utf-16-le"), {"encoding": "utf-16-le"}),
        (gzip.compress(ROWS.encode("utf-16")), {}),
        (bz2.compress(ROWS.encode()), {}),
        (lzma.compress(ROWS.encode()), {}),
        (zipped("ratings.csv"), {}),
        (zipped("folder/", "folder/r.csv", "__MACOSX/._r.csv"), {}),
        ("# made up\n#\n" + ROWS, {"comment": "#"}),
        ("// made up, and more\n" + ROWS + "// end", {"comment": "//"}),
        (ROWS.replace("user", "#user"), {}),
        ("sep=,\n" + ROWS, {"comment": "sep="}),
        (ROWS.replace("\n", "\r"), {}),
        (ROWS.replace(",", "\t"), {"quoted": False}),
    ],
)
def test_read_right(write, content, options):
    X, y = load_ratings(write(content), return_X_y=True, **options)
    assert_array_equal(X, [[1, 2], [4, 5]])
    assert_array_equal(y, [3, 4.5])


def test_quotation_marks_as_ordinary_characters(write):
    path = write('ann\tthe "heat\t5\nbob\t"up" 2\t4\n')
    with pytest.raises(ValueError, match="quoted=False"):
        load_ratings(path)
    X = load_ratings(path, quoted=False).data
    assert X.tolist() == [["ann", 'the "heat'], ["bob", '"up" 2']]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (ROWS.encode("utf-16-le"), {}, "line 1: there is a NUL.*encoding='utf-16-le'"),
        (ROWS.replace("4,5", "4\0,5"), {}, "line 3: there is a NUL"),
        (ROWS + "\0" * 99, {}, "line 4: there is a NUL"),
        (ROWS.replace("user", "usér").encode("latin-1"), {}, "not utf-8 text.*'latin-1'"),
        (ROWS, {"encoding": "utf-9"}, "encoding='utf-9' is not an encoding.*'latin-1'"),
        (ROWS, {"encoding": "hex"}, "encoding='hex' is not an encoding of text"),
        (b"PAR1\x15\x04" + bytes(99), {}, "Parquet.*pandas.read_parquet"),
        (b"\x93NUMPY\x01\0", {}, "NumPy file.*numpy.load"),
        (pickle.dumps([1]), {}, "pickle"),
        (b"\x89PNG\r\n\x1a\n", {}, "picture"),
        (b"SQLite format 3\0", {}, "SQLite"),
        (b"%PDF-1.4\n", {}, "PDF"),
        (b"\x28\xb5\x2f\xfd\0", {}, "unzstd"),
        (zipped("[Content_Types].xml", "xl/workbook.xml"), {}, "Excel.*read_excel"),
        (zipped("a.csv", "b.csv"), {}, r"2 files \(a.csv, b.csv.*unpack"),
        (zipped("a.csv")[:-30], {}, "damaged zip"),
        (zipped(), {}, "zip archive of 0 files"),
        # Deflate64, as Windows' Explorer compresses large files.
        (
            zipped("a.csv").replace(b"\x14\0\0\0\x08\0", b"\x14\0\0\0\x09\0"),
            {},
            "unpack it yourself",
        ),
        (b"PK\x03\x04" + bytes(99), {}, "damaged zip"),
        (bz2.compress(ROWS.encode() * 99)[:-9], {}, "damaged bzip2"),
        (b"BZh91AY&SY" + bytes(99), {}, "damaged bzip2"),
        (lzma.compress(ROWS.encode() * 99)[:-9], {}, "damaged xz"),
        ('{"user": 1, "item": 2}\n', {}, "JSON.*read_json"),
        ("[[1, 2, 3],\n[4, 5, 6]]\n", {}, "JSON"),
        ("<!DOCTYPE html>\n<p>Not found</p>\n", {}, "web page"),
        ("# made up\n" + ROWS, {}, "comment='#'"),
        ("sep=,\n" + ROWS, {}, "comment='sep='"),
        ("% bip weighted\n1 2\n3 4\n", {}, "comment='%'"),
        (ROWS + "# the, end, really\n", {}, "line 4: the rating 'really'.*comment='#'"),
        (ROWS + f"1,2,{'3' * LONG}\n", {}, "line 4: field larger.*csv.field_size_limit"),
        (f"user,item,text\n1,2,{'x' * LONG}\n", {}, "line 2: field larger"),
        ("user,item,user,rating\n1,2,3,4\n", {}, r"2 columns 'user' \(positions 0, 2\).*columns="),
        ("a,b,b\n1,2,3\n", {"columns": {"user": "a", "item": "b"}}, "2 columns 'b'"),
        ("user;item;rating\n1;2;3,5\n", {}, "decimal comma"),
        ("user,year,rating\n1,2,3\n", {}, "no column found for the item.*{'item': 'year'}"),
        (",".join("1" * 40) + "\n", {}, "40 columns and no header.*matrix of users by items"),
        ("user," + ",".join(f"film{i}" for i in range(40)), {}, "and 31 more.*matrix"),
        (ROWS, {"sep": "\n"}, "no line break"),
        (ROWS, {"comment": ""}, "None means no comments"),
    ],
)
def test_named_with_a_cure(write, content, options, message):
    path = write(content)
    with pytest.raises(ValueError, match=message) as error:
        load_ratings(path, **options)
    assert str(path) in str(error.value) or next(iter(options)) in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, None])
def test_a_bomb_is_not_unpacked(write, monkeypatch, compress):
    monkeypatch.setattr(_formats, "_ALWAYS_ALLOWED", 2**16)
    text = "1,2,3\n" * 2**17
    content = zipped("a.csv", text=text) if compress is None else compress(text.encode())
    with pytest.raises(ValueError, match="unpacks to more than 200 times its size"):
        load_ratings(write(content))


def test_a_name_twice_is_settled_by_position(write):
    path = write("user,item,user,rating\n1,2,3,4\n")
    X = load_ratings(path, columns={"user": 2}).data
    assert_array_equal(X, [[3, 2]])


def test_an_address_is_named():
    with pytest.raises(FileNotFoundError, match=r"is an address.*urlretrieve"):
        load_ratings("https://example.com/ratings.csv")


def test_a_pipe_is_named(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileNotFoundError, match=r"pipe or device; save its content"):
        load_ratings(pipe)


@pytest.mark.parametrize(
    ("texts", "seconds"),
    [
        (["2024-05-01", "1970-01-01"], [1714521600, 0]),
        (["2024-05-01T10:00:00Z", "2024-05-01 12:00+02:00"], [1714557600, 1714557600]),
        (["2024-05-01 10:00:00 UTC"], [1714557600]),
        (["1969-12-31T23:59:59"], [-1]),
        (["2024-05-01T10:00:00.25", "2024-05-01"], [1714557600.25, 1714521600.0]),
        (["05/01/2024"], None),
        (["2024-05-01", "soon"], None),
        (["2024-02-30"], None),
        (["20240501"], None),
    ],
)
def test_iso_dates(texts, seconds):
    found = iso_seconds(texts)
    if seconds is None:
        assert found is None
    else:
        assert found.tolist() == seconds


def test_dates_in_a_file(write):
    X = load_ratings(write("user,item,date\n1,2,2024-05-01\n1,3,2024-05-02T00:00:00Z\n")).data
    assert X.dtype == np.int64
    assert X[:, 2].tolist() == [1714521600, 1714608000]
    with pytest.warns(UserWarning, match=r"'05/01/2024' is not an ISO date.*to_datetime"):
        X = load_ratings(write("user,item,date\n1,2,05/01/2024\n")).data
    assert X[0, 2] == "05/01/2024"


def test_columns_that_are_not_read_are_named(write):
    path = write("user,item,rating,price,city\n1,2,3,9,x\n")
    with pytest.warns(UserWarning, match=r"columns 'price', 'city' are not read.*columns="):
        bunch = load_ratings(path)
    assert "Not read: columns 'price', 'city'." in bunch.DESCR
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_ratings(path, columns={"user": "user"})
        load_ratings(write(",user,item,rating\n0,1,2,3\n"))  # a DataFrame's index
        load_ratings(write("user,item,rating,\n1,2,3,\n"))
    with pytest.warns(UserWarning, match="column 4 is not read"):
        load_ratings(write("1,2,3,4,5\n"))
