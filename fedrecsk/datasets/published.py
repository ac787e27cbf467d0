"""The published data sets: their addresses, checksums and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrecsk._utils.docs import TEXTS

_GROUPLENS_URL = "https://files.grouplens.org/datasets/"


@dataclass(frozen=True)
class Published:
    """One published data set: where it is, how to read it, and what it must contain."""

    title: str
    url: str
    member: str  # file in the archive
    licence: str
    folder: str = ""  # where a user unpacks the archive, if it has no folder of its own
    checksum: str | None = None  # "md5:..." or "sha256:..."
    counts: tuple[int | None, int | None, int] | None = None  # users, items, rows
    n_rows_between: tuple[int, int] | None = None  # where counts are not fixed
    scale: tuple[float, ...] | None = None  # all values that a rating can have
    tables: tuple[str, ...] = ()  # further names of a copy, with any separator and header
    sep: str = ","
    header: bool = False
    columns: Mapping[str, str | None] | None = None
    milliseconds: bool = False  # whether times are fractions of seconds, to count in thousandths
    histories: bool = False  # whether it is no archive, but a line per user: its items in order
    what: str = "ratings"
    items: str = "films"

    @property
    def archive(self) -> str:
        return self.url.rsplit("/", 1)[1]

    @property
    def pin(self) -> str:
        """Return the name of the file with the SHA-256 of a first download, where none is known."""
        return f"{self.archive}.sha256"

    def local_copies(self, home: Path) -> list[Path]:
        """List where a copy may be; the originals first, because they have timestamps."""
        names = (self.folder + self.member, self.archive, *self.tables)
        return list(dict.fromkeys(home / name for name in names))


_HALF_STARS = tuple(np.arange(0.5, 5.5, 0.5).tolist())


def _movielens(variant: str, *, member: str = "", sep: str = ",", **more) -> Published:
    name = f"ml-{variant}"
    member = member or f"{name}/ratings.csv"
    folder = member.partition("/")[0]
    return Published(
        f"MovieLens {variant.replace('-', ' ').title()}",
        f"{_GROUPLENS_URL}movielens/{name}.zip",
        member=member,
        licence=TEXTS["movielens licence"],
        tables=(f"{folder}/ratings.csv", f"{folder}/ratings.csv.gz"),
        sep=sep,
        header=sep == ",",
        **more,
    )


def _kuairec(title: str, member: str, timestamp: str | None, **more) -> Published:
    columns = {"user": "user_id", "item": "video_id", "rating": "watch_ratio"}
    return Published(
        title,
        "https://zenodo.org/records/18164998/files/KuaiRec.zip",
        member=f"KuaiRec 2.0/data/{member}",
        licence=TEXTS["kuairec licence"],
        checksum="md5:261550d472c48eff4990fb13c0e5bcf7",
        header=True,
        columns=columns | {"timestamp": timestamp},
        what="watch ratios",
        items="videos",
        **more,
    )


_S3REC = "2a81540ae18615d88ef88227b0c066e5b74781e5"


def _amazon(file: str, **more) -> Published:
    variant = file.partition("_")[0]
    name = f"amazon-{variant.lower()}-5core"
    return Published(
        f"Amazon {variant} (5-core)",
        f"https://raw.githubusercontent.com/RUCAIBox/CIKM2020-S3Rec/{_S3REC}/data/{file}.txt",
        member=f"{file}.txt",
        folder=f"{name}/",
        licence=TEXTS["amazon licence"],
        tables=(f"{name}/interactions.csv", f"{name}/interactions.csv.gz"),
        columns={"user": "user", "item": "item", "rating": None, "timestamp": "position"},
        histories=True,
        what="purchases",
        items="products",
        **more,
    )


# Several public projects name each SHA-256 of MovieLens, next to the MD5 that GroupLens publishes
# beside the archive: TensorFlow Datasets and OmniRec (github.com/ISG-Siegen/OmniRec) among them.
PUBLISHED = {
    "movielens-100k": _movielens(
        "100k",
        member="ml-100k/u.data",
        sep="\t",
        checksum="sha256:50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        counts=(943, 1682, 100_000),
    ),
    "movielens-1m": _movielens(
        "1m",
        member="ml-1m/ratings.dat",
        sep="::",
        checksum="sha256:a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        counts=(6040, 3706, 1_000_209),
    ),
    "movielens-10m": _movielens(
        "10m",
        member="ml-10M100K/ratings.dat",
        sep="::",
        checksum="sha256:813c411ccb6122564edfe752e7f80c4dcc5aa25fa94c93622f6877a7ba252862",
        counts=(69_878, 10_677, 10_000_054),
        scale=_HALF_STARS,
    ),
    "movielens-20m": _movielens(
        "20m",
        checksum="sha256:96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
        counts=(138_493, 26_744, 20_000_263),
        scale=_HALF_STARS,
    ),
    "movielens-25m": _movielens(
        "25m",
        checksum="sha256:8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
        counts=(162_541, 59_047, 25_000_095),
        scale=_HALF_STARS,
    ),
    # Its README counts users and ratings, and all films rather than those with a rating.
    "movielens-32m": _movielens(
        "32m",
        checksum="sha256:e4a68655d7386b8f95f2f2424b2ff975dfdd15ffd59e0d864a14dca43e99d6ee",
        counts=(200_948, None, 32_000_204),
        scale=_HALF_STARS,
    ),
    # GroupLens replaces this one from time to time, so checksum and counts are not fixed.
    # Its page says "100,000 ratings"; the releases so far had 100,004 to 100,836.
    "movielens-latest-small": _movielens(
        "latest-small", n_rows_between=(50_000, 200_000), scale=_HALF_STARS
    ),
    # The SHA-256 is OmniRec's, and that of three other public projects.
    "lastfm": Published(
        "Last.fm 2K",
        f"{_GROUPLENS_URL}hetrec2011/hetrec2011-lastfm-2k.zip",
        member="user_artists.dat",
        folder="hetrec2011-lastfm-2k/",
        licence=TEXTS["hetrec licence"],
        sep="\t",
        header=True,
        columns={"user": "userID", "item": "artistID", "rating": "weight", "timestamp": None},
        checksum="sha256:6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c",
        counts=(1892, 17_632, 92_834),
        what="play counts",
        items="artists",
    ),
    # The SHA-256 are those of the files in this commit of the repository.
    "amazon-beauty": _amazon(
        "Beauty",
        checksum="sha256:226cce9c3105299ca0db9615d7d3fb32b3175e90da43100ae352599f0f0107b8",
        counts=(22_363, 12_101, 198_502),
    ),
    "amazon-sports": _amazon(
        "Sports_and_Outdoors",
        checksum="sha256:2a095e0648872beb9982408958290f5d655db5be2911c3756b5446de9f0b8de2",
        counts=(35_598, 18_357, 296_337),
    ),
    "amazon-toys": _amazon(
        "Toys_and_Games",
        checksum="sha256:176c680c688d497598c4a89a03b402c0fe78d795e5db335c2e78dd5f2d778a3f",
        counts=(19_412, 11_924, 167_597),
    ),
    # The SHA-256 is the one that OmniRec (github.com/ISG-Siegen/OmniRec) checks.
    "filmtrust": Published(
        "FilmTrust",
        "https://guoguibing.github.io/librec/datasets/filmtrust.zip",
        member="ratings.txt",
        folder="filmtrust/",
        licence=TEXTS["filmtrust licence"],
        sep=" ",
        checksum="sha256:de4a55cb4ae26f663d88e9ad1ba1fae2d0d6d7a7499e37dc5245bab470c2d13c",
        counts=(1508, 2071, 35_497),
        scale=tuple(np.arange(0.5, 4.5, 0.5).tolist()),
    ),
    "kuairec-big": _kuairec(
        "KuaiRec's big matrix",
        "big_matrix.csv",
        "timestamp",
        milliseconds=True,
        counts=(7176, 10_728, 12_530_806),
    ),
    # 181,992 of the small matrix' times are missing.
    "kuairec-small": _kuairec(
        "KuaiRec's small matrix", "small_matrix.csv", None, counts=(1411, 3327, 4_676_570)
    ),
}
