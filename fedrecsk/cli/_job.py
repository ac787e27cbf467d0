"""The main job: read or generate rows, split, fit each model, score it, recommend."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba.core import event
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from fedrecsk import BiasOnly, FedEB, Federation, ImplicitALS, Popularity, RFRec, SVDpp, datasets
from fedrecsk._utils.kernels import timed
from fedrecsk._utils.user_warnings import warn
from fedrecsk.cli import PUBLISHED, READ, is_federated, predicts_ratings
from fedrecsk.metrics import evaluate_ranking
from fedrecsk.model_selection import UserHoldout
from fedrecsk.privacy import CentralDP, LaplaceMechanism

FEWEST_ROWS = 10
K = 10
# Generated ratings for models with noise on the sums: among many users noise averages out.
MANY = {"n_users": 2_000, "n_items": 1_682, "n_ratings": 212_000}
SEEN = {
    "exact sums": "sums of uploads in plaintext",
    "noisy sums": "sums of uploads with the noise of clients",
    "encrypted sums": "encrypted sums of uploads",
    "single uploads": "each client's uploads",
}


class CompilationNotice(event.Listener):
    """Prints once that numba compiles."""

    is_printed = False

    def on_start(self, event: Any) -> None:
        """Print the notice when the first function is compiled."""
        if not self.is_printed:
            print("Compiling numerical code. Later runs load it from disk.")
            self.is_printed = True

    def on_end(self, event: Any) -> None:
        """Do nothing: the seconds of fits leave compilation out."""


class Rows(NamedTuple):
    """A table of interactions, its ratings, and where both came from."""

    X: Any
    y: Any
    name: str


def run(options: argparse.Namespace) -> None:
    """Do the job and print the results; raise if the method's parameters are wrong."""
    ratings = predicts_ratings(options.method)
    rows = _rows(options, ratings)
    if ratings:
        order = np.random.default_rng(options.seed).permutation(len(rows.X))
        train, test = order[len(order) // 5 :], order[: len(order) // 5]
    else:
        train, test = next(UserHoldout(0.2, random_state=options.seed).split(rows.X))
    n_users, n_items = (len(np.unique(column)) for column in rows.X[:, :2].T)
    what = "interactions" if rows.y is None else "ratings"
    whose = "of the rows" if ratings else "of each user's rows"
    print(
        f"Data: {rows.name}, {len(rows.X):,} {what} of {n_items:,} items by {n_users:,} users; "
        f"20% {whose} held out at random."
    )

    model = _model(options, rows)
    y = None if rows.y is None else rows.y[train]
    # A wrong setting is named before the other models take their time.
    model._prepared(rows.X[train], y)
    others = [BiasOnly, SVDpp] if ratings else [Popularity, ImplicitALS]
    if options.method is FedEB:
        others.append(RFRec)
    models = [_with_seed(other, options) for other in others if other is not options.method]
    metrics = ("RMSE", "MAE") if ratings else (f"precision@{K}", f"NDCG@{K}", f"hit rate@{K}")
    table, notice = [("", "", *metrics, "kB up/client", "seconds")], CompilationNotice()
    for one in [*models, model]:
        with progress(one), event.install_listener("numba:compile", notice):
            _, seconds = timed(one.fit, rows.X[train], y)
        kind = "federated" if is_federated(type(one)) else "centralised"
        ledger = getattr(one, "communication_", None)
        sent = "" if ledger is None else f"{ledger.bytes_up / len(ledger.client_ids) / 1000:,.1f}"
        scores = [f"{score:.4f}" for score in _score(one, rows, test, ratings)]
        table.append((type(one).__name__, kind, *scores, sent, f"{seconds:.1f}"))
    widths = [-15, -12, *(max(9, len(name) + 2) for name in table[0][2:])]
    lines = ["".join(f"%{w}s" % c for c, w in zip(row, widths, strict=True)) for row in table]
    print("", lines[0], "-" * sum(map(abs, widths)), *lines[1:], "", sep="\n")
    _print_recommendations(model, rows.X[train])
    if hasattr(model, "communication_"):
        _print_communication(model.communication_)
        _print_privacy(model.privacy_)


# ------------------------------------------------------------------------------------ rows


def _rows(options: argparse.Namespace, ratings: bool) -> Rows:
    """Return the rows to learn from; end the program if they are wrong."""
    try:
        rows = _load(options, ratings)
        if not ratings:
            rows = _positives(rows, options.threshold)
    except (OSError, ValueError) as error:
        options.error(f"--data {options.data}: {error}")
        raise
    problem = None
    if ratings and rows.y is None:
        problem = "no ratings; take a ranking method, such as --method LocALS"
    elif len(rows.X) < FEWEST_ROWS:
        what = "with a rating" if ratings else "that count"
        problem = f"too few rows {what}: {len(rows.X)}; {FEWEST_ROWS} are needed"
    if problem:
        options.error(f"--data {options.data} has {problem}")
    return rows


def _load(options: argparse.Namespace, ratings: bool) -> Rows:
    """Generate, fetch or read the rows."""
    data, home = options.data, options.data_home
    if (options.columns or options.read) and data in {"generated", *PUBLISHED}:
        option = "--columns" if options.columns else "--read"
        raise ValueError(f"{option} is for a file of yours")
    if data == "generated" and ratings:
        size = {} if options.epsilon is None else MANY
        return Rows(*datasets.make_ratings(**size, random_state=options.seed), data)
    if data == "generated":
        return Rows(datasets.make_interactions(random_state=options.seed), None, data)
    name = data.removeprefix("ml-")
    if not Path(data).exists():
        name = name.lower().removeprefix("ml-")
    if name in PUBLISHED and hasattr(datasets, f"fetch_{name}"):
        X, y = getattr(datasets, f"fetch_{name}")(data_home=home, return_X_y=True)
        return Rows(X, y, name)
    if name in PUBLISHED:
        X, y = datasets.fetch_movielens(name, data_home=home, return_X_y=True)
        return Rows(X, y, f"MovieLens {name}")
    with _file(data) as path:
        try:
            read = {"columns": options.columns, **dict(options.read)}
            X, y = datasets.load_ratings(path, **read, return_X_y=True)
        except ValueError as error:
            # A copy of a pipe has a name that says nothing.
            raise ValueError(_with_options(str(error).replace(f"{path.parent}/", ""))) from error
        return Rows(X, y, path.name)


@contextmanager
def _file(data: str) -> Iterator[Path]:
    """Yield the path of a regular file with the rows, because it is read twice."""
    path = Path(data).expanduser()
    if data != "-" and not path.exists():
        raise FileNotFoundError(
            f"no such file, nor one of generated, {', '.join(PUBLISHED)} (--help shows "
            "what they are)"
        )
    if data != "-" and (path.is_file() or path.is_dir()):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name if data != "-" else "stdin")
        copy.write_bytes(sys.stdin.buffer.read() if data == "-" else path.read_bytes())
        yield copy


def _positives(rows: Rows, threshold: float | None) -> Rows:
    """Return the rows that count as positives, without their ratings."""
    if rows.y is None and threshold is not None:
        raise ValueError("there are no ratings that --threshold could apply to")
    if rows.y is None:
        return rows
    kept = rows.y > 0 if threshold is None else rows.y >= threshold
    if not kept.any():
        least = "is above 0" if threshold is None else f"reaches --threshold {threshold:g}"
        raise ValueError(f"no rating {least}; most is {rows.y.max():g}")
    if threshold is None and not kept.all():
        warn(f"{np.mean(~kept):.0%} of the rows have a rating of 0 or less and are left out.")
    return Rows(rows.X[kept], None, rows.name)


# ---------------------------------------------------------------------------------- models


def _with_seed(method: type, options: argparse.Namespace) -> Any:
    model = method()
    known = model.get_params(deep=False)
    given = {"random_state": options.seed, "n_jobs": options.n_jobs}
    return model.set_params(**{name: value for name, value in given.items() if name in known})


def _model(options: argparse.Namespace, rows: Rows) -> Any:
    """Return the chosen method with its parameters."""
    model = _with_seed(options.method, options)
    if options.method is FedEB:
        model.set_params(client_fraction=0.1)
    if options.epsilon is not None:
        clip = 1.0 if options.clip is None else options.clip
        noise = {"central_dp": CentralDP(clip=clip, epsilon=options.epsilon)}
    elif options.scale is not None:
        clip = 5 * options.scale if options.clip is None else options.clip
        noise = {"local_dp": LaplaceMechanism(clip=clip, scale=options.scale)}
    else:
        return model.set_params(**options.parameters)
    known = model.get_params(deep=False)
    # The catalogue and the scale of a public data set are public.
    public: dict[str, Any] = {"items": np.unique(rows.X[:, 1]).tolist()}
    if "rating_scale" in known and rows.y is not None:
        public["rating_scale"] = (float(rows.y.min()), float(rows.y.max()))
        if known.get("aggregation") == "holders":
            public["aggregation"] = "clients"
    model.set_params(federation=Federation(**noise), **public)
    return model.set_params(**options.parameters)


def _score(model: Any, rows: Rows, test: np.ndarray, ratings: bool) -> list[float]:
    if ratings and rows.y is not None:
        predicted, y = model.predict(rows.X[test]), rows.y[test]
        return [root_mean_squared_error(y, predicted), mean_absolute_error(y, predicted)]
    metrics, k = ("precision", "ndcg", "hit_rate"), min(K, model.n_items_)
    return list(evaluate_ranking(model, rows.X[test], metrics=metrics, k=k).values())


# ---------------------------------------------------------------------------------- output


@contextmanager
def progress(model: Any) -> Iterator[None]:
    """Show a progress bar while the model fits, where that is possible."""
    if not shows_progress():
        yield
        return
    from sklearn.callback import ProgressBar

    model.set_callbacks(ProgressBar())
    try:
        yield
    finally:
        model.set_callbacks()


def shows_progress() -> bool:
    """Return whether there are progress bars: on a terminal, if rich is installed."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    needed = ("rich", "sklearn.callback")  # callbacks came with scikit-learn 1.9
    return is_terminal and all(map(importlib.util.find_spec, needed))


def notes() -> Callable[..., None]:
    """Return a function that prints warnings as notes, each once though several models fit."""
    seen = set()

    def show(message, *args, **kwargs):
        if str(message) not in seen:
            seen.add(str(message))
            print(f"Note: {_with_options(str(message))}", file=sys.stderr)

    return show


def _with_options(text: str) -> str:
    """Replace parameters by the options, in a message of `load_ratings`."""

    def option(match: re.Match) -> str:
        return "--columns " + match[1].replace("'", "").replace(": ", "=").replace(", ", ",")

    text = re.sub(r"columns=\{(.*?)\}", option, text)
    return re.sub(rf"(?<!')\b({'|'.join(READ)})=", r"--read \1=", text)


def _print_recommendations(model: Any, X: np.ndarray) -> None:
    """Recommend to the user with the fewest rows."""
    users, n_rows = np.unique(X[:, 0], return_counts=True)
    user, n_left = users[n_rows.argmin()], model.n_items_ - int(n_rows.min())
    if n_left > 0:
        items, scores = model.recommend([user], n_recommendations=min(5, n_left))
        shown = ", ".join(f"{i} ({s:.3g})" for i, s in zip(items[0], scores[0], strict=True))
        print(f"{type(model).__name__} recommends to user {user}: {shown}.")


def _print_communication(ledger: Any) -> None:
    n_clients = len(ledger.client_ids)
    n_rounds = sum(entry["phase"] == "round" for entry in ledger.entries)
    up, down, direct = ledger.bytes_up, ledger.bytes_down, ledger.bytes_device_to_device
    also = f" {_bytes(direct)} from device to device." if direct else ""
    print(
        f"Communication: {_bytes(up)} up and {_bytes(down)} down in {n_rounds:,} "
        f"round{'s' * (n_rounds != 1)} with {n_clients:,} clients; {_bytes(up / n_clients)} up and "
        f"{_bytes(down / n_clients)} down per client.{also}"
    )


def _print_privacy(report: Any) -> None:
    sees = f"Privacy: the server sees {SEEN[report.server_sees]}"
    uploads = f"{report.n_uploads:,} upload{'s' * (report.n_uploads != 1)}"
    if report.mechanism == "none":
        print(f"{sees}. Without noise, epsilon is infinite.")
        return
    if report.is_central:
        epsilon = (
            f"{sees}, and adds noise before it publishes the model. Epsilon is "
            f"{_plain(report.epsilon)} for all the data of one client, with delta "
            f"{report.delta:g}, over {uploads}"
        )
    else:
        epsilon = (
            f"{sees}, with {report.mechanism.title()} noise. Epsilon is "
            f"{_plain(report.epsilon_per_coordinate)} for one coordinate of one upload, and "
            f"{_plain(report.epsilon)} in total: {report.n_coordinates:,} coordinates in "
            f"{uploads} per client"
        )
    print(f"{epsilon}, if the catalogue and the scale, here taken from the data, are public.")


def _plain(number: float) -> str:
    """Write four digits of a small number, a large one in full: 6,728,000, not 6.728e+06."""
    return f"{number:.4g}" if number < 1000 else f"{number:,.0f}"


def _bytes(number: float) -> str:
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = next((p for p in range(len(units)) if number < 999.5 * 1000**p), len(units) - 1)
    return f"{number / 1000**power:.3g} {units[power]}"
