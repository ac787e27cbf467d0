import bz2
import csv
import gzip
import io
import lzma
import os
import pickle
import tarfile
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedrecsk.datasets import load_ratings, readers

ROWS = "user,item,rating\n1,2,3\n4,5,4.5\n"


def gzipped(content):
    """The same bytes at any time, which name a test."""
    return gzip.compress(content, mtime=0)


def zipped(*names, text=ROWS):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, text)
    return content.getvalue()


def tarred(name):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(ROWS)
        archive.addfile(member, io.BytesIO(ROWS.encode()))
    return content.getvalue()


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
    assert bunch.filename == str(path)
    assert all(part in bunch.DESCR for part in (str(path), "user from ", "rating from "))


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


def test_header_decides_the_order_and_quotation_marks_may_be_ordinary(write):
    path = write('when,rating,title,movieId,user\nnoon,5,"Heat, the film",31,7\n')
    with pytest.warns(UserWarning, match="columns 'when', 'title' are not read"):
        X, y = load_ratings(path, return_X_y=True)
    assert_array_equal(X, [[7, 31]])
    assert_array_equal(y, [5])
    X = load_ratings(write('"ann\tthe "heat\t5\nbob\t"up" 2\t4\n'), quoted=False).data
    assert X.tolist() == [['"ann', 'the "heat'], ["bob", '"up" 2']]


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


def test_columns_by_position_and_a_header_that_is_told(write):
    path = write("4.5,7,31\n3,7,2\n")
    columns = {"user": 1, "item": 2, "rating": 0}
    X, y = load_ratings(path, columns=columns, return_X_y=True)
    assert_array_equal(X, [[7, 31], [7, 2]])
    assert_array_equal(y, [4.5, 3])
    names = {"user": "7", "item": "31", "rating": "4.5"}
    assert_array_equal(load_ratings(path, header=True, columns=names).data, [[7, 2]])
    assert load_ratings(write("a,b,5\nc,d,4\n"), header=False).data.tolist() == [
        ["a", "b"],
        ["c", "d"],
    ]
    twice = write("user,item,user,rating\n1,2,3,4\n")
    assert_array_equal(load_ratings(twice, columns={"user": 2}).data, [[3, 2]])


@pytest.mark.parametrize("content", ["user,item,timestamp\n1,2,3\n4,5,6\n", "1\t2\n4\t5\n"])
def test_no_rating_column_is_implicit_feedback(write, content):
    X, y = load_ratings(write(content), return_X_y=True)
    assert_array_equal(X[:, :2], [[1, 2], [4, 5]])
    assert y is None


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "-20", "0"], [1, -20, 0]),
        (["999999999999999999", "1", "2"], [999999999999999999, 1, 2]),
        *(
            (texts, texts)
            for texts in [
                ["7", "007", "8"],
                ["1.0", "2", "3"],
                ["-0", "0", "1"],
                ["+1", "2", "3"],
                ["1_000", "2", "3"],
                ["1", "1e3", "2"],
                ["nan", "NA", "1"],
                ["True", "False", "True"],
                ["12345678901234567890", "2", "3"],
            ]
        ),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 16_000])
def test_id_types(write, monkeypatch, texts, expected, chunk):
    # A column's type must not depend on where the chunks end.
    monkeypatch.setattr(readers, "_CHUNK", chunk)
    path = write("".join(f"{text},5,1\n" for text in texts))
    X = load_ratings(path, header=False, return_X_y=True)[0]
    assert rows_of(X[:, 0]) == expected
    assert [type(value) for value in X[:, 0].tolist()] == [type(value) for value in expected]
    assert rows_of(X[:, 1]) == [5, 5, 5]


def test_as_frame(write):
    path = write("user,item,rating\nann,2,3\nbob,3,4\n")
    bunch = load_ratings(path, as_frame=True)
    assert isinstance(bunch.data, pd.DataFrame)
    assert list(bunch.data.columns) == bunch.feature_names == ["user", "item"]
    assert bunch.data["item"].dtype == np.int64
    assert bunch.target.name == "rating"
    assert list(bunch.frame.columns) == ["user", "item", "rating"]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"user": "nobody"}, ValueError, "no column 'nobody' for the user.*'uid'"),
        ({"user": 7}, ValueError, "no column 7 for the user.*0 to 2"),
        ({"user": 1.5}, ValueError, "no column 1.5 for the user"),
        ({"user": True}, ValueError, "no column True for the user"),
        ({"client": 0}, ValueError, "unknown role 'client'"),
        ({"user": 0, "item": 0}, ValueError, "two roles"),
        ({"user": None}, ValueError, "no column found for the user"),
    ],
)
def test_bad_columns(write, columns, error, message):
    with pytest.raises(error, match=message):
        load_ratings(write("uid,iid,rating\n1,2,3\n"), columns=columns)
    with pytest.raises(ValueError, match=r"no header.*position"):
        load_ratings(write("1,2,3\n"), columns={"user": "uid"}, header=False)


def test_what_is_no_file_is_named(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, message in (
        (tmp_path / "nothing.csv", r"nothing\.csv does not exist"),
        (pipe, "is a folder, a pipe or a device"),
        ("https://example.com/ratings.csv", "is an address.*urlretrieve"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            load_ratings(path)


def test_bad_parameters_are_refused_before_the_file_is_opened():
    for bad in ({"sep": ""}, {"header": "maybe"}, {"columns": ["u"]}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            load_ratings("no such file", **bad)


ids = st.one_of(
    st.integers(-(10**17), 10**17),
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8),
)


@settings(max_examples=40)
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
    assert_allclose(y, [rating for *_, rating in rows], rtol=1e-15)
    for column in (0, 1):
        written = [row[column] for row in rows]
        if all(isinstance(value, int) for value in written):
            assert rows_of(X[:, column]) == written
        # Numbers in text may be read as numbers, but never may two ids become one.
        same_written = [str(a) == str(b) for a in written for b in written]
        same_read = [a == b for a in X[:, column] for b in X[:, column]]
        assert same_read == same_written


# ------------------------------------------------------------------- files that people have


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"\xef\xbb\xbf" + ROWS.encode(), {}),
        (ROWS.replace("\n", "\r\n"), {}),
        (ROWS[:-1], {}),
        ("\n" + ROWS.replace("\n", "\n\n") + "  \n", {}),
        (ROWS.replace(",", " , "), {}),
        ('"user","item","rating"\n"1","2","3"\n4,5,"4.5"\n', {}),
        (gzipped(ROWS.encode()), {}),
        (ROWS.encode("utf-16"), {}),
        (b"\xfe\xff" + ROWS.encode("utf-16-be"), {}),
        (ROWS.encode("utf-16-le"), {"encoding": "utf-16-le"}),
        (bz2.compress(ROWS.encode()), {}),
        (lzma.compress(ROWS.encode()), {}),
        (zipped("ratings.csv"), {}),
        (zipped("folder/", "folder/r.csv", "__MACOSX/._r.csv"), {}),
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


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, r"ratings\.txt is empty"),
        ("user,item,rating\n", {}, "no rows after"),
        ("1,2,3\n\n1,2\n", {}, "line 3: the rating is missing.*delete the line"),
        ("1,2,3\n\n1,2,3,4\n", {}, "Expected 3 fields in line 3, saw 4.*separator ','.*Correct"),
        ("1,2,3\n1,2,1_000\n", {}, "line 2: the rating '1_000'"),
        (
            "user,item,rating\n1,2,3\n1,2,good\n",
            {},
            "line 3: the rating 'good' is not a fini",
        ),
        ("1,2,3\n1,2,nan\n", {}, "line 2: the rating 'nan'"),
        ("1,2,3\n,2,3\n", {}, "line 2: the user is missing"),
        ("1,2,3,4\n1,2,3, \n", {}, "line 2: the timestamp is missing"),
        ("buyer,movie,rating\n1,2,3\n", {}, r"no column found for the user.*buyer.*columns="),
        ("12345\n678\n", {}, "no separator found in its first line '12345'"),
        ('1,2,3\n1,"2,3\n4,5,6\n', {}, "quoted=False"),
        (ROWS.encode("utf-16-le"), {}, "NUL.*encoding='utf-16-le'"),
        (ROWS.replace("user", "usér").encode("latin-1"), {}, "not utf-8 text.*'latin-1'"),
        ((ROWS * 30_000 + "1,é,3").encode("latin-1"), {}, "not utf-8 text.*'latin-1'"),
        (ROWS, {"encoding": "utf-9"}, "encoding='utf-9' is not an encoding.*'latin-1'"),
        (b"PAR1\x15\x90" + bytes(99), {}, "not text.*pandas.read_parquet"),
        (gzipped(pickle.dumps({"user": [1]})), {}, "not text.*pandas.read_pickle"),
        (b"\x28\xb5\x2f\xfd" + bytes(99), {}, "binary file or an archive"),
        (zipped("a.csv", "b.csv"), {}, r"2 files \(a.csv, b.csv.*unpack"),
        (zipped(), {}, "binary file|archive"),
        # Deflate64, as Windows' Explorer compresses large files.
        (zipped("a.csv").replace(b"\x14\0\0\0\x08\0", b"\x14\0\0\0\x09\0"), {}, "Unpack it"),
        (gzipped(b"1,2,3\n" * 99)[:-12], {}, "damaged"),
        (gzipped(os.urandom(2**18).hex().encode().replace(b"a", b"\n"))[:-12], {}, "."),
        (lzma.compress(ROWS.encode() * 99)[:-9], {}, "damaged"),
        (tarred("ratings.csv"), {}, "archive .unpack it"),
        ("1,2,3\n" * 9 + "1" * 2**22, {}, "line 10: the item is missing"),
        ("1,2,3\n" * 9 + "1," + "2" * 2**18 + ",3\n1,2,x\n", {}, "line 11: the rating 'x'"),
        ('{"user": 1, "item": 2}\n', {}, "JSON.*read_json"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", {}, "git lfs pull"),
        ("/annex/objects/SHA256E-s12--4d7a.csv\n", {}, "git annex get"),
        ("<!DOCTYPE html>\n<p>Not found</p>\n", {}, "web page"),
        ("# made up\n" + ROWS, {}, "comment='#'"),
        ("% bip weighted\n1 2\n3 4\n", {}, "comment='%'"),
        ("user,item,user,rating\n1,2,3,4\n", {}, "2 columns 'user'.*by position.*columns="),
        ("user;item;rating\n1;2;3,5\n", {}, "decimal comma"),
        ("user,year,rating\n1,2,3\n", {}, "no column found for the item.*columns={'item': ...}"),
        (",".join("1" * 40) + "\n", {}, "40 column.*no header.*matrix of users by items"),
        ("user," + ",".join(f"film{i}" for i in range(40)), {}, "and 31 more.*matrix"),
        (ROWS, {"sep": ";"}, "sep=';' is not in its first line 'user,item,rating'.*sep=','"),
    ],
)
def test_named_with_a_cure(write, content, options, message):
    path = write(content)
    with pytest.raises(ValueError, match=message) as error:
        load_ratings(path, **options)
    assert str(path) in str(error.value) or next(iter(options)) in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("texts", "seconds"),
    [
        (["2024-05-01", "1970-01-01"], [1714521600, 0]),
        (["2024-05-01T10:00:00Z", "2024-05-01 12:00+02:00"], [1714557600, 1714557600]),
        (["2024-05-01 10:00:00 UTC"], [1714557600]),
        (["1969-12-31T23:59:59"], [-1]),
        (["2024-05-01T10:00:00.25", "2024-05-01"], [1714557600.25, 1714521600.0]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 16_000])
def test_iso_dates(write, monkeypatch, chunk, texts, seconds):
    monkeypatch.setattr(readers, "_CHUNK", chunk)
    X = load_ratings(write("user,item,date\n" + "".join(f"1,2,{text}\n" for text in texts))).data
    assert X[:, 2].tolist() == seconds
    assert {type(one) for one in X[:, 2].tolist()} == {type(seconds[0])}


@pytest.mark.parametrize("text", ["05/01/2024", "soon", "2024-02-30"])
def test_other_dates_stay_text(write, monkeypatch, text):
    with pytest.warns(UserWarning, match=f"'{text}' is not an ISO date.*to_datetime"):
        X = load_ratings(write(f"user,item,date\n1,2,2024-05-01\n1,2,{text}\n")).data
    assert X[1, 2] == text
    monkeypatch.setattr(readers, "_CHUNK", 1)
    with pytest.warns(UserWarning, match="'7' is not an ISO date"):
        assert load_ratings(write(f"user,item,date\n1,2,7\n1,2,{text}\n")).data[0, 2] == "7"


def test_lines_are_counted_with_blank_ones_and_comments(write, monkeypatch):
    monkeypatch.setattr(readers, "_CHUNK", 1)
    path = write("#\nuser,item,rating\n\n1,2,3\n#\n\n1,2,x\n")
    with pytest.raises(ValueError, match="line 7: the rating 'x'"):
        load_ratings(path, comment="#")
    with pytest.raises(ValueError, match="in line 7, saw 4"):
        load_ratings(write(path.read_text().replace("x", "3,4")), comment="#")


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


def test_a_lone_quotation_mark_swallows_no_line(write):
    rows = ["ann,1,a,3", 'bob,2,"Heroes,4', "cy,3,b,5", "{},4,c,2", "eve,5,d,1"]
    for other, last in (('dan,4,"Heroes,2', 5), ('dan,4,size 12",2', 5), ("dan,4,c,2", 6)):
        rows[3] = other
        path = write("\n".join(["user,id,item,rating", *rows]))
        for item in ("id", "item"):  # the column with the marks is read or not
            options = {"columns": {"user": "user", "item": item, "rating": "rating"}}
            with pytest.raises(ValueError, match=r"line 3.*quoted=False") as error:
                load_ratings(path, **options)
            assert item == "item" or f"all up to line {last}" in str(error.value)
            X, y = load_ratings(path, **options, quoted=False, return_X_y=True)
            assert X[:, 0].tolist() == ["ann", "bob", "cy", "dan", "eve"]
            assert y.tolist() == [3, 4, 5, 2, 1]


def test_quoted_text_may_have_line_breaks(write):
    path = write(
        'user,item,text,rating\n1,2,"Bought 3,\n\nliked ""2"", one, though,\nbroke.\n",5\n'
        '3,"4","7, 8\n",1\n'
    )
    columns, text = {"user": "user"}, path.read_text()
    X, y = load_ratings(path, columns=columns, return_X_y=True)
    assert X.tolist() == [[1, 2], [3, 4]]
    assert y.tolist() == [5, 1]
    for row, message in (
        ("5,6,x,good", "line 9: the rating 'good'"),
        (",6,x,4", "line 9: the user is missing"),
        ('" ",6,x,4', "line 9: the user is missing"),
        ("5,6,x,4,9", "Expected 4 fields in line 9, saw 5"),
        ('5,"a\nb",x,4', "line 9: the item 'a b' has a line break"),
        ("user,item,text,rating", "line 9: the header is repeated.*Delete this line"),
    ):
        with pytest.raises(ValueError, match=message):
            load_ratings(write(text + row + "\n9,9,y,1\n"), columns=columns)


def test_a_repeated_header_is_no_row(write):
    with pytest.raises(ValueError, match="line 4: the header is repeated"):
        load_ratings(write("user,item\nann,user\nitem,item\nuser,item\n"))


@pytest.mark.parametrize(
    "content",
    [
        '"user" "item" "rating"\n"1" 1 2 3\n"2" 4 5 4.5\n',  # R: write.table(x)
        '"user" "item" "rating"\n"7" "1" 2 3\n"5" "4" 5 4.5\n',  # write.table(x[order(...), ])
        "user\titem\trating\n1\t1\t2\t3\n2\t4\t5\t4.5\n",  # sep="\t", quote=FALSE
        '"user","item","rating"\n"1",1,2,3\n"2",4,5,4.5\n',  # sep=","
        "user;item;rating\n0;1;2;3\n1;4;5;4.5\n",  # pandas: index_label=False
        "user,item,rating\n1,2,3,\n4,5,4.5,,\n",
    ],
)
def test_a_header_with_fewer_fields_than_the_rows(write, content):
    with warnings.catch_warnings(action="error"):
        X, y = load_ratings(write(content), return_X_y=True)
    assert X.tolist() == [[1, 2], [4, 5]]
    assert y.tolist() == [3, 4.5]


def test_a_header_that_lacks_a_name(write):
    r = '"who" "what" "stars"\n"1" "ann lee" "b" 3\n"2" "bob" "c" 4\n'
    columns = {"user": "who", "item": "what", "rating": "stars"}
    assert load_ratings(write(r), columns=columns).data.tolist() == [["ann lee", "b"], ["bob", "c"]]
    with pytest.raises(ValueError, match=r"row names.*positions are ambiguous.*'who', 'what'"):
        load_ratings(write(r), columns={"user": 0, "item": 1})
    with pytest.raises(ValueError, match=r"header has 3 fields and the rows have 4.*row.names"):
        load_ratings(write("user,item,rating\n7,1,2,5\n7,4,5,4\n"))
    with pytest.raises(ValueError, match=r"line 3, saw 5.*must be doubled.*qmethod"):
        load_ratings(write(r.replace("bob", 'the \\"bob\\" b')), columns=columns)
    for wide in ("1,2,3,9,9\n4,5,4,9,9\n", "1,2,3,9\n4,5,4\n"):
        with pytest.raises(ValueError, match=r"Expected 3 fields in line 2, saw [45]"):
            load_ratings(write("user,item,rating\n" + wide))


def test_without_a_header_dates_are_no_ids(write):
    for row, column, cure in (
        ("1,2014-04-07T10:51:09.277Z,2145,0", 1, "'timestamp': 1}"),
        ("07/04/2014 10:51,1,2145,5", 0, "'timestamp': 0}"),
        ("1,2145,2014.04.07", 2, "'timestamp': 2}"),
    ):
        with pytest.raises(ValueError, match=f"no header, and column {column} has dates.*{cure}"):
            load_ratings(write(f"{row}\n" * 3))
    path = write("1,2014-04-07T10:51:09Z,2145,0\n2,2014-04-08,2146,0\n")
    X, y = load_ratings(path, columns={"user": 0, "item": 2, "timestamp": 1}, return_X_y=True)
    assert X.tolist() == [[1, 2145, 1396867869], [2, 2146, 1396915200]]
    assert y is None
    with pytest.warns(UserWarning, match=r"user ids are numbers such as 4.01E\+12.*as text"):
        load_ratings(write("user;item\n4.01E+12;1\n4.01E+12;2\n"))
    with warnings.catch_warnings(action="error"):
        load_ratings(write("customer1,product1\ncustomer1,product2\n"))
        assert load_ratings(write("1,2,3,\n4,5,4,\n")).data.tolist() == [[1, 2], [4, 5]]


@pytest.mark.parametrize(
    ("header", "proposal"),
    [
        ("t_dat,customer_id,article_id,price", "columns={'item': 'article_id'}"),
        ("sku,customer_no,qty,rating", "columns={'user': 'customer_no', 'item': 'sku'}"),
        ("a,b,c,d", "columns={'user': ..., 'item': ...}"),
        ("client,sku\nann,lamp", "columns={'user': 'client', 'item': 'sku'}"),
    ],
)
def test_columns_are_proposed_by_their_names(write, header, proposal):
    with pytest.raises(ValueError, match="Say which it is: ") as error:
        load_ratings(write(header + "\n1,2,3,4\n"))
    assert str(error.value).endswith(f"Say which it is: {proposal}.")
