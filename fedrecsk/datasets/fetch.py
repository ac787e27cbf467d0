"""Download published data sets, check and keep them, or read copies."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pooch
from sklearn.utils import Bunch

from fedrecsk._utils.constraints import AtLeast0, NotNegative, Positive
from fedrecsk._utils.docs import documented
from fedrecsk._utils.parameters import check_arguments
from fedrecsk._utils.user_warnings import warn
from fedrecsk._version import __version__
from fedrecsk.datasets._movielens_features import read_features
from fedrecsk.datasets.published import PUBLISHED, Published
from fedrecsk.datasets.readers import TextFile, in_form, read_ratings

_LONGEST_WAIT = 60.0
# Answers that may change: time-out, too many requests, and errors of the server.
_WORTH_A_RETRY = {408, 425, 429, 500, 502, 503, 504}
Home = str | os.PathLike[str] | None


@documented
@check_arguments
def fetch_movielens(
    variant: Literal["100k", "1m", "10m", "20m", "25m", "32m", "latest-small"] = "100k",
    *,
    features: bool = False,
    data_home: Home = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: AtLeast0 = 3,
    delay: NotNegative = 1.0,
    timeout: Positive = 30.0,
) -> Bunch | tuple[Any, Any]:
    """Load a MovieLens data set, downloading it if there is no copy yet.

    ==============  ===========  ============  =============  =============  =========  ========
    variant         users        items         ratings        stars          years      download
    "100k"          943          1,682         100,000        1, 2, ... 5    1997-1998  5 MB
    "1m"            6,040        3,706         1,000,209      1, 2, ... 5    2000-2003  6 MB
    "10m"           69,878       10,677        10,000,054     0.5, 1, ... 5  1995-2009  66 MB
    "20m"           138,493      26,744        20,000,263     0.5, 1, ... 5  1995-2015  199 MB
    "25m"           162,541      59,047        25,000,095     0.5, 1, ... 5  1995-2019  262 MB
    "32m"           200,948      about 84,000  32,000,204     0.5, 1, ... 5  1995-2023  239 MB
    "latest-small"  about 600    about 10,000  about 100,000  0.5, 1, ... 5  changes    1 MB
    ==============  ===========  ============  =============  =============  =========  ========

    The archive is kept in `data_home` and downloaded only if `data_home` has
    no copy. A copy is, in this order: the unpacked original
    (`ml-100k/u.data`, `ml-1m/ratings.dat`, `ml-10M100K/ratings.dat`, otherwise
    `ml-25m/ratings.csv`...), the archive (`ml-100k.zip`...), or a table `ratings.csv` or
    `ratings.csv.gz` in the folder of that name. Nothing is written when a copy is found.

    Parameters
    ----------
    variant : {"100k", "1m", "10m", "20m", "25m", "32m", "latest-small"}, default="100k"
        Which data set.
    features : bool, default=False
        Whether to read what is known of films and users too.

    {fetching}

    Returns
    -------
    {bunch}

        data : ndarray of shape (n_samples, 3) and dtype int64, or DataFrame
            The columns user, item and timestamp (seconds since 1970, UTC), in
            the file's order. A copy without timestamps, as some that circulate
            of "1m", gives two columns.
        target : ndarray of shape (n_samples,) and dtype float64, or Series
            The stars.
        films : DataFrame of shape (n_items, 3)
            With ``features=True``: title, year and genres (joined by a bar) of all films on
            offer, some of which have no ratings; the index has their ids.
        item_features : DataFrame of shape (n_items, n_features)
            With ``features=True``, the same in numbers, as `item_features` of recommenders
            needs it: genres and periods of five years as 0 and 1, and the year (of a film without
            one, the median).
        users : DataFrame of shape (n_users, 4) or None
            With ``features=True``: age, gender, occupation and zip code; "1m" has classes of age
            and codes of occupations, and the later sets have no users (None).
        {fetched}

    Raises
    ------
    {fetching errors}
        "latest-small" changes now and then: its columns, its scale of stars and its rough size are
        checked, and the SHA-256 of the first download is recorded beside the archive and checked
        from then on. Also with ``features=True`` and ``return_X_y=True``.
    FileNotFoundError
        With ``features=True``, if a copy has no films beside its ratings.

    See Also
    --------
    load_ratings : Any other file.
    make_ratings : Ratings that resemble "100k", without a download.

    Notes
    -----
    {movielens licence}

    Examples
    --------
    >>> from fedrecsk.datasets import fetch_movielens
    >>> X, y = fetch_movielens("100k", return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (100000, 3)

    Without a copy, and without permission to download one:

    >>> fetch_movielens("100k", data_home="nowhere", download_if_missing=False)
    Traceback (most recent call last):
        ...
    FileNotFoundError: MovieLens 100K was not found and download_if_missing is False...
    """
    if features and return_X_y:
        raise ValueError(
            "return_X_y=True returns no features; use the attributes data, target and "
            "item_features of what features=True returns."
        )
    download = download_if_missing, n_retries, delay, timeout
    fetched = _fetch(f"movielens-{variant}", data_home, download, as_frame, return_X_y)
    if features:
        fetched.update(read_features(Path(fetched.filename)))
    return fetched


@documented
@check_arguments
def fetch_kuairec(
    variant: Literal["big", "small"] = "big",
    *,
    data_home: Home = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: AtLeast0 = 3,
    delay: NotNegative = 1.0,
    timeout: Positive = 30.0,
) -> Bunch | tuple[Any, Any]:
    """Load KuaiRec 2.0, downloading it if there is no copy yet.

    "big" has 12,530,806 views of 10,728 videos by 7,176 users (13.4% of the pairs), with times;
    "small" 4,676,570 views of 3,327 videos by 1,411 users (99.6%), without.

    The target of a view is its watch ratio, the time watched divided by the video's length: more
    than 1 if it was watched again. The archive (432 MB, both variants) is kept in
    `data_home` and downloaded only if `data_home` has no copy: the unpacked original
    (`KuaiRec 2.0/data/big_matrix.csv` or `small_matrix.csv`) or `KuaiRec.zip`. Nothing
    is written when a copy is found.

    Parameters
    ----------
    variant : {"big", "small"}, default="big"
        Which of the two matrices: "big" has the videos that users happened to see, "small" is a
        part in which nearly all users have seen all videos.

    {fetching}

    Returns
    -------
    {bunch}

        data : ndarray of shape (n_samples, 3) or (n_samples, 2) and dtype int64, or DataFrame
            The columns user, item and, for "big", timestamp (milliseconds since 1970,
            UTC), in the file's order.
        target : ndarray of shape (n_samples,) and dtype float64, or Series
            The watch ratios: 0 to several hundred, half of them below about 0.75.
        {fetched}

    Raises
    ------
    {fetching errors}
        Of the archive, an MD5 is published. The SHA-256 of the first download is recorded beside
        it and checked from then on.

    Notes
    -----
    RFRec's experiments use "big" without the watch ratios above 20, less than one in a
    thousand: `keep = y <= 20; X, y = X[keep], y[keep]`.

    In "big", nearly a million rows occur twice, and users see videos again: there are about
    10.3 million different pairs. Estimators merge them by their mean.

    Of the times in "small", 181,992 are missing, so they are left out.

    Reading "big" takes about a minute and 2 GB of memory.

    {kuairec licence}

    Examples
    --------
    >>> from fedrecsk.datasets import fetch_kuairec
    >>> X, y = fetch_kuairec("small", return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (4676570, 2)
    """
    download = download_if_missing, n_retries, delay, timeout
    return _fetch(f"kuairec-{variant}", data_home, download, as_frame, return_X_y)


@documented
@check_arguments
def fetch_filmtrust(
    *,
    data_home: Home = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: AtLeast0 = 3,
    delay: NotNegative = 1.0,
    timeout: Positive = 30.0,
) -> Bunch | tuple[Any, Any]:
    """Load FilmTrust, downloading it if there is no copy yet.

    35,497 ratings (0.5, 1, ... 4 stars) of 2,071 films by 1,508 users, without timestamps.
    The ratings were crawled from the film site FilmTrust in June 2011. The archive is
    kept in `data_home` and downloaded only if `data_home` has no copy:
    `filmtrust/ratings.txt` or `filmtrust.zip`. Nothing is written when a copy is found.

    Parameters
    ----------
    {fetching}

    Returns
    -------
    {bunch}

        data : ndarray of shape (35497, 2) and dtype int64, or DataFrame
            The columns user and item, in the file's order. Three pairs occur twice.
        target : ndarray of shape (35497,) and dtype float64, or Series
            The stars.
        {fetched}

    Raises
    ------
    {fetching errors}

    Notes
    -----
    {filmtrust licence}

    Examples
    --------
    >>> from fedrecsk.datasets import fetch_filmtrust
    >>> X, y = fetch_filmtrust(return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (35497, 2)
    """
    download = download_if_missing, n_retries, delay, timeout
    return _fetch("filmtrust", data_home, download, as_frame, return_X_y)


@documented
@check_arguments
def fetch_lastfm(
    *,
    data_home: Home = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: AtLeast0 = 3,
    delay: NotNegative = 1.0,
    timeout: Positive = 30.0,
) -> Bunch | tuple[Any, Any]:
    """Load Last.fm 2K (HetRec 2011), downloading it if there is no copy yet.

    92,834 play counts of 17,632 artists by 1,892 users, without timestamps.
    How often users of the music site Last.fm listened to their favourite artists, at most 50 per
    user: implicit feedback. The archive is kept in `data_home` and downloaded only if `data_home`
    has no copy: `hetrec2011-lastfm-2k/user_artists.dat` or `hetrec2011-lastfm-2k.zip`. Nothing
    is written when a copy is found.

    Parameters
    ----------
    {fetching}

    Returns
    -------
    {bunch}

        data : ndarray of shape (92834, 2) and dtype int64, or DataFrame
            The columns user and item, in the file's order.
        target : ndarray of shape (92834,) and dtype float64, or Series
            The play counts. They are heavily skewed: pass `y=None` to fit, or
            `numpy.log1p(y)` for a model that uses y as a confidence.
        {fetched}

    Raises
    ------
    {fetching errors}

    Notes
    -----
    {hetrec licence}

    Examples
    --------
    >>> from fedrecsk.datasets import fetch_lastfm
    >>> X, y = fetch_lastfm(return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (92834, 2)
    """
    download = download_if_missing, n_retries, delay, timeout
    return _fetch("lastfm", data_home, download, as_frame, return_X_y)


@documented
@check_arguments
def fetch_amazon(
    variant: Literal["beauty", "sports", "toys"] = "beauty",
    *,
    data_home: Home = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: AtLeast0 = 3,
    delay: NotNegative = 1.0,
    timeout: Positive = 30.0,
) -> Bunch | tuple[Any, Any]:
    """Load a 5-core Amazon data set in order of time, downloading it if there is no copy yet.

    Products that users reviewed, in order and without dates: the files of S3-Rec, on which most
    papers on sequences report. Each user and each product has at least five rows. The file is
    kept in `data_home` and downloaded only if `data_home` has no copy: `Beauty.txt`, or
    `amazon-beauty-5core/interactions.csv.gz` with the columns user, item and position. Nothing is
    written when a copy is found.

    Parameters
    ----------
    variant : {"beauty", "sports", "toys"}, default="beauty"
        "beauty": 198,502 rows of 22,363 users and 12,101 products. "sports": 296,337, 35,598 and
        18,357. "toys": 167,597, 19,412 and 11,924.
    {fetching}

    Returns
    -------
    {bunch}

        data : ndarray of shape (n_samples, 3) and dtype int64, or DataFrame
            The columns user, item and timestamp: the position in the user's order, from 1. Rows of
            the same day are in the order of the original files.
        target : ndarray of shape (n_samples,) and dtype float64, or Series
            1 for each row: implicit feedback.
        {fetched}

    Raises
    ------
    {fetching errors}

    Notes
    -----
    {amazon licence}

    Examples
    --------
    >>> from fedrecsk.datasets import fetch_amazon
    >>> X, _ = fetch_amazon("beauty", return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (198502, 3)
    """
    download = download_if_missing, n_retries, delay, timeout
    return _fetch(f"amazon-{variant}", data_home, download, as_frame, return_X_y)


@check_arguments
def get_data_home(data_home: Home = None) -> str:
    """Return the path of the data folder, and create it if it is not there.

    Parameters
    ----------
    data_home : str or path-like, default=None
        The folder. If None, that of the environment variable `FEDRECSK_DATA`, or else
        `~/fedrecsk_data`. A leading `~` is expanded.

    Returns
    -------
    data_home : str
        The path of a folder that exists.

    Raises
    ------
    OSError
        If `data_home` is a file, or cannot be created.

    Examples
    --------
    >>> import os, tempfile
    >>> from fedrecsk.datasets import get_data_home
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = get_data_home(os.path.join(folder, "ratings"))
    ...     os.path.isdir(path)
    True
    """
    home = _resolved(data_home)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"data_home {home} cannot be created ({error.strerror}). Pass data_home=..., or set "
            "the environment variable FEDRECSK_DATA, to a folder where you may write."
        ) from error
    return str(home)


@check_arguments
def clear_data_home(data_home: Home = None) -> None:
    """Delete the archives that fedrecsk has downloaded.

    Unlike scikit-learn's function of this name, it deletes only those
    archives (`ml-100k.zip`, `filmtrust.zip`, `KuaiRec.zip`...) and their recorded
    checksums (`KuaiRec.zip.sha256`...), because the folder may have other files of yours. The
    folder is deleted too if nothing else is in it.

    Parameters
    ----------
    data_home : str or path-like, default=None
        The folder, found as :func:`get_data_home` finds it.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from fedrecsk.datasets import clear_data_home
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ["ml-100k.zip", "my_ratings.csv"]:
    ...         pathlib.Path(folder, name).touch()
    ...     clear_data_home(folder)
    ...     [path.name for path in pathlib.Path(folder).iterdir()]
    ['my_ratings.csv']
    """
    path = _resolved(data_home)
    if not path.is_dir():
        return
    for spec in PUBLISHED.values():
        (path / spec.archive).unlink(missing_ok=True)
        (path / spec.pin).unlink(missing_ok=True)
    if not any(path.iterdir()):
        path.rmdir()


def _resolved(data_home: Home) -> Path:
    """Return the data folder without creating it: it may be read-only or not needed."""
    # An empty variable counts as unset: Path("") would be the working directory.
    home = Path(data_home or os.environ.get("FEDRECSK_DATA") or "~/fedrecsk_data").expanduser()
    if home.exists() and not home.is_dir():
        raise NotADirectoryError(
            f"data_home {home} is a file, not a folder. Pass data_home=..., or set the environment "
            "variable FEDRECSK_DATA, to the folder that holds the data; load_ratings reads files."
        )
    return home


def _fetch(name, data_home, download, as_frame, return_X_y) -> Bunch | tuple[Any, Any]:
    """Return the published data set of that name."""
    spec = PUBLISHED[name]
    home = _resolved(data_home)
    path = next((copy for copy in spec.local_copies(home) if copy.is_file()), None)
    if path is None:
        download_if_missing, n_retries, delay, timeout = download
        if not download_if_missing:
            raise FileNotFoundError(
                f"{spec.title} was not found and download_if_missing is False. "
                + _what_to_do(spec, home)
            )
        path = _download(spec, home, n_retries, delay, timeout)

    fields = _read(spec, path)
    n_users, n_items, n_rows = _check_content(spec, path, fields)
    times = "with" if "timestamp" in fields else "without"
    says = (
        f"{spec.title}: {n_rows} {spec.what} of {n_items} {spec.items} by {n_users} users, "
        f"{times} timestamps, read from {path}.\n\nLicence: {spec.licence}"
    )
    return in_form(fields, str(path), says, as_frame=as_frame, return_X_y=return_X_y)


def _what_to_do(spec: Published, home: Path) -> str:
    looked = "\n".join(f"  {path}" for path in spec.local_copies(home))
    return (
        f"Looked for these files:\n{looked}\nSet data_home or the environment variable "
        f"FEDRECSK_DATA to a folder that has one of them, or download {spec.url} by hand into "
        f"{home}."
    )


def _download(spec: Published, home: Path, n_retries: int, delay: float, timeout: float) -> Path:
    """Download the archive into `home` and return its path."""
    get_data_home(home)
    headers = {"User-Agent": f"fedrecsk/{__version__}"}
    downloader = pooch.HTTPDownloader(timeout=timeout, headers=headers, chunk_size=2**16)
    for attempt in range(n_retries + 1):
        try:
            path = Path(
                pooch.retrieve(spec.url, spec.checksum, spec.archive, home, downloader=downloader)
            )
            if not (spec.histories or zipfile.is_zipfile(path)):
                path.unlink()
                raise ValueError("it is not a zip archive.")
            break
        except OSError as error:
            response = getattr(error, "response", None)
            is_final = response is not None and response.status_code not in _WORTH_A_RETRY
            # An error of the disk has a number, unless pooch raises it; one of the web has none.
            is_local = error.errno is not None or isinstance(error, PermissionError)
            if is_final or is_local or attempt == n_retries:
                raise OSError(
                    f"{spec.title} could not be downloaded ({error}; tries: {attempt + 1}). "
                    + _what_to_do(spec, home)
                ) from error
            wait = min(delay * 2**attempt, _LONGEST_WAIT)
            warn(
                f"Downloading {spec.url} failed ({error}). Next try in {wait:g} s; "
                f"{n_retries - attempt} left."
            )
            time.sleep(wait)
        except ValueError as error:
            raise ValueError(
                f"{spec.url} is not {spec.title}, but damaged, another file, or a web page of a "
                f"proxy or a login: {error} " + _what_to_do(spec, home)
            ) from error
    if not (spec.checksum or "").startswith("sha256:"):
        # No SHA-256 is published, so later copies must equal the first one.
        (home / spec.pin).write_text(f"{pooch.file_hash(str(path))}  {spec.archive}\n")
    return path


def _check_archive(spec: Published, path: Path) -> None:
    pin = path.with_name(spec.pin)
    checksums = {spec.checksum: ""} if spec.checksum else {}
    if pin.is_file() and (words := pin.read_text().split()):
        checksums[f"sha256:{words[0]}"] = f" (recorded in {pin} at the first download)"
    for checksum, whose in checksums.items():
        kind, expected = checksum.split(":")
        found = pooch.file_hash(str(path), alg=kind)
        if found != expected:
            raise ValueError(
                f"{path} has the {kind.upper()} checksum {found} instead of {expected}{whose}: it "
                "is damaged or another file. Delete it if it is yours, and fetch it again."
            )
    if not (spec.histories or zipfile.is_zipfile(path)):
        raise ValueError(
            f"{path} is not a zip archive. Delete it if it is yours, and fetch it again."
        )


def _read(spec: Published, path: Path) -> dict[str, np.ndarray]:
    if spec.histories:
        return _read_histories(spec, path)
    if path.name == spec.archive:
        _check_archive(spec, path)
        with zipfile.ZipFile(path) as archive:
            if spec.member not in archive.namelist():
                raise ValueError(f"{path} has no file {spec.member}: it is another archive.")
            # Not unpacked first: the largest member has more than a gigabyte.
            member = TextFile(f"{path}/{spec.member}", lambda: archive.open(spec.member))
            return _read_original(spec, member)
    text = TextFile(str(path), lambda: path.open("rb"))
    if path.name == Path(spec.member).name:
        return _read_original(spec, text)
    return read_ratings(text).fields


def _read_histories(spec: Published, path: Path) -> dict[str, np.ndarray]:
    """Read lines of a user and its items in order, or a table of users, items and positions."""
    if path.name == spec.archive:
        _check_archive(spec, path)
        lines = [np.array(line.split(), dtype=np.int64) for line in path.read_text().splitlines()]
        fields = {
            "user": np.repeat([line[0] for line in lines], [len(line) - 1 for line in lines]),
            "item": np.concatenate([line[1:] for line in lines]),
            "timestamp": np.concatenate([np.arange(1, len(line)) for line in lines]),
        }
    else:
        text = TextFile(str(path), lambda: path.open("rb"))
        fields = read_ratings(text, columns=spec.columns, whole_numbers=True).fields
    return fields | {"rating": np.ones(len(fields["user"]))}


def _read_original(spec: Published, text: TextFile) -> dict[str, np.ndarray]:
    try:
        fields = read_ratings(
            text, sep=spec.sep, header=spec.header, columns=spec.columns, whole_numbers=True
        ).fields
    except ValueError as error:
        raise ValueError(f"{text.name} is not {spec.title}: {error}") from error
    if spec.milliseconds:
        fields["timestamp"] = np.rint(1000 * fields["timestamp"]).astype(np.int64)
    return fields


def _check_content(spec, path, fields) -> tuple[int, int, int]:
    """Return the numbers of users, items and rows, if the data are what `spec` says."""
    wrong = f"{path} is not {spec.title}: "
    if "rating" not in fields or any(fields[role].dtype != np.int64 for role in ("user", "item")):
        raise ValueError(wrong + "it must have whole-numbered users and items, and ratings.")
    ratings = fields["rating"]
    counts = len(np.unique(fields["user"])), len(np.unique(fields["item"])), len(ratings)
    known = spec.counts or counts
    if not all(want in (None, got) for want, got in zip(known, counts, strict=True)):
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
