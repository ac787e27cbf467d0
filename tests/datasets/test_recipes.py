"""The recipes of docs/datasets.md, run on small made-up files of the formats it describes.

But for those that call fetchers, of which test_fetch.py reads the files.
"""

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
    """Run the block of a position in a section, among the given files."""
    monkeypatch.chdir(tmp_path)

    def run(heading, files, position=0):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        names = {}
        exec(blocks(heading)[position], names)
        return names

    return run


def test_the_page_has_the_counts_that_are_checked():
    text = PAGE.read_text()
    for name, spec in published.PUBLISHED.items():
        if spec.counts and name != "kuairec-small":
            users, items, rows = spec.counts
            items = "about 84,000" if items is None else f"{items:,}"
            assert f"| {users:,} | {items} | {rows:,} |" in text
    assert published.PUBLISHED["kuairec-big"].checksum.split(":")[1] in text


ANN, BOB = "a" * 40, "b" * 40
PLAYS = f"""{ANN}\tmbid\tthe "beatles\t2137
{ANN}\t\tnan\t1099
{BOB}\tmbid\t\t7
sep 20, 2008\tmbid\tu2\t31
{BOB}\tmbid\tJosé, and others\t5"""
MOVIELENS = {
    "ml-100k/u.data": "196\t242\t3\t881250949\n",
    "ml-1m/ratings.dat": "1::1193::5::978300760\n",
    "ml-latest-small/ratings.csv": "userId,movieId,rating,timestamp\n1,1,4.5,964982703\n",
}
AMAZON_ROW = ["AGKHLEW2SOWHNMFQIJGBECAF7INQ", "B00YQ6X8EO"]
AMAZON = {
    "ratings_Beauty.csv": "A39HTATAQ9V7YF,0205616461,5.0,1369699200\n",
    "All_Beauty.csv": "0143026860,A1V6B6TNIC10QE,1.0,1424304000\n",
    "All_Beauty.csv.gz": "user_id,parent_asin,rating,timestamp\n"
    f"{','.join(AMAZON_ROW)},5.0,1588687728923\n",
}
OWN = {
    "ratings.csv": "user,item,rating\n1,2,3\n",
    "log.tsv.gz": "# shop\ncustomer_no\tsku\tbought_at\n7\t9\t2024-05-01\n",
}
REVIEWS = [
    {"review_id": "r", "user_id": "mh_-eMZ6K5", "business_id": "XQfwVwDr-v", "stars": 3.0}
    | {"useful": 0, "text": 'Good, "quiet";\nnear', "date": "2018-07-07 22:09:11"},
    {"review_id": "s", "user_id": "OyoGAe7OKp", "business_id": "7ATYjTIgM3", "stars": 5.0}
    | {"useful": 1, "text": "", "date": "2012-01-03 15:28:18"},
]
YELP = {"yelp_academic_dataset_review.json": "\n".join(map(json.dumps, REVIEWS)) + "\n"}
BUSINESSES = [
    ["mh_-eMZ6K5", "XQfwVwDr-v", 1531001351],
    ["OyoGAe7OKp", "7ATYjTIgM3", 1325604498],
]
FILMTRUST = {"filmtrust/ratings.txt": "1 1 2\n1 2 4\n1 3 3.5\n"}
VIDEOS = [[0, 3649], [7, 3649]]


def pinterest(end):
    train, test = ["0\t0", "0\t1", "1\t0"], ["0\t5", "1\t1"]
    return {
        f"pinterest-20.{name}.rating": "".join(f"{row}{end}\n" for row in rows)
        for name, rows in (("train", train), ("test", test))
    }


PINS = [[0, 0], [0, 1], [1, 0], [0, 5], [1, 1]]
# Where a block reads several files, the last one's rows are left.
RECIPES = [
    ("Your own file", 0, OWN, [[7, 9, 1714521600]], None),
    (
        "Last.fm",
        1,
        {"lastfm-dataset-360K/usersha1-artmbid-artname-plays.tsv": PLAYS},
        [[ANN, 'the "beatles'], [ANN, "nan"], [BOB, "José, and others"]],
        None,
    ),
    ("Amazon reviews", 0, AMAZON, [[*AMAZON_ROW, 1588687728923]], [5]),
    ("MovieLens", 1, MOVIELENS, [[1, 1, 964982703]], [4.5]),
    ("KuaiRec", 1, {"KuaiRec 2.0/data/big_matrix.csv": KUAIREC}, VIDEOS, [1.273397, 0]),
    ("FilmTrust", 1, FILMTRUST, [[1, 1], [1, 2], [1, 3]], [2, 4, 3.5]),
    *(
        ("Douban-Movie", 0, {"douban/ratings.txt": text}, [[1, 1000], [2, 17]], [5, 1])
        for text in ("1 1000 5\n2 17 1\n", "1\t1000\t5\n2\t17\t1\n")
    ),
    *(("Pinterest", 0, pinterest(end), PINS, None) for end in ("", "\t0", "\t1.0\t0")),
    ("Yelp", 0, YELP, BUSINESSES, [3, 5]),
]


@pytest.mark.parametrize(("heading", "position", "files", "X", "y"), RECIPES)
def test_a_recipe_reads_its_files(heading, position, files, X, y, run):
    names = run(heading, files, position)
    assert names["X"].tolist() == X
    if y is not None:
        assert_array_equal(names["y"], y)


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
