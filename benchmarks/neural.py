"""Measure FedNCF, PFedRec and FedRAP: ``python -m benchmarks.neural COMMAND``.

The protocols are those of `benchmarks._quality`. `choices` and `rating-choices` read no test row.

Data: MovieLens-100k and MovieLens-1M, in the folder --data-home or FEDRECSK_DATA. MovieLens-1M
also needs the leave-one-out files of MovieLens-1M of He et al. (2017) in this folder.
"""

from __future__ import annotations

import copy
import resource
import time

import numpy as np
import torch
from sklearn.base import clone
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import _quality
from benchmarks._command_line import command_line
from benchmarks._quality import split
from fedrecsk import Popularity
from fedrecsk.neural import FedNCF, FedRAP, PFedRec
from fedrecsk.neural._training import loss_function
from fedrecsk.simulation.run import Run

MODELS = {
    "FedNCF": FedNCF(),
    "FedNCF, 10 % of the clients": FedNCF(client_fraction=0.1),
    "PFedRec": PFedRec(),
    "FedRAP": FedRAP(),
}
BASELINE = {"popularity": Popularity()}
RATES = [{"client_fraction": 0.2, "learning_rate": one} for one in (0.001, 0.003, 0.01, 0.03)]
CHOICES = {
    "popularity": [{}],
    "FedNCF": RATES,
    "FedNCF, 10 % of the clients": [{}],
    "PFedRec": [{}, {"n_rounds": 50}, {"item_learning_rate": 5e3}, {"aggregation": "visits"}],
    "FedRAP": [{"independence": weight, "n_rounds": 12} for weight in (0.1, 0.01)],
}
RATINGS = {"FedNCF": FedNCF(loss="squared", learning_rate=0.001, n_rounds=200)}
RATING_CHOICES = [{}, {"learning_rate": 0.003}, {"learning_rate": 0.01}, {"n_factors": 4}]


class Timed:
    """Notes the CPU seconds of each round, and ends a fit before its last step."""

    class Ended(Exception):
        """Enough rounds."""

    def __init__(self):
        self.seconds = []

    def fit(self, model, X):
        """Fit; returns the CPU seconds of each round."""
        one_round, end = Run.round, Run.end
        watch = self

        def timed(run):
            start = time.process_time()
            seen = one_round(run)
            watch.seconds.append(time.process_time() - start)
            return seen

        def ended(run):
            raise watch.Ended

        Run.round, Run.end = timed, ended
        try:
            model.fit(X)
        except watch.Ended:
            pass
        finally:
            Run.round, Run.end = one_round, end
        return watch.seconds


def speed(options):
    """CPU seconds of a round, beside the plain loop over clients with torch.optim."""
    for name in options.data:
        X, _, _ = split(name, options)
        n_clients = len(np.unique(X[:, 0]))
        print(
            f"\n| {name} | clients | CPU s a round | a plain loop | times |\n|---|---|---|---|---|"
        )
        for label, model in chosen(options).items():
            # FedRAP's loop over clients is the authors' program (benchmarks.peers); cohorts have
            # sizes of their own here.
            if label in ("FedRAP", "FedNCF, 10 % of the clients"):
                continue
            plain = plain_seconds(label, model, X) * n_clients
            for share in (60 / n_clients, 1.0):
                one = clone(model).set_params(n_rounds=4, client_fraction=share, random_state=0)
                taken = min(Timed().fit(one, X)[1:])
                loop = plain * share
                row = f"| {label} | {share * n_clients:.0f} | {taken:.2f} | {loop:.1f} "
                print(row + f"| {loop / taken:.0f} |", flush=True)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"\npeak memory {peak:.2f} GiB", flush=True)


def plain_seconds(label, model, X, n_sampled=60):
    """CPU seconds per client of the authors' way: a copy of the module, a DataLoader, torch.optim.

    On random clients, with one thread.
    """
    rng, n_threads = np.random.default_rng(0), torch.get_num_threads()
    torch.set_num_threads(1)
    items = np.unique(X[:, 1], return_inverse=True)[1]
    n_items, users = items.max() + 1, np.unique(X[:, 0])
    server, seconds = model._recipe().make(1, n_items), []
    for user in rng.choice(users, n_sampled, replace=False):
        own = items[X[:, 0] == user]
        start = time.process_time()
        module = copy.deepcopy(server)
        unseen = np.setdiff1d(np.arange(n_items), own)
        drawn = rng.choice(unseen, model.n_negatives * len(own))
        targets = torch.cat([torch.ones(len(own)), torch.zeros(len(drawn))])
        examples = TensorDataset(torch.from_numpy(np.concatenate([own, drawn])), targets)
        batches = DataLoader(examples, model.batch_size, shuffle=True)
        for _ in range(model.local_epochs):
            for batch, target in batches:
                for optimizer in _optimizers(label, model, module, n_items):
                    optimizer.zero_grad()
                    scores = module(torch.zeros_like(batch), batch)
                    loss_function(model.loss)(scores, target).mean().backward()
                    optimizer.step()
        seconds.append(time.process_time() - start)
    torch.set_num_threads(n_threads)
    # The first client loads torch's optimisers.
    return float(np.mean(seconds[1:]))


def _optimizers(label, model, module, n_items):
    """Those of a client, made once."""
    if not hasattr(module, "optimizers"):
        if label.startswith("FedNCF"):
            made = [torch.optim.Adam(module.parameters(), lr=model.learning_rate)]
        else:
            rates = model._algorithm().training_for(n_items).rates
            score = torch.optim.SGD(module.score.parameters(), lr=rates["score*"])
            made = [score, torch.optim.SGD(module.item.parameters(), lr=rates["item*"])]
        module.optimizers = made
    return module.optimizers


def quality(options):
    """HR@10 and NDCG@10 on test rows."""
    _quality.lists(chosen(options), options, seeded)


def choices(options):
    """Neighbours of the defaults, on a row of each user cut from the training rows."""
    _quality.list_choices(chosen(options), CHOICES, options, seeded)


def ratings(options):
    """RMSE on random fifths of the ratings."""
    _quality.ratings(RATINGS, options, seeded)


def rating_choices(options):
    """RMSE of neighbours of the settings for ratings, on rows that `ratings` tests nowhere."""
    _quality.rating_choices(RATINGS, RATING_CHOICES, options, seeded)


def chosen(options):
    """The models to run."""
    models = BASELINE | MODELS
    return {label: model for label, model in models.items() if label in options.only}


def seeded(model, seed, options):
    """A copy with this seed, and with what the command line says that the model has."""
    given = {"n_rounds": options.rounds, "n_negatives": options.negatives, "random_state": seed}
    given |= {"n_jobs": options.n_jobs}
    known = model.get_params()
    return clone(model).set_params(
        **{name: one for name, one in given.items() if name in known and one is not None}
    )


COMMANDS = {
    "speed": speed,
    "quality": quality,
    "choices": choices,
    "ratings": ratings,
    "rating-choices": rating_choices,
}


def main(argv=None):
    """Run one of the benchmarks."""
    parser = command_line("neural", __doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--data", nargs="+", default=["100k", "1m"], choices=["100k", "1m"])
    names = [*BASELINE, *MODELS]
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=names)
    parser.add_argument("--rounds", type=int, help="instead of the methods' own number")
    parser.add_argument("--negatives", type=int, help="instead of the methods' own number")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--data-home")
    options = parser.parse_args(argv)
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
