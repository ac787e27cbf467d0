"""Fit RFRec's replayed client to what the real one has uploaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

# Half stars on a scale of five, to begin with; the fit finds any ratings.
HALVES = np.linspace(0, 1, 9)
# Differences above this are errors of sign, and all count the same; after a single step of Adam,
# in which only the last digits show anything else, above the second one.
CAP, CAP_OF_DIGITS = 0.05, 1e-5
# Rounds of choosing ratings from the grid, and of both choosing and descending.
CHOICES, ROUNDS, DESCENTS = 4, 5, 15
# Mean difference of a number at which nothing is left to fit.
FITS = 1e-6
# A round that leaves more than this share of the misfit is the last.
WORTH_IT = 0.97
NUDGE = 1e-4
# Factors to try for the length of a user's vector.
LENGTHS = np.geomspace(0.4, 2.5, 19)


def fitted(replay, seen):
    """The user's first vector, and ratings, with which a client uploads what was seen.

    Parameters
    ----------
    replay : Replay
    seen : ndarray of shape (n_uploads, n_rated, width)

    Returns
    -------
    user : ndarray of shape (width,)
    ratings : ndarray of shape (n_rated,)
        Scaled to [0, 1].
    """
    candidates = [_Fit(replay, seen, *start).run() for start in _starts(replay, seen)]
    best = min(candidates, key=lambda fit: fit.misfit())
    return best.path[0], best.ratings


def from_signs(replay, seen):
    """The same from noisy uploads: nothing but signs and the grid."""
    user, ratings = next(_starts(replay, seen))
    fit = _Fit(replay, seen, user, ratings, cap=np.inf)
    fit.choose_along(user)
    return user, fit.ratings


def _starts(replay, seen):
    """First guesses of the user's vector and the ratings."""
    model, moved = replay.model, seen[0] - replay.moves[0].center
    if model.biases:
        slopes = moved[:, 0]
        user = slopes @ moved / max(slopes @ slopes, 1e-300)
        user[0] = 0
        starts = [user]
    else:
        user = np.linalg.svd(moved, full_matrices=False)[2][0]
        starts = [user, -user]
    if model.optimizer == "adam":
        # Rows have about the same length along every factor, so only signs are known.
        starts = [0.8 * model.init_std * np.sign(user) for user in starts]
    for user in starts:
        above = moved[:, 0] > 0 if model.biases else moved @ user > 0
        yield user, np.where(above, 0.9, 0.3)


class _Fit:
    """A fit in progress.

    Users' vectors before the first step and before every later one are fitted independently:
    those of one step follow from the one before by signs, over which no descent leads.
    """

    def __init__(self, replay, seen, user, ratings, cap=CAP):
        self.replay, self.seen, self.ratings, self.cap = replay, seen, ratings, cap
        self.user = user
        self.path: Any = None
        n_steps = sum(move.what == "step" for move in replay.moves)
        model = replay.model
        self.digits = n_steps == 1 and model.optimizer == "adam" and model.epsilon < NUDGE
        # What shows too little for a fit must be read as whole numbers.
        is_coarse = self.digits or cap == np.inf
        self.grid = replay.whole_ratings if is_coarse else HALVES

    def run(self):
        if self.digits:
            self._read_digits()
        else:
            self.choose_along(self.user)
        _, taken = self.replay.run(self.user[None], self.ratings[None])
        self.path = np.concatenate(taken[:-1])
        before = np.inf
        for _ in range(ROUNDS):
            self._descend()
            now = self.misfit()
            if now < FITS * self.seen.size or now > WORTH_IT * before:
                break
            self.ratings, before = self._chosen([one[None] for one in self.path]), now
        if self.misfit() > 10 * FITS * self.seen.size or self.digits:
            # Not exact, so that ratings are at best close to possible ones.
            self.ratings = self._chosen([one[None] for one in self.path])
        return self

    def misfit(self):
        sent, _ = self.replay.run(None, self.ratings[None], [one[None] for one in self.path])
        return self._cost(sent).sum()

    def choose_along(self, user):
        """Choose ratings from the grid for this first vector, and move the user along them."""
        for _ in range(CHOICES):
            _, taken = self.replay.run(user[None], self.ratings[None])
            chosen = self._chosen(taken[:-1])
            if np.array_equal(chosen, self.ratings):
                break
            self.ratings = chosen

    def _chosen(self, path):
        ratings = np.repeat(self.grid[:, None], self.seen.shape[1], axis=1)
        sent, _ = self.replay.run(None, ratings, path)
        return self.grid[self._cost(sent).argmin(axis=0)]

    def _cost(self, sent):
        """Cost of each guess and item."""
        away = np.abs(sent - self.seen)
        costs = np.minimum(away, self.cap).sum(axis=(1, 3))
        if self.digits and self.replay.model.biases:
            # A bias that has moved the other way is out of the question.
            costs += (away[:, 0, :, 0] > CAP).astype(float)
        return costs

    def _read_digits(self):
        """Ratings and a vector from a single step of Adam, from what it lacks of a whole step."""
        self.cap = CAP_OF_DIGITS
        move = self.replay.moves[0]
        lacking = move.rate - np.abs(self.seen[0] - move.center)
        # About learning rate times epsilon / |gradient|.
        sizes = 1 / np.maximum(np.median(lacking, axis=0), 1e-9)
        sizes[0] = sizes[0] if not self.replay.model.biases else 0
        user = np.sign(self.user) * sizes / sizes.max()
        user *= np.abs(self.user).mean() / np.abs(user).mean()
        tries = []
        for length in LENGTHS:
            self.choose_along(length * user)
            sent, _ = self.replay.run(length * user[None], self.ratings[None])
            tries.append((self._cost(sent).sum(), length, self.ratings))
        _, length, self.ratings = min(tries, key=lambda one: one[0])
        self.user = length * user

    def _descend(self):
        """Steps of Gauss-Newton on all users' vectors and ratings, while the misfit falls."""
        current = self.misfit()
        for _ in range(DESCENTS):
            step = self._step()
            for more in (1e-3, 3e-2, 1.0):
                path, ratings = step(more)
                before = self.path, self.ratings
                self.path, self.ratings = path, ratings
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
        """A function that gives path and ratings after a step with some damping.

        Ratings, each of which shows in one row only, are eliminated first.
        """
        by_user, by_rating, left, weights = self._slopes()
        n, m = left.shape
        floor = 1e-9 * np.mean(weights * by_rating**2) + 1e-300
        own = (weights * by_rating**2).sum(axis=1) + floor
        mixed = np.einsum("nk,nkf->nf", weights * by_rating, by_user)
        pull = (weights * by_rating * left).sum(axis=1)
        flat = by_user.reshape(n * m, -1)
        matrix = (flat * weights.reshape(-1, 1)).T @ flat - (mixed / own[:, None]).T @ mixed
        side = flat.T @ (weights * left).ravel() - mixed.T @ (pull / own)
        scale = np.diag(matrix)

        def step(more):
            damped = matrix + np.diag(more * scale + 1e-9 * scale.max() + 1e-300)
            change = np.clip(np.linalg.solve(damped, side), -0.1, 0.1)
            path = self.path.copy()
            path[self._free] += change
            ratings = self.ratings + np.clip((pull - mixed @ change) / own, -0.3, 0.3)
            return path, np.clip(ratings, 0, 1)

        return step

    def _slopes(self):
        """Derivatives by vectors and ratings, what is left, and weights, row by row."""
        steps, columns = self._free
        n_guesses = len(steps) + 2
        path = np.repeat(self.path[None], n_guesses, axis=0)
        path[np.arange(1, n_guesses - 1), steps, columns] += NUDGE
        ratings = np.repeat(self.ratings[None], n_guesses, axis=0)
        ratings[-1] += NUDGE
        sent, _ = self.replay.run(None, ratings, list(path.swapaxes(0, 1)))
        slopes, left = (sent[1:] - sent[0]) / NUDGE, self.seen - sent[0]
        floor = 1e-8 if self.digits else NUDGE
        weights = np.where(np.abs(left) > self.cap, 0, 1 / np.maximum(np.abs(left), floor))
        # A nudge that changes a sign shows no slope.
        weights[np.abs(slopes).max(axis=0) > CAP / NUDGE] = 0
        by_row = slopes.transpose(2, 1, 3, 0)
        by_row = by_row.reshape(len(by_row), -1, len(slopes))
        left, weights = (one.swapaxes(0, 1).reshape(len(by_row), -1) for one in (left, weights))
        return by_row[:, :, :-1], by_row[:, :, -1], left, weights

    @property
    def _free(self):
        """Steps and columns of the users' numbers that are not known; a first bias is zero."""
        free = np.ones(self.path.shape, dtype=bool)
        free[0, 0] = not self.replay.model.biases
        return np.nonzero(free)
