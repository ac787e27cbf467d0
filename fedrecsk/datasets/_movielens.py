"""MovieLens."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any

from sklearn.utils import Bunch

from fedrecsk._sklearn import Interval, StrOptions, validate_params
from fedrecsk.datasets._fetch import fetch

VARIANTS = ("100k", "1m", "10m", "20m", "25m", "32m", "latest-small")


@validate_params(
    {
        "variant": [StrOptions(set(VARIANTS))],
        "data_home": [str, os.PathLike, None],
        "download_if_missing": ["boolean"],
        "as_frame": ["boolean"],
        "return_X_y": ["boolean"],
        "n_retries": [Interval(Integral, 0, None, closed="left")],
        "delay": [Interval(Real, 0, None, closed="left")],
        "timeout": [Interval(Real, 0, None, closed="neither")],
    },
    prefer_skip_nested_validation=True,
)
def fetch_movielens(
    variant: str = "100k",
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: int = 3,
    delay: float = 1.0,
    timeout: float = 30.0,
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

    data_home : str or path-like, default=None
        Folder with the data. None: the environment variable `FEDRECSK_DATA`, and without
        that `~/fedrecsk_data`.

    download_if_missing : bool, default=True
        Whether to download the data if `data_home` has no copy. False raises an error then.

    as_frame : bool, default=False
        Whether to return pandas objects. Needs pandas.

    return_X_y : bool, default=False
        Whether to return `(data, target)` instead of a Bunch.

    n_retries : int, default=3
        Number of further tries after a failed download.

    delay : float, default=1.0
        Seconds to wait before the first further try; the wait doubles with each try, up to a
        minute.

    timeout : float, default=30.0
        Seconds after which a try counts as failed if the server sends nothing.

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
            What the data are, their licence and what to cite.

    (data, target) : tuple if `return_X_y` is True
        The two attributes above.

    Raises
    ------
    OSError
        If there is no copy and the download is not allowed or fails, or if `data_home` is a file
        or not writable. The message lists the places where a copy was looked for, and what to do.
    ValueError
        If a file is not the one that GroupLens published: the SHA-256 of the archive is
        checked, and users, items and ratings are counted. "latest-small" changes now and
        then: its columns, its scale of stars and its rough size are checked, and the SHA-256
        of the first download is recorded beside the archive and checked from then on.
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

    Without a copy, and without permission to download one:

    >>> fetch_movielens("100k", data_home="nowhere", download_if_missing=False)
    Traceback (most recent call last):
        ...
    FileNotFoundError: MovieLens 100K was not found and download_if_missing is False...
    """
    return fetch(
        f"movielens-{variant}",
        "fetch_movielens",
        data_home=data_home,
        download_if_missing=download_if_missing,
        as_frame=as_frame,
        return_X_y=return_X_y,
        n_retries=n_retries,
        delay=delay,
        timeout=timeout,
    )
