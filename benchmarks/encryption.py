"""Measure secure sums and networks: ``python -m benchmarks.encryption fits|growth|table3|network``.

`fits` compares bytes and seconds of plaintext, SecAggPlus, CKKS and Paillier on the same fits to
MovieLens-1M with all clients. `growth` shows how one sum grows with the clients. `table3` repeats
CoLR's Table 3: random updates of MovieLens-1M's 3,706 items, 60 clients per round, one thread.
`network` repeats the communication column of its Table 2, from the ledgers of fits.

Data: none needed for `growth` and `table3`. The others need MovieLens-1M, in the folder --data-home
or FEDRECSK_DATA. All but `network` need the extra fedrecsk[privacy].
"""

from __future__ import annotations

import secrets
import time
import warnings

import numpy as np
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from benchmarks._command_line import command_line
from fedrecsk import FedEB, Federation, LocALS, PrivFedEB, RFRec
from fedrecsk.compression import LowRank, TopK
from fedrecsk.datasets import fetch_movielens, make_ratings
from fedrecsk.federated.colr import CoLR
from fedrecsk.federated.fedmf import FedMF
from fedrecsk.privacy import CKKS, Paillier, SecAggPlus, secure_sum
from fedrecsk.privacy._secagg_protocol import (
    KEY_BYTES,
    Identity,
    MaskingClient,
    MaskingServer,
    Ring,
    bytes_of_sum,
)
from fedrecsk.protocol.devices import PROFILES
from fedrecsk.protocol.network_time import estimate_training_time

N_ITEMS = 3706
N_CLIENTS = 60
N_FACTORS = 64
# What the paper calls a KB, by its plaintext sizes.
KIB = 1024
# Client seconds, server seconds, ciphertext KiB: CoLR, Table 3.
PAPER_TABLE_3 = {
    "FedMF": (0.93, 2.39, 24_587),
    "CoLR@1": (0.07, 0.24, 3_073),
    "CoLR@2": (0.07, 0.25, 3_073),
    "CoLR@4": (0.07, 0.25, 3_073),
    "CoLR@8": (0.08, 0.25, 3_073),
    "CoLR@16": (0.15, 0.51, 6_147),
    "CoLR@32": (0.30, 1.03, 12_293),
    "Top-K@1/64": (88.20, 88.06, 3_028),
}
# Minutes of 1,000 rounds: CoLR, Table 2.
PAPER_TABLE_2 = {
    "FedMF": 80.43,
    "CoLR@1": 1.26,
    "CoLR@2": 2.51,
    "CoLR@4": 5.03,
    "CoLR@8": 10.05,
    "CoLR@16": 20.11,
    "CoLR@32": 40.21,
    "SVD@1": 1.26,
    "SVD@4": 5.03,
    "SVD@32": 40.21,
    "Top-K@1": 2.51,
    "Top-K@4": 10.05,
    "Top-K@16": 40.21,
}


# Methods in which all clients send whole matrices, with the largest number that a client sends.
FITS = {
    "CoLR@1, 3 rounds": (CoLR(1, n_factors=N_FACTORS, n_rounds=3, client_fraction=1.0), 16),
    "RFRec, 5 rounds": (RFRec(n_rounds=5), 16),
    "LocALS, 5 rounds": (LocALS(n_rounds=5, upload="all"), 16),
    "FedEB, 5 rounds": (FedEB(n_rounds=5, upload="all"), 64),
    "PrivFedEB": (PrivFedEB(), 16),
}


def fits(options):
    """Bytes and seconds of the same fits under each kind of secure sum.

    CPU seconds of the simulation, which really encrypts two clients per sum, and of one of these
    per sum; `growth` has those of a client that masks. Paillier takes minutes for each upload of
    more than a few numbers, so that only CoLR's are encrypted by it.
    """
    X, y = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)
    X = X[:, :2]
    columns = "fit | sums | MB up | MB down | times plaintext | simulation s | times plaintext"
    columns += " | a client's s per sum"
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}", flush=True)
    warnings.simplefilter("ignore")  # Five rounds are too few for good models.
    for name in options.fits:
        model, max_abs = FITS[name]
        schemes = [None, SecAggPlus(max_abs=max_abs), CKKS(scale_bits=28)]
        if name.startswith("CoLR") and "paillier" in options.schemes:
            schemes.append(Paillier(fraction_bits=30))
        plain = None
        for scheme in schemes:
            federation = Federation(secure_aggregation=scheme)
            fitted = clone(model).set_params(random_state=0, federation=federation)
            # The first fit compiles.
            sizes, seconds = [_timed_fit(fitted, X, y) for _ in range(2)][-1]
            plain = plain or (sum(sizes), seconds)
            up, down = (f"{size / 1e6:,.0f}" for size in sizes)
            seconds_of_one = getattr(getattr(fitted, "encryption_", None), "client_seconds", None)
            own = "" if seconds_of_one is None else f"{seconds_of_one:.3f}"
            print(
                f"| {name} | {'plaintext' if scheme is None else type(scheme).__name__} | {up} | "
                f"{down} | {sum(sizes) / plain[0]:.2f} | {seconds:.2f} | "
                f"{seconds / plain[1]:.2f} | {own} |",
                flush=True,
            )


def _timed_fit(model, X, y):
    """Return bytes up and down, and CPU seconds."""
    start = time.process_time()
    ledger = model.fit(X, y).communication_
    return (ledger.bytes_up, ledger.bytes_down), time.process_time() - start


def growth(options):
    """What one sum of 237,184 numbers costs each client and the server, by the clients.

    MovieLens-1M's items with 64 factors. Seconds are those of one client and of one of the server's
    vectors, measured on real masks among 30 clients and scaled to the neighbours of the plan; the
    simulated seconds are those of RFRec's two rounds on as many invented clients.
    """
    n_values, measured_with = N_ITEMS * N_FACTORS, 30
    seconds = _masking_seconds(n_values, measured_with)
    warnings.simplefilter("ignore")  # Two rounds are too few for good models.
    columns = "clients | neighbours | threshold | bits | kB beside the vector | times float32"
    columns += " | client s | server s per client | CKKS: times float32 | Paillier"
    columns += " | simulated: plaintext s | masked s"
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}", flush=True)
    for n_clients in (10, 100, 1000, 6040, 20_000, 100_000):
        plan = SecAggPlus().plan(n_clients)
        ring = Ring(np.arange(n_clients), plan.n_neighbors)
        up, down = bytes_of_sum(plan, ring, np.ones(n_clients, dtype=bool), n_values)
        beside = int((up + down).max()) - plan.nbytes(n_values)
        plain = 2 * 4 * n_values
        ratio = (up.max() + down.max() + 4 * n_values) / plain
        client = seconds[0] * (plan.n_neighbors + 1) / measured_with
        others = [2 * s.ciphertext_bytes(n_values) / plain for s in (CKKS(), Paillier())]
        print(
            f"| {n_clients:,} | {plan.n_neighbors} | {plan.threshold} | {plan.n_bits} | "
            f"{beside / 1e3:.1f} | {ratio:.3f} | {client:.3f} | {seconds[1]:.3f} | "
            f"{others[0]:.1f} | {others[1]:.1f} | {_simulated(n_clients)} |",
            flush=True,
        )


def _simulated(n_clients):
    """Return CPU seconds of a fit in plaintext and under masks, as cells."""
    sizes = {"n_users": n_clients, "n_items": 500, "n_ratings": 20 * n_clients}
    X, y = make_ratings(**sizes, random_state=0)
    schemes = None, SecAggPlus()
    models = [RFRec(n_rounds=2, federation=Federation(secure_aggregation=s)) for s in schemes]
    return " | ".join(f"{_timed_fit(one, X, y)[1]:.2f}" for one in models)


def _masking_seconds(n_values, n_clients):
    """Return seconds of a client and of the server per client, of real masks."""
    plan = SecAggPlus().plan(n_clients)
    session, operator_secret = secrets.token_bytes(16), secrets.token_bytes(KEY_BYTES)
    identities = [Identity.new(operator_secret, str(code)) for code in range(n_clients)]
    clients = [MaskingClient(plan, session, code) for code in range(n_clients)]
    vectors = [np.full(n_values, code) for code in range(n_clients)]
    ring, on_clients = Ring(np.arange(n_clients), plan.n_neighbors), 0.0

    def ask(stage, messages):
        nonlocal on_clients
        begun = time.thread_time()
        answers = {
            code: clients[code].answer(stage, message, identities[code], vectors[code])
            for code, message in messages.items()
        }
        on_clients += time.thread_time() - begun
        return answers

    start = time.thread_time()
    MaskingServer(plan, session, ring, n_values).run(ask)
    server = time.thread_time() - start - on_clients
    return on_clients / n_clients, server / n_clients


def table3(options):
    """Seconds, bytes and error of one secure sum compared with the paper's."""
    columns = (
        "update | scheme | client s | server s | ciphertext KiB | plaintext KiB | ratio | "
        "with counts KiB | error of the mean | paper: client s | server s | KiB | ours / paper"
    )
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}", flush=True)
    if "ckks" in options.schemes:
        ranks = {f"CoLR@{rank}": rank for rank in (1, 2, 4, 8, 16, 32)} | {"FedMF": N_FACTORS}
        for update, rank in ranks.items():
            # FedMF sends as many numbers as CoLR@64 would.
            _row(update, CKKS(), N_ITEMS * rank, options.repeats)
    if "paillier" in options.schemes:
        for parameters in ({}, {"key_bits": 2048, "allow_weak": True}):
            packed, single = Paillier(**parameters), Paillier(**parameters, packing=False)
            _row("CoLR@1", packed, N_ITEMS, options.repeats)
            _row("CoLR@4", packed, 4 * N_ITEMS, options.repeats)
            # Its positions are sent in plaintext, and must be the same for all clients.
            _row("Top-K@1/64", single, N_ITEMS, options.repeats, n_counts=0)


def measured(scheme, n_values, repeats, n_clients=N_CLIENTS):
    """Seconds, KiB and error of a secure sum of uploads of random numbers."""
    keys = scheme.generate_keys(n_clients)
    # Paillier's time is proportional to the number of plaintexts, so timing a few is enough.
    n_timed = n_values if isinstance(scheme, CKKS) else min(n_values, 4 * scheme.values_per_block)
    scale = scheme._n_blocks(n_values) / scheme._n_blocks(n_timed)
    vectors = np.random.default_rng(0).normal(scale=0.1, size=(n_clients, n_timed))
    runs = [secure_sum(keys, vectors) for _ in range(repeats)]
    return {
        "client s": scale * min(run.client_seconds for run in runs),
        "server s": scale * min(run.server_seconds for run in runs),
        "ciphertext KiB": scale * runs[0].upload_bytes / n_clients / KIB,
        "error": max(run.error for run in runs) / n_clients,
    }


def _row(update, scheme, n_values, repeats, n_counts=N_ITEMS):
    client, server, ciphertext, error = measured(scheme, n_values, repeats).values()
    plaintext = n_values * 4 / KIB
    counted = scheme.ciphertext_bytes(n_values + n_counts) / KIB
    paper = PAPER_TABLE_3[update]
    beside = "{:g} | {:g} | {:,}".format(*paper)
    print(
        f"| {update} | {scheme} | {client:.3f} | {server:.3f} | {ciphertext:,.0f} | "
        f"{plaintext:,.0f} | {ciphertext / plaintext:.1f} | {counted:,.0f} | {error:.1e} | "
        f"{beside} | {ciphertext / paper[2]:.3f} |",
        flush=True,
    )


def network(options):
    """Minutes of communication in 1,000 rounds, as the papers count and as the ledger counts.

    All rounds after the first cost the same, so the last of a few is taken 1,000 times.
    """
    X = fetch_movielens("1m", data_home=options.data_home, return_X_y=True)[0][:, :2]
    print(
        "| method | paper | payload | every byte, if clients follow every round | every byte | "
        "4g | broadband |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in options.methods:
        paper = PAPER_TABLE_2[name]
        model = _method(name).set_params(n_rounds=options.rounds, random_state=0).fit(X)
        cells = (
            _minutes(model, down="payload_down", up="payload_up"),
            _minutes(model, down="bytes_down_latest"),
            _minutes(model),
            _minutes(model, "4g"),
            _minutes(model, "broadband"),
        )
        row = " | ".join(f"{cell:.2f}" for cell in cells)
        print(f"| {name} | {paper:.2f} | {row} |", flush=True)


def training_minutes(model, X, seed, quick=False):
    """Minutes of 1,000 rounds as the paper counts them, with a client's seconds measured here."""
    model.set_params(n_rounds=1, random_state=seed).fit(X)  # compiles
    model.set_params(n_rounds=4 if quick else 12).fit(X)
    client = model.communication_.client_seconds
    sent = _minutes(model, down="payload_down", up="payload_up")
    work = 1000 * PROFILES["paper"].computation_seconds(client) / 60
    return {"communication": sent, "computation": work, "total": sent + work}


def _minutes(model, profile="paper", **columns):
    idle = clone(PROFILES[profile]).set_params(slowdown=0.0, overhead=0.0)
    time = estimate_training_time(model, idle, rounds_only=True, **columns)
    return 1000 * time.round_seconds[-1] / 60


def _method(name):
    kind, _, rank = name.partition("@")
    if kind == "CoLR":
        return CoLR(int(rank), n_factors=N_FACTORS)
    compressions = {"FedMF": lambda: None, "SVD": lambda: LowRank(int(rank))}
    compressions["Top-K"] = lambda: TopK(int(rank) / N_FACTORS)
    return FedMF(N_FACTORS, federation=Federation(compression=compressions[kind]()))


def main(argv=None):
    """Run one of the benchmarks."""
    commands = {f.__name__: f for f in (fits, growth, table3, network)}
    parser = command_line("encryption", __doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--data-home")
    parser.add_argument("--methods", nargs="+", default=list(PAPER_TABLE_2), choices=PAPER_TABLE_2)
    parser.add_argument(
        "--schemes", nargs="+", default=["ckks", "paillier"], choices=("ckks", "paillier")
    )
    parser.add_argument("--fits", nargs="+", default=list(FITS), choices=FITS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    with threadpool_limits(1):
        commands[options.command](options)


if __name__ == "__main__":
    main()
