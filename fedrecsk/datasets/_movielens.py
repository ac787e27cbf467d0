"""MovieLens: downloaded, checked and kept, or read from a copy already here."""

import hashlib
import io
import os
import tempfile
import zipfile
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

import numpy as np
from sklearn.datasets import fetch_file
from sklearn.utils import Bunch
from sklearn.utils._param_validation import Interval, StrOptions, validate_params

from fedrecsk.datasets._bunch import check_pandas, make_bunch, make_X, make_y
from fedrecsk.datasets._delimited import TextSource
from fedrecsk.datasets._home import resolve_data_home
from fedrecsk.datasets._load import read_ratings

_BASE_URL = "https://files.grouplens.org/datasets/movielens/"

_LICENCE = (
    "Licence: GroupLens allows research use and forbids redistribution without permission; see "
    "the README in the archive. Acknowledge it by citing F. M. Harper and J. A. Konstan, 'The "
    "MovieLens Datasets: History and Context', ACM Transactions on Interactive Intelligent "
    "Systems 5 (4), 2015, https://doi.org/10.1145/2827872."
)


@dataclass(frozen=True)
class _Variant:
    """One published data set and what is known about it beforehand."""

    title: str
    folder: str
    member: str
    sep: str
    header: bool
    md5: str | None = None
    counts: tuple[int, int, int] | None = None  # users, items, ratings

    @property
    def archive(self) -> str:
        return f"{self.folder}.zip"

    def local_copies(self, home: Path) -> list[Path]:
        """List where a copy may lie; the originals first, for they have timestamps."""
        folder = home / self.folder
        copies = [folder / self.member, home / self.archive]
        copies += [folder / "ratings.csv", folder / "ratings.csv.gz"]
        return list(dict.fromkeys(copies))


_VARIANTS = {
    "100k": _Variant(
        "MovieLens 100K",
        "ml-100k",
        "u.data",
        sep="\t",
        header=False,
        md5="0e33842e24a9c977be4e0107933c0723",
        counts=(943, 1682, 100_000),
    ),
    "1m": _Variant(
        "MovieLens 1M",
        "ml-1m",
        "ratings.dat",
        sep="::",
        header=False,
        md5="c4d9eecfca2ab87c1945afe126590906",
        counts=(6040, 3706, 1_000_209),
    ),
    # GroupLens replaces this one from time to time, so neither a checksum nor counts hold.
    "latest-small": _Variant(
        "MovieLens Latest Small", "ml-latest-small", "ratings.csv", sep=",", header=True
    ),
}

# "100,000 ratings", says its page; the releases so far had 100,004 to 100,836.
_LATEST_SMALL_ROWS = (50_000, 200_000)


@validate_params(
    {
        "variant": [StrOptions(set(_VARIANTS))],
        "data_home": [str, os.PathLike, None],
        "download_if_missing": ["boolean"],
        "as_frame": ["boolean"],
        "return_X_y": ["boolean"],
        "n_retries": [Interval(Integral, 0, None, closed="left")],
        "delay": [Interval(Real, 0, None, closed="left")],
    },
    prefer_skip_nested_validation=True,
)
def fetch_movielens(
    variant: str = "100k",
    *,
    data_home: str | os.PathLike | None = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: int = 3,
    delay: float = 1.0,
) -> Bunch | tuple:
    """Load a MovieLens data set, downloading it if it is not here yet.

    =================   ==============  ============  ================
    variant             "100k"          "1m"          "latest-small"
    users               943             6,040         about 600
    items               1,682           3,706         about 10,000
    ratings             100,000         1,000,209     about 100,000
    stars               1, 2, ... 5     1, 2, ... 5   0.5, 1, ... 5
    =================   ==============  ============  ================

    The archive is kept in `data_home` and downloaded only if `data_home` has
    no copy. A copy is, in this order: the unpacked original
    (`ml-100k/u.data`, `ml-1m/ratings.dat`, `ml-latest-small/ratings.csv`), the
    archive (`ml-100k.zip`...), or a table `ratings.csv` or `ratings.csv.gz` in
    the folder of that name. Nothing is written when a copy is found.

    Parameters
    ----------
    variant : {"100k", "1m", "latest-small"}, default="100k"
        Which data set.

    data_home : str or path-like, default=None
        The folder with the data. With None it is the environment variable
        `FEDRECSK_DATA`, and without that `~/fedrecsk_data`.

    download_if_missing : bool, default=True
        Whether to download what `data_home` lacks; otherwise that is an error.

    as_frame : bool, default=False
        Whether to return pandas objects. Needs pandas.

    return_X_y : bool, default=False
        Whether to return `(data, target)` instead of a Bunch.

    n_retries : int, default=3
        How often to try again after a failed download.

    delay : float, default=1.0
        Seconds to wait before each further try.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        Dictionary-like object, with the attributes:

        data : ndarray of shape (n_samples, 3) and dtype int64, or DataFrame
            The columns user, item and timestamp (seconds since 1970, UTC), in
            the file's order. A copy without timestamps, as some that circulate
            of "1m", gives two columns.
        target : ndarray of shape (n_samples,) and dtype float64, or Series
            The stars.
        frame : DataFrame or None
            Data and target side by side, with `as_frame=True`.
        feature_names : list of str
            The names of the columns of `data`.
        filename : str
            The file that was read.
        DESCR : str
            What the data are, their licence and whom to cite.

    (data, target) : tuple if `return_X_y` is True
        The two attributes above.

    Raises
    ------
    OSError
        If `data_home` has no copy and it is not, or cannot be, downloaded. The
        message lists where a copy was looked for and what to do.
    ValueError
        If a file is not the one that GroupLens published: the MD5 of the archives
        "100k" and "1m" is checked and their numbers of users, items and ratings
        are counted. "latest-small" changes now and then: only its columns, its
        scale of stars and its rough size are checked.
    ImportError
        If `as_frame` is True and pandas is missing.

    See Also
    --------
    load_ratings : Any other file.
    make_ratings : Ratings that resemble "100k", without a download.

    Notes
    -----
    GroupLens allows research use and forbids redistribution without permission.
    Cite [1]_ when you use the data.

    References
    ----------
    .. [1] F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and
       Context", ACM Transactions on Interactive Intelligent Systems 5 (4), 2015.
       https://doi.org/10.1145/2827872

    Examples
    --------
    >>> from fedrecsk.datasets import fetch_movielens
    >>> X, y = fetch_movielens("100k", return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (100000, 3)

    Without a copy and without leave to download one:

    >>> fetch_movielens("100k", data_home="nowhere", download_if_missing=False)
    Traceback (most recent call last):
        ...
    FileNotFoundError: MovieLens 100K was not found and download_if_missing is False...
    """
    if as_frame:
        check_pandas("fetch_movielens")
    spec = _VARIANTS[variant]
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
    _check_content(spec, path, fields)
    y = make_y(fields.pop("rating"), "fetch_movielens", as_frame=as_frame)
    X = make_X(fields, "fetch_movielens", as_frame=as_frame)
    if return_X_y:
        return X, y
    n_users, n_items = (len(np.unique(fields[role])) for role in ("user", "item"))
    times = "with" if "timestamp" in fields else "without"
    return make_bunch(
        X,
        y,
        list(fields),
        as_frame=as_frame,
        filename=str(path),
        DESCR=f"{spec.title}: {len(X)} ratings of {n_items} films by {n_users} users, {times} "
        f"timestamps, read from {path}.\n\n{_LICENCE}",
    )


def _what_to_do(spec: _Variant, home: Path) -> str:
    looked = "\n".join(f"  {path}" for path in spec.local_copies(home))
    return (
        f"Looked for these files:\n{looked}\nSet data_home or the environment variable "
        f"FEDRECSK_DATA to a folder that has one of them, or download "
        f"{_BASE_URL}{spec.archive} by hand into {home}."
    )


def _download(spec: _Variant, home: Path, n_retries: int, delay: float) -> Path:
    """Download the archive into `home` and return its path."""
    home.mkdir(parents=True, exist_ok=True)
    # In a folder of its own until it is checked: what lies in `home` is whole.
    with tempfile.TemporaryDirectory(prefix=".download-", dir=home) as folder:
        try:
            fetched = fetch_file(
                _BASE_URL + spec.archive, folder=folder, n_retries=n_retries, delay=delay
            )
        except OSError as error:
            raise OSError(
                f"{spec.title} could not be downloaded ({error}). " + _what_to_do(spec, home)
            ) from error
        _check_archive(spec, fetched, f"The download of {_BASE_URL}{spec.archive}")
        return fetched.replace(home / spec.archive)


def _check_archive(spec: _Variant, path: Path, what: str) -> None:
    if spec.md5 is not None:
        with path.open("rb") as file:
            # GroupLens publishes MD5 sums: good against damage, which is their purpose.
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != spec.md5:
            raise ValueError(
                f"{what} has the MD5 checksum {md5} instead of {spec.md5}: it is damaged or "
                "another file. Delete it if it is yours, and fetch it again."
            )
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{what} is not a zip archive. Delete it if it is yours, and fetch again.")


def _read(spec: _Variant, path: Path) -> dict[str, np.ndarray]:
    if path.name == spec.archive:
        _check_archive(spec, path, str(path))
        member = f"{spec.folder}/{spec.member}"
        with zipfile.ZipFile(path) as archive:
            if member not in archive.namelist():
                raise ValueError(f"{path} has no file {member}: it is another archive.")
            content = archive.read(member)
        source = TextSource(
            f"{path}/{member}", lambda: io.BufferedReader(io.BytesIO(content)), "utf-8"
        )
        return read_ratings(source, sep=spec.sep, header=spec.header)[0]
    source = TextSource(str(path), lambda: path.open("rb"))
    if path.name == spec.member:
        return read_ratings(source, sep=spec.sep, header=spec.header)[0]
    return read_ratings(source)[0]


def _check_content(spec: _Variant, path: Path, fields: dict[str, np.ndarray]) -> None:
    wrong = f"{path} is not {spec.title}: "
    if "rating" not in fields or any(fields[role].dtype != np.int64 for role in ("user", "item")):
        raise ValueError(wrong + "it must have whole-numbered users and items, and ratings.")
    stars = fields["rating"]
    if spec.counts is not None:
        counts = len(np.unique(fields["user"])), len(np.unique(fields["item"])), len(stars)
        if counts != spec.counts:
            raise ValueError(
                wrong + f"it has (users, items, ratings) = {counts} instead of {spec.counts}. "
                "Replace it by the original, or read your own file with load_ratings."
            )
        return
    low, high = _LATEST_SMALL_ROWS
    if not low <= len(stars) <= high:
        raise ValueError(wrong + f"it has {len(stars)} ratings, not {low} to {high}.")
    if not np.isin(stars, np.arange(0.5, 5.5, 0.5)).all():
        raise ValueError(wrong + "its ratings are not half stars from 0.5 to 5.")
