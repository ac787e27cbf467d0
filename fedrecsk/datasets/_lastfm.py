"""Last.fm."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any

from sklearn.utils import Bunch

from fedrecsk._sklearn import Interval, validate_params
from fedrecsk.datasets._fetch import fetch


@validate_params(
    {
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
def fetch_lastfm(
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: int = 3,
    delay: float = 1.0,
    timeout: float = 30.0,
) -> Bunch | tuple[Any, Any]:
    """Load Last.fm 2K (HetRec 2011), downloading it if there is no copy yet.

    =================   =================
    users               1,892
    items               17,632 artists
    listening counts    92,834
    timestamps          none
    =================   =================

    How often users of the music site Last.fm listened to their favourite artists, at most 50 per
    user: implicit feedback. The archive is kept in `data_home` and downloaded only if `data_home`
    has no copy: `hetrec2011-lastfm-2k/user_artists.dat` or `hetrec2011-lastfm-2k.zip`. Nothing
    is written when a copy is found.

    Parameters
    ----------
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

        data : ndarray of shape (92834, 2) and dtype int64, or DataFrame
            The columns user and item, in the file's order.
        target : ndarray of shape (92834,) and dtype float64, or Series
            The play counts. They are heavily skewed: pass `y=None` to fit, or
            `numpy.log1p(y)` for a model that uses y as a confidence.
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
        If a file is not the published one: the SHA-256 of the archive, the numbers of
        users, items and rows are checked.
    ImportError
        If `as_frame` is True and pandas is missing.

    See Also
    --------
    fetch_movielens : Ratings, with timestamps.
    load_ratings : Any other file.

    Notes
    -----
    GroupLens and Last.fm allow non-commercial use. Cite [1]_ when you use the data.

    References
    ----------
    .. [1] I. Cantador, P. Brusilovsky and T. Kuflik, "Second Workshop on Information
       Heterogeneity and Fusion in Recommender Systems (HetRec 2011)", RecSys 2011.

    Examples
    --------
    >>> from fedrecsk.datasets import fetch_lastfm
    >>> X, y = fetch_lastfm(return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (92834, 2)

    Without a copy, and without permission to download one:

    >>> fetch_lastfm(data_home="nowhere", download_if_missing=False)
    Traceback (most recent call last):
        ...
    FileNotFoundError: Last.fm 2K was not found and download_if_missing is False...
    """
    return fetch(
        "lastfm",
        "fetch_lastfm",
        data_home=data_home,
        download_if_missing=download_if_missing,
        as_frame=as_frame,
        return_X_y=return_X_y,
        n_retries=n_retries,
        delay=delay,
        timeout=timeout,
    )
