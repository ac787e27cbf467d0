"""KuaiRec."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any

from sklearn.utils import Bunch

from fedrecsk._sklearn import Interval, StrOptions, validate_params
from fedrecsk.datasets._fetch import fetch


@validate_params(
    {
        "variant": [StrOptions({"big", "small"})],
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
def fetch_kuairec(
    variant: str = "big",
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    as_frame: bool = False,
    return_X_y: bool = False,
    n_retries: int = 3,
    delay: float = 1.0,
    timeout: float = 30.0,
) -> Bunch | tuple[Any, Any]:
    """Load KuaiRec 2.0, downloading it if there is no copy yet.

    =================   ===============   ===============
    variant             "big"             "small"
    users               7,176             1,411
    items               10,728 videos     3,327 videos
    views               12,530,806        4,676,570
    pairs seen          13.4 %            99.6 %
    timestamps          all               none
    =================   ===============   ===============

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

        data : ndarray of shape (n_samples, 3) or (n_samples, 2) and dtype int64, or DataFrame
            The columns user, item and, for "big", timestamp (milliseconds since 1970,
            UTC), in the file's order.
        target : ndarray of shape (n_samples,) and dtype float64, or Series
            The watch ratios: 0 to several hundred, half of them below about 0.75.
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
        If a file is not the published one: the MD5 of the archive and the numbers of
        users, items and views are checked. The SHA-256 of the first download is recorded
        beside the archive and checked from then on.
    ImportError
        If `as_frame` is True and pandas is missing.

    See Also
    --------
    load_ratings : Any other file.
    make_interactions : Implicit feedback, without a download.

    Notes
    -----
    RFRec's experiments use "big" without the watch ratios above 20, less than one in a
    thousand: `keep = y <= 20; X, y = X[keep], y[keep]`.

    In "big", nearly a million rows occur twice, and users see videos again: there are about
    10.3 million different pairs. Estimators merge them by their mean.

    Of the times in "small", 181,992 are missing, so they are left out.

    Reading "big" takes about a minute and 2 GB of memory.

    The data come under CC BY-SA 4.0. Cite [1]_ when you use them.

    References
    ----------
    .. [1] C. Gao, S. Li, W. Lei, J. Chen, B. Li, P. Jiang, X. He, J. Mao and T.-S. Chua,
       "KuaiRec: A Fully-Observed Dataset and Insights for Evaluating Recommender
       Systems", CIKM 2022, pages 540-550. https://doi.org/10.1145/3511808.3557220

    Examples
    --------
    >>> from fedrecsk.datasets import fetch_kuairec
    >>> X, y = fetch_kuairec("small", return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (4676570, 2)

    Without a copy, and without permission to download one:

    >>> fetch_kuairec(data_home="nowhere", download_if_missing=False)
    Traceback (most recent call last):
        ...
    FileNotFoundError: KuaiRec's big matrix was not found and download_if_missing is False...
    """
    return fetch(
        f"kuairec-{variant}",
        "fetch_kuairec",
        data_home=data_home,
        download_if_missing=download_if_missing,
        as_frame=as_frame,
        return_X_y=return_X_y,
        n_retries=n_retries,
        delay=delay,
        timeout=timeout,
    )
