"""Films and users of MovieLens, in every form that they are published in."""

import gzip
import zipfile

import pytest

from fedrecsk.datasets import _movielens_features as reading
from fedrecsk.datasets import fetch_movielens

FLAGS = "|".join("1" if genre in ("Action", "Drama") else "0" for genre in reading.GENRES)
ITEM = f"2|Café (1994)|01-Jan-1994||http://x|{FLAGS}\n1|Old|||| |{FLAGS}\n".replace("| |", "|")
USER = "7|24|M|technician|01711\n3|53|F|other|94043\n"
DAT = "2::Café (1994)::Action|Drama\n1::Old::Action|Drama\n"
CSV = (
    "movieId,title,genres\n2,Café (1994),Action|Drama\n1,Old,Action|Drama\n"
    '9,"A, B (1921)",(no genres listed)\n'
)
OWN = "item,title,year,genres\n2,Café (1994),1994,Action|Drama\n1,Old,,Action|Drama\n"

FORMS = {
    "u.item": {"u.item": ITEM.encode("latin-1"), "u.user": USER.encode()},
    "movies.dat": {
        "movies.dat": DAT.encode("latin-1"),
        "users.dat": b"7::M::24::12::01711\n3::F::53::4::94043\n",
    },
    "movies.csv": {"movies.csv": CSV.encode()},
    "items.csv": {"items.csv": OWN.encode()},
    "items.csv.gz": {
        "items.csv.gz": gzip.compress(OWN.encode()),
        "users.csv.gz": gzip.compress(b"user,age,gender,occupation,zip\n7,24,M,technician,01711\n"),
    },
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_films_and_users_in_every_form(form, zipped, tmp_path):
    ratings = tmp_path / ("ml.zip" if zipped else "ratings.csv")
    if zipped:
        with zipfile.ZipFile(ratings, "w") as archive:
            for name, content in FORMS[form].items():
                archive.writestr(f"ml/{name}", content)
    else:
        ratings.write_text("")
        for name, content in FORMS[form].items():
            (tmp_path / name).write_bytes(content)
    found = reading.read_features(ratings)
    films, features, users = found["films"], found["item_features"], found["users"]
    assert films.loc[2].tolist() == ["Café (1994)", 1994.0, "Action|Drama"]
    assert films.index[:2].tolist() == [1, 2]
    assert features.index.equals(films.index)
    assert features.loc[2, ["Action", "Drama", "from_1990", "year"]].tolist() == [1, 1, 1, 1994]
    assert features.notna().all().all()
    if form == "movies.csv":
        assert users is None
        assert features.loc[9].drop(["from_1930", "year"]).eq(0).all()
    else:
        assert users is None or users.loc[7, ["age", "gender", "zip"]].tolist() == [
            24,
            "M",
            "01711",
        ]


def test_missing_films_are_named(tmp_path):
    (tmp_path / "ratings.csv").write_text("")
    with pytest.raises(FileNotFoundError, match=r"no titles and genres beside .*features=False"):
        reading.read_features(tmp_path / "ratings.csv")
    with pytest.raises(ValueError, match="return_X_y=True returns no features"):
        fetch_movielens(features=True, return_X_y=True)


def test_the_real_films(real_data):
    data = fetch_movielens("100k", features=True, data_home=real_data)
    assert set(data.data[:, 1]) <= set(data.item_features.index)
    assert len(data.users) == 943
