"""Download, check and keep a data set, or read a copy: shared by all fetchers."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from fedrecsk.datasets._bunch import check_pandas, make_bunch, make_X, make_y
from fedrecsk.datasets._catalogue import PUBLISHED, Published
from fedrecsk.datasets._delimited import TextSource
from fedrecsk.datasets._download import download
from fedrecsk.datasets._home import create, resolve_data_home
from fedrecsk.datasets._load import read_ratings


def fetch(
    name: str,
    caller: str,
    *,
    data_home: str | os.PathLike[str] | None,
    download_if_missing: bool,
    as_frame: bool,
    return_X_y: bool,
    n_retries: int,
    delay: float,
    timeout: float,
) -> Bunch | tuple[Any, Any]:
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
        path = _download(spec, home, n_retries, delay, timeout)

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


def _download(spec: Published, home: Path, n_retries: int, delay: float, timeout: float) -> Path:
    """Download the archive into `home` and return its path."""
    create(home)
    with _own_folder(home) as folder:
        fetched = folder / spec.archive
        try:
            sha256 = download(
                spec.url,
                fetched,
                timeout=timeout,
                n_retries=n_retries,
                delay=delay,
                max_bytes=spec.max_bytes,
            )
        except OSError as error:
            raise OSError(
                f"{spec.title} could not be downloaded ({error}). " + _what_to_do(spec, home)
            ) from error
        _check_archive(spec, fetched, f"The download of {spec.url}")
        if not (spec.checksum or "").startswith("sha256:"):
            # No checksum is published, so later downloads must equal the first one.
            pinned = fetched.with_name(spec.pin)
            pinned.write_text(f"{sha256}  {spec.archive}\n")
            pinned.replace(home / spec.pin)
        return fetched.replace(home / spec.archive)


@contextmanager
def _own_folder(home: Path) -> Iterator[Path]:
    """A folder in `home` for unchecked files: all files in `home` itself are complete."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".download-", dir=home)
    except OSError as error:
        raise OSError(
            f"data_home {home} is not writable ({error.strerror}). Pass data_home=..., or set the "
            "environment variable FEDRECSK_DATA, to a folder where you may write."
        ) from error
    with folder as name:
        yield Path(name)


def _check_archive(spec: Published, path: Path, what: str) -> None:
    for checksum, whose in _checksums(spec, path):
        name, expected = checksum.split(":")
        # Publishers still give MD5 sums: good against damage, which is their purpose.
        algorithm = partial(hashlib.new, name, usedforsecurity=False)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
        if found != expected:
            raise ValueError(
                f"{what} has the {name.upper()} checksum {found} instead of "
                f"{expected}{whose}: it is {_guess(path)}. Delete it if it is yours, and fetch it "
                "again."
            )
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{what} is not a zip archive but {_guess(path)}. Delete it if it is yours, and fetch "
            "it again."
        )


def _checksums(spec: Published, path: Path) -> Iterator[tuple[str, str]]:
    """The checksums that the archive must have, each with a note on its source."""
    if spec.checksum is not None:
        yield spec.checksum, ""
    pin = path.with_name(spec.pin)
    if pin.is_file():
        words = pin.read_text().split()
        if words:
            yield f"sha256:{words[0]}", f" (recorded in {pin} at the first download)"


def _guess(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(100).lstrip().lower()
    is_page = start.startswith((b"<!doctype", b"<html", b"<?xml"))
    return "a web page, perhaps of a proxy or a login" if is_page else "damaged or another file"


def _read(spec: Published, path: Path) -> dict[str, np.ndarray]:
    if path.name == spec.archive:
        _check_archive(spec, path, str(path))
        with zipfile.ZipFile(path) as archive:
            if spec.member not in archive.namelist():
                raise ValueError(f"{path} has no file {spec.member}: it is another archive.")
            _check_size(spec, path, archive.getinfo(spec.member).file_size)
            # Not unpacked first: the largest member has more than a gigabyte.
            member = TextSource(f"{path}/{spec.member}", lambda: archive.open(spec.member))
            return _read_original(spec, member)
    source = TextSource(str(path), lambda: path.open("rb"))
    if path.name == Path(spec.unpacked).name:
        return _read_original(spec, source)
    return read_ratings(source).fields


def _check_size(spec: Published, path: Path, size: int) -> None:
    if size > spec.max_unpacked:
        raise ValueError(
            f"{path} unpacks to {size:,} bytes, but {spec.title} has less than "
            f"{spec.max_unpacked:,}: it is another file, or made to fill the disk. Delete it."
        )


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
    if spec.counts is not None and not spec.has_counts(counts):
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
