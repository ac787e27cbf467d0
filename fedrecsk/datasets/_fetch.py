"""Downloaded, checked and kept, or read from a copy already here: written once for all."""

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from sklearn.datasets import fetch_file
from sklearn.utils import Bunch

from fedrecsk.datasets._bunch import check_pandas, make_bunch, make_X, make_y
from fedrecsk.datasets._catalogue import PUBLISHED, Published
from fedrecsk.datasets._delimited import TextSource
from fedrecsk.datasets._home import resolve_data_home
from fedrecsk.datasets._load import read_ratings


def fetch(
    name: str,
    caller: str,
    *,
    data_home: str | os.PathLike | None,
    download_if_missing: bool,
    as_frame: bool,
    return_X_y: bool,
    n_retries: int,
    delay: float,
) -> Bunch | tuple:
    """Return the data set `name` of the catalogue, for the public function `caller`."""
    if as_frame:
        check_pandas(caller)
    spec = PUBLISHED[name]
    home = resolve_data_home(data_home)
    path = next((copy for copy in spec.local_copies(home) if copy.is_file()), None)
    if path is None:
        if not download_if_missing:
            raise FileNotFoundError(
                f"{spec.title} was not found and download_if_missing is False. "
                + _what_to_do(spec, home)
            )
        path = _download(spec, home, n_retries, delay)

    fields = _read(spec, path)
    counts = _check_content(spec, path, fields)
    y = make_y(fields.pop("rating"), caller, as_frame=as_frame)
    X = make_X(fields, caller, as_frame=as_frame)
    if return_X_y:
        return X, y
    n_users, n_items, n_rows = counts
    times = "with" if "timestamp" in fields else "without"
    return make_bunch(
        X,
        y,
        list(fields),
        as_frame=as_frame,
        filename=str(path),
        DESCR=f"{spec.title}: {n_rows} {spec.what} of {n_items} {spec.items} by {n_users} users, "
        f"{times} timestamps, read from {path}.\n\n{spec.licence}",
    )


def _what_to_do(spec: Published, home: Path) -> str:
    looked = "\n".join(f"  {path}" for path in spec.local_copies(home))
    return (
        f"Looked for these files:\n{looked}\nSet data_home or the environment variable "
        f"FEDRECSK_DATA to a folder that has one of them, or download {spec.url} by hand into "
        f"{home}."
    )


def _download(spec: Published, home: Path, n_retries: int, delay: float) -> Path:
    """Download the archive into `home` and return its path."""
    home.mkdir(parents=True, exist_ok=True)
    # In a folder of its own until it is checked: what lies in `home` is whole.
    with tempfile.TemporaryDirectory(prefix=".download-", dir=home) as folder:
        try:
            fetched = fetch_file(spec.url, folder=folder, n_retries=n_retries, delay=delay)
        except OSError as error:
            raise OSError(
                f"{spec.title} could not be downloaded ({error}). " + _what_to_do(spec, home)
            ) from error
        _check_archive(spec, fetched, f"The download of {spec.url}")
        return fetched.replace(home / spec.archive)


def _check_archive(spec: Published, path: Path, what: str) -> None:
    if spec.checksum is not None:
        name, expected = spec.checksum.split(":")
        with path.open("rb") as file:
            # Publishers still give MD5 sums: good against damage, which is their purpose.
            found = hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False))
        if found.hexdigest() != expected:
            raise ValueError(
                f"{what} has the {name.upper()} checksum {found.hexdigest()} instead of "
                f"{expected}: it is damaged or another file. Delete it if it is yours, and fetch "
                "it again."
            )
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{what} is not a zip archive. Delete it if it is yours, and fetch again.")


def _read(spec: Published, path: Path) -> dict[str, np.ndarray]:
    if path.name == spec.archive:
        _check_archive(spec, path, str(path))
        with zipfile.ZipFile(path) as archive:
            if spec.member not in archive.namelist():
                raise ValueError(f"{path} has no file {spec.member}: it is another archive.")
            # Not unpacked first: the largest member has more than a gigabyte.
            member = TextSource(f"{path}/{spec.member}", lambda: archive.open(spec.member))
            return _read_original(spec, member)
    source = TextSource(str(path), lambda: path.open("rb"))
    if path.name == Path(spec.unpacked).name:
        return _read_original(spec, source)
    return read_ratings(source).fields


def _read_original(spec: Published, source: TextSource) -> dict[str, np.ndarray]:
    numbers = ("rating", "timestamp") if spec.milliseconds else ("rating",)
    fields = read_ratings(
        source, sep=spec.sep, header=spec.header, columns=spec.columns, numbers=numbers
    ).fields
    if spec.milliseconds:
        fields["timestamp"] = np.rint(1000 * fields["timestamp"]).astype(np.int64)
    return fields


def _check_content(
    spec: Published, path: Path, fields: dict[str, np.ndarray]
) -> tuple[int, int, int]:
    """Return the numbers of users, items and rows, if the data are what `spec` says."""
    wrong = f"{path} is not {spec.title}: "
    if "rating" not in fields or any(fields[role].dtype != np.int64 for role in ("user", "item")):
        raise ValueError(wrong + "it must have whole-numbered users and items, and ratings.")
    ratings = fields["rating"]
    counts = len(np.unique(fields["user"])), len(np.unique(fields["item"])), len(ratings)
    if spec.counts is not None and counts != spec.counts:
        raise ValueError(
            wrong + f"it has (users, items, {spec.what}) = {counts} instead of {spec.counts}. "
            "Replace it by the original, or read your own file with load_ratings."
        )
    if spec.n_rows_between is not None:
        low, high = spec.n_rows_between
        if not low <= len(ratings) <= high:
            raise ValueError(wrong + f"it has {len(ratings)} {spec.what}, not {low} to {high}.")
    if spec.scale is not None and not np.isin(ratings, spec.scale).all():
        raise ValueError(
            wrong + f"its ratings are not half stars from {spec.scale[0]:g} to {spec.scale[-1]:g}."
        )
    return counts
