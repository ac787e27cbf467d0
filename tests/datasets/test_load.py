import csv
import gzip
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from fedrecsk.datasets import _load, load_ratings


@pytest.fixture
def write(tmp_path):
    def write(content, name="ratings.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows_of(data):
    return data.tolist()


@pytest.mark.parametrize("sep", [",", "\t", ";", "|", "::", " "])
@pytest.mark.parametrize("header", ["user{0}item{0}rating{0}timestamp\n", ""])
def test_separator_and_header_are_recognised(write, sep, header):
    path = write(header.format(sep) + f"3{sep}9{sep}4.5{sep}880\n1{sep}9{sep}2{sep}881\n")
    bunch = load_ratings(path)
    assert bunch.data.dtype == np.int64
    assert bunch.target.dtype == np.float64
    assert_array_equal(bunch.data, [[3, 9, 880], [1, 9, 881]])
    assert_array_equal(bunch.target, [4.5, 2])
    assert bunch.feature_names == ["user", "item", "timestamp"]
    assert bunch.frame is None


def test_bunch_says_what_was_read(write):
    path = write("uid,movieId,score\n1,2,3\n")
    bunch = load_ratings(path)
    assert bunch.filename == str(path)
    for part in (str(path), "'uid'", "'movieId'", "'score'"):
        assert part in bunch.DESCR


@pytest.mark.parametrize(
    "header",
    [
        "userId,movieId,rating,timestamp",
        "User_ID,ITEM-ID,Score,ts",
        "user_id:token,item_id:token,rating:float,timestamp:float",
        '"user","asin","overall","unixReviewTime"',
    ],
)
def test_usual_header_names(write, header):
    X, y = load_ratings(write(header + "\n1,2,3,4\n"), return_X_y=True)
    assert_array_equal(X, [[1, 2, 4]])
    assert_array_equal(y, [3])


def test_header_decides_the_order_and_other_columns_are_ignored(write):
    path = write('when,rating,title,movieId,user\nnoon,5,"Heat, the film",31,7\n')
    with pytest.warns(UserWarning, match="columns 'when', 'title' are not read"):
        X, y = load_ratings(path, return_X_y=True)
    assert_array_equal(X, [[31, 7][::-1]])
    assert_array_equal(y, [5])


def test_columns_by_name_position_and_none(write):
    path = write("buyer,thing,joy,timestamp\n1,2,3,4\n")
    X, y = load_ratings(
        path, columns={"user": "buyer", "item": 1, "rating": "joy"}, return_X_y=True
    )
    assert_array_equal(X, [[1, 2, 4]])
    assert_array_equal(y, [3])
    bunch = load_ratings(
        path, columns={"user": "buyer", "item": "thing", "rating": None, "timestamp": None}
    )
    assert_array_equal(bunch.data, [[1, 2]])
    assert bunch.target is None


def test_columns_by_position_without_header(write):
    path = write("4.5,7,31\n3,7,2\n")
    X, y = load_ratings(path, columns={"user": 1, "item": 2, "rating": 0}, return_X_y=True)
    assert_array_equal(X, [[7, 31], [7, 2]])
    assert_array_equal(y, [4.5, 3])


def test_header_can_be_told(write):
    path = write("a,b,5\nc,d,4\n")
    assert len(load_ratings(path, header=False).data) == 2
    X, y = load_ratings(
        write("1,2,3\n4,5,6\n"),
        header=True,
        columns={"user": "1", "item": "2", "rating": "3"},
        return_X_y=True,
    )
    assert_array_equal(X, [[4, 5]])
    assert_array_equal(y, [6])


def test_string_ids_without_header(write):
    path = write("ann,heat,5\nbob,up,4\n")
    X, y = load_ratings(path, return_X_y=True)
    assert X.dtype == object
    assert rows_of(X) == [["ann", "heat"], ["bob", "up"]]
    assert_array_equal(y, [5, 4])


def test_no_rating_column_is_implicit_feedback(write):
    X, y = load_ratings(write("user,item,timestamp\n1,2,3\n"), return_X_y=True)
    assert_array_equal(X, [[1, 2, 3]])
    assert y is None
    X, y = load_ratings(write("1\t2\n1\t3\n"), return_X_y=True)
    assert_array_equal(X, [[1, 2], [1, 3]])
    assert y is None


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "-20", "0"], [1, -20, 0]),
        (["1.5", "2", "-3e2"], [1.5, 2.0, -300.0]),
        (["7", "007", "8"], ["7", "007", "8"]),
        (["1.5", "1.50", "2"], ["1.5", "1.50", "2"]),
        (["-0", "0", "1"], ["-0", "0", "1"]),
        (["1", "b", "3"], ["1", "b", "3"]),
        (["1_000", "2", "3"], ["1_000", "2", "3"]),
        (["-", "1", "2"], ["-", "1", "2"]),
        (["1", "1.0e", "2"], ["1", "1.0e", "2"]),
        (["nan", "inf", "1"], ["nan", "inf", "1"]),
        (["1e999", "1", "2"], ["1e999", "1", "2"]),
        (["999999999999999999", "1", "2"], [999999999999999999, 1, 2]),
        (["12345678901234567890", "12345678901234567891", "2"],) * 2,
        (["é", "日本", "x"], ["é", "日本", "x"]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 16_000])
def test_id_types(write, monkeypatch, texts, expected, chunk):
    # A column's type must not depend on where the chunks end.
    monkeypatch.setattr(_load, "_CHUNK", chunk)
    path = write("".join(f"{text},5,1\n" for text in texts))
    X = load_ratings(path, header=False, return_X_y=True)[0]
    assert rows_of(X[:, 0]) == expected
    assert [type(value) for value in X[:, 0].tolist()] == [type(value) for value in expected]
    assert rows_of(X[:, 1]) == [5, 5, 5]


def test_mixed_types_keep_each_columns_own(write):
    X = load_ratings(write("7,ann,1,1577872800\n8,bob,2,1577959200\n")).data
    assert X.dtype == object
    assert rows_of(X) == [[7, "ann", 1577872800], [8, "bob", 1577959200]]


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfuser,item,rating\n1,2,3\n",
        b"user,item,rating\r\n1,2,3\r\n",
        b"user,item,rating\n1,2,3",
        b"\nuser,item,rating\n\n1,2,3\n  \n\n",
        b"user, item, rating\n 1, 2 , 3 \n",
        b'"user","item","rating"\n"1","2","3"\n',
        gzip.compress(b"user,item,rating\n1,2,3\n"),
    ],
    ids=["bom", "crlf", "no newline", "blank lines", "blanks", "quotes", "gzip"],
)
def test_dialects(write, content):
    X, y = load_ratings(write(content), return_X_y=True)
    assert_array_equal(X, [[1, 2]])
    assert_array_equal(y, [3])


def test_encoding(write):
    path = write("user;item;rating\nJosé;1;3\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"ratings\.txt is not utf-8 text.*latin-1"):
        load_ratings(path)
    assert load_ratings(path, encoding="latin-1").data[0, 0] == "José"


def test_as_frame(write):
    pd = pytest.importorskip("pandas")
    path = write("user,item,rating\nann,2,3\nbob,3,4\n")
    bunch = load_ratings(path, as_frame=True)
    assert isinstance(bunch.data, pd.DataFrame)
    assert list(bunch.data.columns) == bunch.feature_names == ["user", "item"]
    assert bunch.data["item"].dtype == np.int64
    assert bunch.target.name == "rating"
    assert list(bunch.frame.columns) == ["user", "item", "rating"]
    X, y = load_ratings(write("1,2\n"), as_frame=True, return_X_y=True)
    assert X.shape == (1, 2)
    assert y is None


def test_missing_pandas_is_named_with_its_extra(without_pandas):
    with pytest.raises(ImportError, match=r"pandas.*fedrecsk\[plot\]"):
        load_ratings("no such file", as_frame=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"ratings\.txt is empty"),
        ("\n \n", r"ratings\.txt is empty"),
        ("user,item,rating\n", "no rows after"),
        ("1,2,3\n\n1,2\n", r"line 3: 2 fields where line 1 has 3 .*Correct"),
        ("1,2,3\n1,2,3,4\n", "line 2: 4 fields"),
        ("user,item,rating\n1,2,3\n1,2,good\n", r"line 3: the rating 'good' .*finite.*Correct"),
        ("1,2,3\n1,2,nan\n", "line 2: the rating 'nan'"),
        ("1,2,3\n1,2,-inf\n", "line 2: the rating '-inf'"),
        ("1,2,3\n\n1,2,\n", "line 3: the rating ''"),
        ("1,2,3\n,2,3\n", "line 2: the user '' is missing"),
        ("1,2,3,4\n1,2,3, \n", "line 2: the timestamp '' is missing"),
        ("buyer,movie,rating\n1,2,3\n", r"no column found for the user.*buyer.*columns="),
        ("user,rating\n1,2\n", "no column found for the item"),
        ("12345\n678\n", "no separator found in its first line '12345'"),
        ('1,2,3\n1,"2"x,3\n', r"line 2: .*quoted"),
        (gzip.compress(b"1,2,3\n" * 99)[:-12], "damaged gzip"),
    ],
)
def test_bad_files_name_the_line_and_the_cure(write, content, message):
    with pytest.raises(ValueError, match=message) as error:
        load_ratings(write(content))
    assert "ratings.txt" in str(error.value)


def test_the_line_is_right_beyond_the_first_chunk(write, monkeypatch):
    monkeypatch.setattr(_load, "_CHUNK", 3)
    with pytest.raises(ValueError, match="line 9: the rating 'x'"):
        load_ratings(write("1,2,3\n" * 8 + "1,2,x\n"))


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"user": "nobody"}, ValueError, "no column 'nobody' for the user.*'uid'"),
        ({"user": 7}, ValueError, "no column 7 for the user.*0 to 2"),
        ({"user": -1}, ValueError, "no column -1"),
        ({"user": 1.5}, TypeError, "must be a name, a position or None"),
        ({"user": True}, TypeError, "must be a name, a position or None"),
        ({"client": 0}, ValueError, "unknown role 'client'"),
        ({"user": 0, "item": 0}, ValueError, "two roles"),
        ({"user": None}, ValueError, "no column found for the user"),
    ],
)
def test_bad_columns(write, columns, error, message):
    with pytest.raises(error, match=message):
        load_ratings(write("uid,iid,rating\n1,2,3\n"), columns=columns)


def test_names_need_a_header(write):
    with pytest.raises(ValueError, match=r"no header.*position"):
        load_ratings(write("1,2,3\n"), columns={"user": "uid"}, header=False)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv does not exist"):
        load_ratings(tmp_path / "nothing.csv")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        load_ratings(tmp_path)


@pytest.mark.parametrize("bad", [{"sep": ""}, {"sep": 1}, {"header": "maybe"}, {"columns": ["u"]}])
def test_bad_parameters_are_refused_before_the_file_is_opened(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        load_ratings("no such file", **bad)


ids = st.one_of(
    st.integers(-(10**17), 10**17),
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8),
)


@given(
    st.lists(st.tuples(ids, ids, st.floats(allow_nan=False, allow_infinity=False)), min_size=1),
    st.sampled_from([",", ";", "\t"]),
)
def test_what_is_written_is_read(tmp_path_factory, rows, sep):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=sep)
    writer.writerow(["user", "item", "rating"])
    writer.writerows(rows)
    path = tmp_path_factory.mktemp("roundtrip") / "ratings.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")

    X, y = load_ratings(path, sep=sep, header=True, return_X_y=True)
    assert_array_equal(y, [rating for *_, rating in rows])
    for column in (0, 1):
        written = [row[column] for row in rows]
        if all(isinstance(value, int) for value in written):
            assert rows_of(X[:, column]) == written
        # Numbers in text may be read as numbers, but never may two ids become one.
        same_written = [str(a) == str(b) for a in written for b in written]
        same_read = [a == b for a in X[:, column] for b in X[:, column]]
        assert same_read == same_written


def test_movielens_1m_table(real_data):
    path = real_data / "ml-1m" / "ratings.csv.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    X, y = load_ratings(path, return_X_y=True)
    assert len(X) == len(y) == 1_000_209
    assert X.dtype == np.int64
    assert abs(y.mean() - 3.5816) < 1e-4
