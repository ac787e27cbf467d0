"""RFRec and RFRecF: replay a client from guesses of its data until it uploads the same.

Rated items show in their vectors: all others follow the server's. Adam's first step shows the
gradient's sign and, in its last digits, its size: enough to choose among whole ratings, not for
the vector. A second step depends on the ratio of two gradients, and determines both.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from fedrecsk.audit._server_view import Reconstruction, direction_of
from fedrecsk.federated._optimizers import adam

# Number of uploads to fit; later ones are replayed only, as an exact fit gains nothing from them.
FITTED = 2
# Half stars on a scale of five, to begin with; the fit finds any ratings.
HALVES = np.linspace(0, 1, 9)
# Differences above this are errors of sign, and all count the same.
CAP = 0.05
# Rounds of choosing ratings from the grid, and of both choosing and descending.
CHOICES, ROUNDS, DESCENTS = 4, 5, 15
# Mean difference of a number at which nothing is left to fit.
FITS = 1e-6
# A round that leaves more than this share of the misfit is the last.
WORTH_IT = 0.97
NUDGE = 1e-4
# Noise: rows to look at first for their common direction, and thresholds in standard deviations.
FIRST = 30
THRESHOLDS = np.linspace(1.0, 6.0, 26)


def rfrec(model, exchanges, n_items):
    """Find the rated items, and fit vector and ratings by replaying the client."""
    algorithm, noise = model._algorithm(), model._setting().local_dp
    seen = [_sent_vectors(one) for one in exchanges]
    items = rated_items(algorithm, exchanges, noise)
    if len(items) == 0:
        return Reconstruction(None, items)
    n_fitted = len(seen) if noise is not None else min(FITTED, len(seen))
    moves = _moves(algorithm, exchanges, items)
    last = [k for k, move in enumerate(moves) if move.what == "send"][n_fitted - 1]
    announced = exchanges[0].message
    replay = Replay(algorithm, announced, items, moves[: last + 1])
    uploads = np.stack([one[items] for one in seen[:n_fitted]])
    fit = fit_exactly if noise is None and replay.shows_sizes else fit_signs
    user, ratings = fit(replay, uploads)
    _, taken = Replay(algorithm, announced, items, moves).run(user[None], ratings[None])
    low, high, _ = announced["scale"].values
    return Reconstruction(taken[-1][0], items, low + ((high - low) or 1) * ratings)


def _sent_vectors(exchange):
    return exchange.message["item_vectors"].values + exchange.upload["item_vectors"].change


def rated_items(algorithm, exchanges, noise):
    """Return codes of the items whose vectors do not follow the server's."""
    if noise is None:
        # Before the first upload the others have not moved.
        size = (exchanges[0].upload["item_vectors"].change ** 2).sum(axis=1)
        return np.flatnonzero(size > 1e-12 * size.max(initial=0.0))
    common: Any = None
    excess, first = [], 0
    for one in exchanges:
        for round in range(first, one.key.round + 1):
            key = SimpleNamespace(shared=one.key.at(round))
            common = algorithm.share(common, one.message, key)
        first = one.key.round + 1
        excess.append(_sent_vectors(one) - common.sent)
    spread = noise.noise_std(common.sent.size) / np.sqrt(len(excess))
    return standing_out(np.mean(excess, axis=0), spread)


def standing_out(rows, spread):
    """Return the places of rows that are more than noise of this standard deviation."""
    # Most rows are noise; the others lie, with noise, along one direction.
    first = np.argsort(-(rows**2).sum(axis=1))[:FIRST]
    score = np.abs(rows @ direction_of(rows[first])) / spread
    # The threshold with the largest expected share of claims that are right or missed.
    n_claimed = (score[:, None] > THRESHOLDS).sum(axis=0)
    n_right = np.maximum(n_claimed - len(rows) * 2 * norm.sf(THRESHOLDS), 0)
    share = n_right / (n_right.max() + np.maximum(n_claimed - n_right, 0) + 1e-9)
    return np.flatnonzero(score > THRESHOLDS[share.argmax()])


# ------------------------------------------------------------------------------- the replay


class Move(NamedTuple):
    """One action of a client."""

    what: str  # "step" (of gradient descent), "mean" (a move to the server's) or "send"
    center: np.ndarray  # the server's last vectors of the client's own items
    rate: float = 0.0
    prox: float = 0.0  # weight of the distance to `center`


def _moves(algorithm, exchanges, items):
    """Return what the client has done from the first round to the last upload."""
    moves, first = [], 0
    for one in exchanges:
        center = one.message["item_vectors"].values[items].astype(np.float64)
        for round in range(first, one.key.round + 1):
            steps = _steps_of(algorithm, one.key.at(round))
            moves += [Move(what, center, *numbers) for what, *numbers in steps]
        first = one.key.round + 1
    return moves


def _steps_of(algorithm, key):
    """Return what a client of RFRec or RFRecF does in a round: what, rate, prox."""
    if not hasattr(algorithm, "coins"):
        return [("step", algorithm.learning_rate, algorithm.prox), ("send",)]
    match algorithm.coins(key):
        case 0, 0:
            rate = algorithm.learning_rate / (1 - algorithm.aggregation_probability)
            return [("step", rate, 0.0)]
        case 1, 0:
            return [("mean",)]
        case 0, 1:
            return [("send",)]
    return []


class Replay:
    """A client with one user whose ratings all weigh 1, replayed for many guesses at a time."""

    def __init__(self, algorithm, announced, items, moves):
        self.algorithm, self.moves = algorithm, moves
        low, high, self.level = (float(number) for number in announced["scale"].values)
        self.whole_ratings = (np.arange(low, high + 0.5) - low) / ((high - low) or 1.0)
        self.reg_items = np.zeros((len(items), algorithm.width))
        if "n_ratings" in announced:
            counts = announced["n_ratings"].values[items].astype(np.float64)
            reg_item, reg_bias = algorithm.item_penalties(counts)
            self.reg_items += reg_item[:, None]
            self.reg_items[:, 0] = reg_bias
        reg_user, reg_bias = algorithm.user_penalties(np.array([float(len(items))]))
        self.reg_user = np.repeat(np.float64(reg_user), algorithm.width)
        self.reg_user[0] = reg_bias[0]

    @property
    def shows_sizes(self):
        """Whether the gradients' sizes can be fitted; a single step of Adam hides them."""
        n_steps = sum(move.what == "step" for move in self.moves)
        return n_steps > 1 or self.algorithm.optimizer == "gd" or self.algorithm.EPSILON >= NUDGE

    def run(self, users, ratings, path=None):
        """Replay guesses, with a `path` in place of `users` if given: uploads, and the path."""
        algorithm, clip = self.algorithm, self.algorithm.clip
        user = Descent(algorithm, users)
        held = Descent(algorithm, np.repeat(self.moves[0].center[None], len(ratings), axis=0))
        sent, taken = [], []
        for move in self.moves:
            if move.what == "send":
                sent.append(held.now if clip is None else np.clip(held.now, -clip, clip))
            elif move.what == "mean":
                held.now = held.now + float(algorithm.share_of_way) * (move.center - held.now)
            else:
                user.now = user.now if path is None else path[len(taken)]
                taken.append(user.now)
                of_items, of_user = self._gradients(move, held.now, user.now, ratings)
                held.step(of_items, move.rate)
                user.step(of_user, move.rate)
        return np.stack(sent, axis=1), [*taken, user.now]

    def _gradients(self, move, held, user, ratings):
        """Return the gradients by the client's items and by its user's vector."""
        algorithm = self.algorithm
        partner, level = user.copy(), self.level
        if algorithm.biases:
            level, partner[:, 0] = level + user[:, :1], 1.0
        scores = level + np.matmul(held, partner[:, :, None])[:, :, 0]
        if algorithm.LINK == "sigmoid":
            estimates = expit(scores)
            slopes = -2 * (ratings - estimates) * estimates * (1 - estimates)
        else:
            slopes = -2 * (ratings - scores)
        of_items = slopes[:, :, None] * partner[:, None] + 2 * self.reg_items * held
        if move.prox:
            of_items += move.prox * (held - move.center)
        of_user = np.matmul(slopes[:, None], held)[:, 0]
        if algorithm.biases:
            of_user[:, 0] = slopes.sum(axis=1)
        return of_items, of_user + 2 * self.reg_user * user


class Descent:
    """Numbers that take steps of Adam or of plain gradient descent, as the model does."""

    def __init__(self, algorithm, now):
        self.algorithm, self.now = algorithm, np.array(now, dtype=np.float64)
        self.moments, self.n_steps = (0.0, 0.0), 0

    def step(self, gradient, rate):
        if self.algorithm.optimizer == "adam":
            self.n_steps += 1
            gradient, self.moments = adam(self.algorithm, self.moments, self.n_steps, gradient)
        self.now = self.now - rate * gradient


# ---------------------------------------------------------------------------------- the fit


def fit_exactly(replay, seen):
    """Return the user's first vector, and ratings in [0, 1], that upload what was seen."""
    fits = [Fit(replay, seen, HALVES, *start) for start in _starts(replay, seen)]
    for fit in fits:
        fit.run()
    best = min(fits, key=lambda fit: fit.misfit())
    return best.path[0], best.ratings


def fit_signs(replay, seen):
    """Return the same from noisy uploads or a single step of Adam: by signs and whole ratings."""
    user, ratings = next(_starts(replay, seen))
    fit = Fit(replay, seen, replay.whole_ratings, user, ratings, cap=np.inf)
    fit.choose_along(user)
    return user, fit.ratings


def _starts(replay, seen):
    """Yield first guesses of the user's vector and the ratings."""
    algorithm, moved = replay.algorithm, seen[0] - replay.moves[0].center
    if algorithm.biases:
        slopes = moved[:, 0]
        user = slopes @ moved / max(slopes @ slopes, 1e-300)
        user[0] = 0
        starts = [user]
    else:
        user = direction_of(moved)
        starts = [user, -user]
    if algorithm.optimizer == "adam":
        # Rows have about the same length along every factor, so only signs are known.
        starts = [0.8 * algorithm.INIT_STD * np.sign(user) for user in starts]
    for user in starts:
        above = moved[:, 0] > 0 if algorithm.biases else moved @ user > 0
        yield user, np.where(above, 0.9, 0.3)


class Fit:
    """Ratings, and independent users' vectors before each step, that are fitted to uploads."""

    # Independent, because a step follows from the one before by signs, which no descent crosses.

    def __init__(self, replay, seen, grid, user, ratings, cap=CAP):
        self.replay, self.seen, self.grid, self.cap = replay, seen, grid, cap
        self.user, self.ratings = user, ratings
        self.path: Any = None

    def run(self):
        """Choose ratings from the grid and descend, in turns."""
        self.choose_along(self.user)
        _, taken = self.replay.run(self.user[None], self.ratings[None])
        self.path = np.concatenate(taken[:-1])
        before = np.inf
        for _ in range(ROUNDS):
            self._descend()
            now = self.misfit()
            if now < FITS * self.seen.size or now > WORTH_IT * before:
                break
            self.ratings, before = self._choose(self.path[:, None]), now
        if self.misfit() > 10 * FITS * self.seen.size:
            # Not exact, so that ratings are at best close to possible ones.
            self.ratings = self._choose(self.path[:, None])

    def misfit(self):
        sent, _ = self.replay.run(None, self.ratings[None], self.path[:, None])
        return self._cost(sent).sum()

    def choose_along(self, user):
        """Choose ratings from the grid for this first vector, and move the user along them."""
        for _ in range(CHOICES):
            _, taken = self.replay.run(user[None], self.ratings[None])
            chosen = self._choose(taken[:-1])
            if np.array_equal(chosen, self.ratings):
                break
            self.ratings = chosen

    def _choose(self, path):
        ratings = np.repeat(self.grid[:, None], self.seen.shape[1], axis=1)
        sent, _ = self.replay.run(None, ratings, path)
        return self.grid[self._cost(sent).argmin(axis=0)]

    def _cost(self, sent):
        return np.minimum(np.abs(sent - self.seen), self.cap).sum(axis=(1, 3))

    def _descend(self):
        """Take steps of Gauss-Newton on all vectors and ratings, while the misfit falls."""
        current = self.misfit()
        for _ in range(DESCENTS):
            step, before = self._step(), (self.path, self.ratings)
            for damping in (1e-3, 3e-2, 1.0):
                self.path, self.ratings = step(damping)
                misfit = self.misfit()
                if misfit < current:
                    break
                self.path, self.ratings = before
            else:
                return
            gain, current = current - misfit, misfit
            if gain < 1e-4 * current or current < FITS * self.seen.size:
                return

    def _step(self):
        """Eliminate the ratings, and return a function that takes a step with some damping."""
        free, by_user, by_rating, left, weights = self._slopes()
        n, m = left.shape
        floor = 1e-9 * np.mean(weights * by_rating**2) + 1e-300
        own = (weights * by_rating**2).sum(axis=1) + floor
        mixed = np.einsum("nk,nkf->nf", weights * by_rating, by_user)
        pull = (weights * by_rating * left).sum(axis=1)
        flat = by_user.reshape(n * m, -1)
        matrix = (flat * weights.reshape(-1, 1)).T @ flat - (mixed / own[:, None]).T @ mixed
        side = flat.T @ (weights * left).ravel() - mixed.T @ (pull / own)
        scale = np.diag(matrix)

        def step(damping):
            damped = matrix + np.diag(damping * scale + 1e-9 * scale.max() + 1e-300)
            change = np.clip(np.linalg.solve(damped, side), -0.1, 0.1)
            path = self.path.copy()
            path[free] += change
            ratings = self.ratings + np.clip((pull - mixed @ change) / own, -0.3, 0.3)
            return path, np.clip(ratings, 0, 1)

        return step

    def _slopes(self):
        """Return derivatives by vectors and ratings, what is left, and weights, row by row."""
        unknown = np.ones(self.path.shape, dtype=bool)
        # A first bias is zero.
        unknown[0, 0] = not self.replay.algorithm.biases
        steps, columns = free = np.nonzero(unknown)
        n_guesses = len(steps) + 2
        path = np.repeat(self.path[None], n_guesses, axis=0)
        path[np.arange(1, n_guesses - 1), steps, columns] += NUDGE
        ratings = np.repeat(self.ratings[None], n_guesses, axis=0)
        ratings[-1] += NUDGE
        sent, _ = self.replay.run(None, ratings, list(path.swapaxes(0, 1)))
        slopes, left = (sent[1:] - sent[0]) / NUDGE, self.seen - sent[0]
        weights = np.where(np.abs(left) > self.cap, 0, 1 / np.maximum(np.abs(left), NUDGE))
        # A nudge that changes a sign shows no slope.
        weights[np.abs(slopes).max(axis=0) > CAP / NUDGE] = 0
        by_row = slopes.transpose(2, 1, 3, 0)
        by_row = by_row.reshape(len(by_row), -1, len(slopes))
        left, weights = (one.swapaxes(0, 1).reshape(len(by_row), -1) for one in (left, weights))
        return free, by_row[:, :, :-1], by_row[:, :, -1], left, weights
