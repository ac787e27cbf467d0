"""The folder for downloaded data sets."""

import os
from pathlib import Path

from fedrecsk._sklearn import validate_params
from fedrecsk.datasets._catalogue import PUBLISHED


def resolve_data_home(data_home: str | os.PathLike[str] | None = None) -> Path:
    """Return the data folder without creating it: it may be read-only or not needed."""
    if data_home is None:
        # An empty variable counts as unset: Path("") would be the working directory.
        data_home = os.environ.get("FEDRECSK_DATA") or Path("~", "fedrecsk_data")
    home = Path(data_home).expanduser()
    if home.exists() and not home.is_dir():
        raise NotADirectoryError(
            f"data_home {home} is a file, not a folder. Pass data_home=..., or set the environment "
            "variable FEDRECSK_DATA, to the folder that holds the data; load_ratings reads files."
        )
    return home


def create(home: Path) -> None:
    """Create the data folder if it is not there, or say why that is impossible."""
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"data_home {home} cannot be created ({error.strerror}). Pass data_home=..., or set "
            "the environment variable FEDRECSK_DATA, to a folder where you may write."
        ) from error


@validate_params({"data_home": [str, os.PathLike, None]}, prefer_skip_nested_validation=True)
def get_data_home(data_home: str | os.PathLike[str] | None = None) -> str:
    """Return the path of the data folder, and create it if it is not there.

    Parameters
    ----------
    data_home : str or path-like, default=None
        The folder. None: the environment variable `FEDRECSK_DATA`, and without that
        `~/fedrecsk_data`. A leading `~` is expanded.

    Returns
    -------
    data_home : str
        The path of a folder that exists.

    Raises
    ------
    OSError
        If `data_home` is a file, or cannot be created.

    See Also
    --------
    clear_data_home : Delete what fedrecsk has downloaded.

    Examples
    --------
    >>> import os, tempfile
    >>> from fedrecsk.datasets import get_data_home
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = get_data_home(os.path.join(folder, "ratings"))
    ...     os.path.isdir(path)
    True
    """
    path = resolve_data_home(data_home)
    create(path)
    return str(path)


@validate_params({"data_home": [str, os.PathLike, None]}, prefer_skip_nested_validation=True)
def clear_data_home(data_home: str | os.PathLike[str] | None = None) -> None:
    """Delete the archives that fedrecsk has downloaded.

    Unlike scikit-learn's function of this name, it deletes only those
    archives (`ml-100k.zip`, `filmtrust.zip`, `KuaiRec.zip`...) and their recorded
    checksums (`KuaiRec.zip.sha256`...), because the folder may have other files of yours. The
    folder is deleted too if nothing else is in it.

    Parameters
    ----------
    data_home : str or path-like, default=None
        The folder, found as :func:`get_data_home` finds it.

    See Also
    --------
    get_data_home : The folder in question.

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
    path = resolve_data_home(data_home)
    if not path.is_dir():
        return
    for spec in PUBLISHED.values():
        (path / spec.archive).unlink(missing_ok=True)
        (path / spec.pin).unlink(missing_ok=True)
    if not any(path.iterdir()):
        path.rmdir()
