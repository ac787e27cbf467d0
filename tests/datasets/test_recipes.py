"""The recipes of docs/datasets.md, run on small made-up files of the formats it describes."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.io import savemat

from fedrecsk.datasets import published

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"
KUAIREC = (
    "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"
    "0,3649,13838,10867,2020-07-05 00:08:23.438,20200705,1593878903.438,1.273397\n"
    "0,9598,999999,10867,2020-07-05 00:13:41.297,20200705,1593879221.297,92.02\n"
    "7,3649,0,10867,2020-07-05 00:16:06.687,20200705,1593879366.687,0.0\n"
)


def blocks(heading):
    """Return the code blocks of a section."""
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    return re.findall(r"^```python\n(.*?)^```$", section[1], re.M | re.S)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a section's only block, or the one of that position, among the given files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRECSK_DATA", str(tmp_path))
    for name, spec in published.PUBLISHED.items():
        lenient = dataclasses.replace(spec, counts=None, n_rows_between=None)
        monkeypatch.setitem(published.PUBLISHED, name, lenient)

    def run(heading, files, position=None):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found = blocks(heading)
        if position is None:
            assert len(found) == 1
        names = {}
        exec(found[position or 0], names)
        return names

    return run


def test_all_blocks_of_the_page_are_run_here():
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.M)
    n_blocks = {heading: len(blocks(heading)) for heading in headings}
    assert n_blocks == {
        "How downloads work": 0,
        "Your own file": 1,
        "MovieLens": 2,
        "KuaiRec": 2,
        "FilmTrust": 2,
        "Last.fm": 2,
        "Amazon reviews": 1,
        "Jester": 1,
        "Douban-Movie": 1,
        "Ciao": 2,
        "Pinterest": 1,
        "Yelp": 1,
        "Generated data": 1,
    }
    assert PAGE.read_text().count("```python") == sum(n_blocks.values())


def test_the_page_has_the_counts_that_are_checked():
    text = PAGE.read_text()
    for name, spec in published.PUBLISHED.items():
        if spec.counts and name != "kuairec-small":
            users, items, rows = spec.counts
            items = "about 84,000" if items is None else f"{items:,}"
            assert f"| {users:,} | {items} | {rows:,} |" in text
    assert published.PUBLISHED["kuairec-big"].checksum.split(":")[1] in text


def test_your_own_file(run):
    names = run(
        "Your own file",
        {
            "ratings.csv": "user,item,rating\n1,2,3\n",
            "log.tsv.gz": "# shop\ncustomer_no\tsku\tbought_at\n7\t9\t2024-05-01\n",
        },
    )
    assert_array_equal(names["X"], [[7, 9, 1714521600]])
    assert names["y"] is None


def test_lastfm_2k(run):
    rows = "userID\tartistID\tweight\n2\t51\t13883\n3\t51\t1\n"
    names = run("Last.fm", {"hetrec2011-lastfm-2k/user_artists.dat": rows}, 0)
    assert_array_equal(names["X"], [[2, 51], [3, 51]])


def test_lastfm_360k(run):
    ann, bob = "a" * 40, "b" * 40
    rows = [
        f'{ann}\tmbid\tthe "beatles\t2137',
        f"{ann}\t\tnan\t1099",
        f"{bob}\tmbid\t\t7",
        "sep 20, 2008\tmbid\tu2\t31",
        f"{bob}\tmbid\tJosé, and others\t5",
    ]
    path = "lastfm-dataset-360K/usersha1-artmbid-artname-plays.tsv"
    names = run("Last.fm", {path: "\n".join(rows)}, 1)
    assert names["X"].tolist() == [[ann, 'the "beatles'], [ann, "nan"], [bob, "José, and others"]]


def test_amazon_reviews(run):
    names = run(
        "Amazon reviews",
        {
            "ratings_Beauty.csv": "A39HTATAQ9V7YF,0205616461,5.0,1369699200\n",
            "All_Beauty.csv": "0143026860,A1V6B6TNIC10QE,1.0,1424304000\n",
            "All_Beauty.csv.gz": "user_id,parent_asin,rating,timestamp\n"
            "AGKHLEW2SOWHNMFQIJGBECAF7INQ,B00YQ6X8EO,5.0,1588687728923\n",
        },
    )
    # The third block's result; each is read the same way.
    assert names["X"].tolist() == [["AGKHLEW2SOWHNMFQIJGBECAF7INQ", "B00YQ6X8EO", 1588687728923]]
    assert_array_equal(names["y"], [5])


@pytest.mark.parametrize("position", [0, 1])
def test_movielens(run, position):
    names = run(
        "MovieLens",
        {
            "ml-100k/u.data": "196\t242\t3\t881250949\n",
            "ml-1m/ratings.dat": "1::1193::5::978300760\n",
            "ml-latest-small/ratings.csv": "userId,movieId,rating,timestamp\n1,1,4.5,964982703\n",
        },
        position,
    )
    # The second block reads all three, one after another.
    X, y = ([[196, 242, 881250949]], [3]) if position == 0 else ([[1, 1, 964982703]], [4.5])
    assert_array_equal(names["X"], X)
    assert_array_equal(names["y"], y)


@pytest.mark.parametrize("position", [0, 1])
def test_kuairec(run, position):
    names = run("KuaiRec", {"KuaiRec 2.0/data/big_matrix.csv": KUAIREC}, position)
    X = np.array([[0, 3649, 1593878903438], [7, 3649, 1593879366687]])
    assert_array_equal(names["X"], X if position == 0 else X[:, :2])
    assert_array_equal(names["y"], [1.273397, 0])


@pytest.mark.parametrize("position", [0, 1])
def test_filmtrust(run, position):
    names = run("FilmTrust", {"filmtrust/ratings.txt": "1 1 2\n1 2 4\n1 3 3.5\n"}, position)
    assert_array_equal(names["X"], [[1, 1], [1, 2], [1, 3]])
    assert_array_equal(names["y"], [2, 4, 3.5])


def test_jester(run, monkeypatch):
    sheets = {}
    for n in (1, 2, 3):
        sheet = np.full((2, 101), 99.0)
        sheet[:, 0] = 1
        sheet[0, n] = -7.82
        sheet[1, 100] = 9.37
        sheets[f"jester-data-{n}.xls"] = pd.DataFrame(sheet)
    monkeypatch.setattr(pd, "read_excel", lambda name, header: sheets[name])
    names = run("Jester", {})
    assert_array_equal(names["X"], [[0, 1], [1, 100], [2, 2], [3, 100], [4, 3], [5, 100]])
    assert_array_equal(names["y"], [-7.82, 9.37] * 3)


@pytest.mark.parametrize("sep", [" ", "\t"])
def test_douban_movie(run, sep):
    rows = [("1", "1000", "5"), ("2", "17", "1")]
    names = run("Douban-Movie", {"douban/ratings.txt": "".join(sep.join(r) + "\n" for r in rows)})
    assert_array_equal(names["X"], [[1, 1000], [2, 17]])
    assert_array_equal(names["y"], [5, 1])


@pytest.mark.parametrize("position", [0, 1])
def test_ciao(run, tmp_path, position):
    rows = [(1, 2, 3, 4, 5, 1300000000), (7375, 99746, 28, 1, 0, 1300000001)]
    (tmp_path / "ciao_with_rating_timestamp").mkdir()
    savemat(
        tmp_path / "ciao_with_rating_timestamp" / "rating_with_timestamp.mat",
        {"rating": np.array(rows, dtype=np.uint32)},
    )
    text = "".join("  " + "  ".join(map(str, row)) + "\n" for row in rows)
    names = run(
        "Ciao", {"ciao_with_rating_timestamp_txt/rating_with_timestamp.txt": text}, position
    )
    assert names["X"].dtype == np.int64
    assert_array_equal(names["X"], [[1, 2, 1300000000], [7375, 99746, 1300000001]])
    assert names["y"].dtype == np.float64
    assert_array_equal(names["y"], [4, 1])


@pytest.mark.parametrize("end", ["", "\t0", "\t1.0\t0"])
def test_pinterest(run, end):
    names = run(
        "Pinterest",
        {
            "pinterest-20.train.rating": f"0\t0{end}\n0\t1{end}\n1\t0{end}\n",
            "pinterest-20.test.rating": f"0\t5{end}\n1\t1{end}\n",
        },
    )
    assert_array_equal(names["X"], [[0, 0], [0, 1], [1, 0], [0, 5], [1, 1]])


def test_yelp(run):
    reviews = [
        {"review_id": "r", "user_id": "mh_-eMZ6K5", "business_id": "XQfwVwDr-v", "stars": 3.0}
        | {"useful": 0, "text": 'Good, "quiet";\nnear', "date": "2018-07-07 22:09:11"},
        {"review_id": "s", "user_id": "OyoGAe7OKp", "business_id": "7ATYjTIgM3", "stars": 5.0}
        | {"useful": 1, "text": "", "date": "2012-01-03 15:28:18"},
    ]
    text = "".join(json.dumps(review) + "\n" for review in reviews)
    names = run("Yelp", {"yelp_academic_dataset_review.json": text})
    assert names["X"].tolist() == [
        ["mh_-eMZ6K5", "XQfwVwDr-v", 1531001351],
        ["OyoGAe7OKp", "7ATYjTIgM3", 1325604498],
    ]
    assert_array_equal(names["y"], [3, 5])
