"""What is published where, and what is known about it beforehand."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_MOVIELENS_URL = "https://files.grouplens.org/datasets/movielens/"

_MOVIELENS_LICENCE = (
    "Licence: GroupLens allows research use and forbids redistribution without permission; see "
    "the README in the archive. Acknowledge it by citing F. M. Harper and J. A. Konstan, 'The "
    "MovieLens Datasets: History and Context', ACM Transactions on Interactive Intelligent "
    "Systems 5 (4), 2015, https://doi.org/10.1145/2827872."
)

_FILMTRUST_LICENCE = (
    "Licence: none is stated where LibRec offers the file; take it as for research only. Cite G. "
    "Guo, J. Zhang and N. Yorke-Smith, 'A Novel Bayesian Similarity Measure for Recommender "
    "Systems', IJCAI 2013, pages 2619-2625."
)

_KUAIREC_LICENCE = (
    "Licence: CC BY-SA 4.0. Cite C. Gao and others, 'KuaiRec: A Fully-Observed Dataset and "
    "Insights for Evaluating Recommender Systems', CIKM 2022, "
    "https://doi.org/10.1145/3511808.3557220."
)


@dataclass(frozen=True)
class Published:
    """One published data set: where it lies, how it reads, what must be in it.

    `member` is the file in the archive, `unpacked` where it lies once a user has unpacked it;
    `tables` are further names under which a copy may lie, with any separator and header.
    `milliseconds` says that times are fractions of seconds, to be counted in thousandths.
    """

    title: str
    url: str
    member: str
    unpacked: str
    licence: str
    checksum: str | None = None  # "md5:..." or "sha256:..."
    counts: tuple[int, int, int] | None = None  # users, items, rows
    n_rows_between: tuple[int, int] | None = None  # where counts are not fixed
    scale: tuple[float, ...] | None = None  # all values that a rating can have
    tables: tuple[str, ...] = ()
    sep: str = ","
    header: bool = False
    columns: Mapping[str, str | None] | None = None
    milliseconds: bool = False
    what: str = "ratings"
    items: str = "films"

    @property
    def archive(self) -> str:
        """The archive's name."""
        return self.url.rsplit("/", 1)[1]

    def local_copies(self, home: Path) -> list[Path]:
        """List where a copy may lie; the originals first, for they have timestamps."""
        names = (self.unpacked, self.archive, *self.tables)
        return list(dict.fromkeys(home / name for name in names))


def _movielens(title: str, folder: str, member: str, **more) -> Published:
    return Published(
        title,
        f"{_MOVIELENS_URL}{folder}.zip",
        member=f"{folder}/{member}",
        unpacked=f"{folder}/{member}",
        licence=_MOVIELENS_LICENCE,
        tables=(f"{folder}/ratings.csv", f"{folder}/ratings.csv.gz"),
        **more,
    )


def _kuairec(title: str, member: str, timestamp: str | None, **more) -> Published:
    return Published(
        title,
        "https://zenodo.org/records/18164998/files/KuaiRec.zip",
        member=f"KuaiRec 2.0/data/{member}",
        unpacked=f"KuaiRec 2.0/data/{member}",
        licence=_KUAIREC_LICENCE,
        checksum="md5:261550d472c48eff4990fb13c0e5bcf7",
        header=True,
        columns={
            "user": "user_id",
            "item": "video_id",
            "rating": "watch_ratio",
            "timestamp": timestamp,
        },
        what="watch ratios",
        items="videos",
        **more,
    )


PUBLISHED = {
    "movielens-100k": _movielens(
        "MovieLens 100K",
        "ml-100k",
        "u.data",
        sep="\t",
        checksum="md5:0e33842e24a9c977be4e0107933c0723",
        counts=(943, 1682, 100_000),
    ),
    "movielens-1m": _movielens(
        "MovieLens 1M",
        "ml-1m",
        "ratings.dat",
        sep="::",
        checksum="md5:c4d9eecfca2ab87c1945afe126590906",
        counts=(6040, 3706, 1_000_209),
    ),
    # GroupLens replaces this one from time to time, so neither a checksum nor counts hold.
    # "100,000 ratings", says its page; the releases so far had 100,004 to 100,836.
    "movielens-latest-small": _movielens(
        "MovieLens Latest Small",
        "ml-latest-small",
        "ratings.csv",
        header=True,
        n_rows_between=(50_000, 200_000),
        scale=tuple(np.arange(0.5, 5.5, 0.5)),
    ),
    # The SHA-256 is the one that OmniRec (github.com/ISG-Siegen/OmniRec) checks.
    "filmtrust": Published(
        "FilmTrust",
        "https://guoguibing.github.io/librec/datasets/filmtrust.zip",
        member="ratings.txt",
        unpacked="filmtrust/ratings.txt",
        licence=_FILMTRUST_LICENCE,
        sep=" ",
        checksum="sha256:de4a55cb4ae26f663d88e9ad1ba1fae2d0d6d7a7499e37dc5245bab470c2d13c",
        counts=(1508, 2071, 35_497),
        scale=tuple(np.arange(0.5, 4.5, 0.5)),
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
        "KuaiRec's small matrix",
        "small_matrix.csv",
        None,
        counts=(1411, 3327, 4_676_570),
    ),
}
