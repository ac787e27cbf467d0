"""What MovieLens says about its films and users."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# In the order of the flags in ml-100k/u.item.
GENRES = [
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
]
NAMES_OF_USERS = {
    "u.user": ["user", "age", "gender", "occupation", "zip"],
    "users.dat": ["user", "gender", "age", "occupation", "zip"],
}
# Films before this year share a period of five years.
FIRST_PERIOD = 1930


def read_features(ratings: Path) -> dict[str, Any]:
    """Return `films`, `item_features` and `users` (None if there are none), as DataFrames.

    `ratings` is the file or archive that the ratings were read from.
    """
    films = _frame(ratings, ("u.item", "movies.dat", "movies.csv", "items.csv", "items.csv.gz"))
    if films is None:
        raise FileNotFoundError(
            f"There are no titles and genres beside the ratings in {ratings}; put the original's "
            "u.item, movies.dat or movies.csv there, or use features=False."
        )
    users = _frame(ratings, ("u.user", "users.dat", "users.csv", "users.csv.gz"))
    return {"films": films, "item_features": numbers_of(films), "users": users}


def numbers_of(films: Any) -> Any:
    """Return genres and periods of five years as 0 and 1, and the year."""
    genres = films["genres"].str.get_dummies("|").drop(columns="", errors="ignore")
    years = films["year"].fillna(films["year"].median())
    periods = pd.get_dummies((years // 5 * 5).clip(lower=FIRST_PERIOD).astype(int), prefix="from")
    return genres.join(periods.astype(np.int64)).assign(year=years)


def _frame(ratings, names):
    """Return the first of these tables that is there, with ids as its index."""
    for name in names:
        content = _content(ratings, name)
        if content is not None:
            key = "user" if name.startswith(("u.user", "users")) else "item"
            return _parsed(name, content).set_index(key).sort_index()
    return None


def _content(ratings, name):
    """Return the bytes of a file beside the ratings or in their archive, or None."""
    if zipfile.is_zipfile(ratings):
        with zipfile.ZipFile(ratings) as archive:
            found = [member for member in archive.namelist() if Path(member).name == name]
            return archive.read(found[0]) if found else None
    path = ratings.with_name(name)
    return path.read_bytes() if path.is_file() else None


def _parsed(name, content):
    options = {"encoding": "latin-1", "header": None, "engine": "python"}
    if name in NAMES_OF_USERS:
        sep = r"\|" if name == "u.user" else "::"
        names = NAMES_OF_USERS[name]
        return pd.read_csv(io.BytesIO(content), sep=sep, names=names, dtype={"zip": str}, **options)
    if name.endswith((".csv", ".gz")):
        compression = "gzip" if name.endswith(".gz") else None
        frame = pd.read_csv(io.BytesIO(content), compression=compression, dtype={"zip": str})
        frame = frame.rename(columns={"movieId": "item"})
    elif name == "movies.dat":
        names = ["item", "title", "genres"]
        frame = pd.read_csv(io.BytesIO(content), sep="::", names=names, **options)
    else:
        rows = [line.split("|") for line in content.decode("latin-1").splitlines() if line]
        flags = np.array([row[5:] for row in rows]) == "1"
        genres = ["|".join(np.array(GENRES)[own]) for own in flags]
        numbers, titles = [int(row[0]) for row in rows], [row[1] for row in rows]
        frame = pd.DataFrame({"item": numbers, "title": titles, "genres": genres})
    if "genres" in frame:
        no_genres = ["unknown", "(no genres listed)"]
        frame["genres"] = frame["genres"].fillna("").replace(no_genres, "")
        years = frame["title"].str.extract(r"\((\d{4})\)\s*$")[0].astype(float)
        frame["year"] = frame["year"].fillna(years) if "year" in frame else years
        frame = frame[["item", "title", "year", "genres"]]
    return frame
