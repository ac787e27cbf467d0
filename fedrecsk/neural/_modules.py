"""Models of a torch module: the averaged parameters, and each user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, vmap
from torch.nn import functional

from fedrecsk.models import Model
from fedrecsk.neural._layout import blueprint, own_settings

# Pairs that are scored at once, each user's with all items, and private numbers of single pairs.
PAIRS, NUMBERS = 2**16, 2**20


@dataclass(frozen=True, eq=False, kw_only=True)
class ModuleScores(Model):
    """Scores of a module, given the parameters of all users and the private ones of each."""

    fitted: Mapping[str, Any]
    # Whether torch computes in double precision.
    is_double: bool = False

    def score_pairs(self, users, items):
        # An unknown item has a row of zeros, the last.
        items = np.where(items < 0, self.n_items, items)[:, None]
        n_at_once = NUMBERS // (1 + len(self.fitted["newcomer_factors_"]))
        return self._scores(users, items, n_at_once)[:, 0]

    def score_all(self, users):
        return self._scores(users, np.arange(self.n_items), PAIRS // max(1, self.n_items))

    def _scores(self, users, items, n_at_once):
        """Return scores of items (n_users, n) or, if they are the same for all, (n,)."""
        scores, common = np.empty((len(users), items.shape[-1])), self._common()
        with own_settings(), torch.no_grad():
            for start in range(0, len(users), max(1, n_at_once)):
                some = slice(start, start + max(1, n_at_once))
                theirs = items[some] if items.ndim == 2 else items
                scores[some] = self._scores_at_once(common, users[some], theirs)
        return scores + self.fitted.get("global_bias_", 0.0)

    def _scores_at_once(self, common, users, items):
        module, private = blueprint(self.fitted["_fitted_recipe"]).module, self._private(users)
        codes = torch.from_numpy(items)

        def score(own, codes):
            return functional_call(module, common | own, (torch.zeros_like(codes), codes))

        if not private:
            return np.broadcast_to(score({}, codes).numpy(), (len(users), items.shape[-1]))
        return vmap(score, (0, 0 if items.ndim == 2 else None))(private, codes).numpy()

    def _common(self):
        """Return the parameters that all users have; tables end with a row for unknown items."""
        made, common = blueprint(self.fitted["_fitted_recipe"]), {}
        fixed = {name: value.numpy() for name, value in made.fixed(self.n_items).items()}
        for name, values in (self.fitted["parameters_"] | fixed).items():
            part = made.layout.parts[name]
            if part.kind in ("item", "fixed item"):
                rows = values.reshape(-1, *part.shape)
                values = np.concatenate([rows, np.zeros_like(rows[:1])])
            else:
                values = values.reshape(part.shape)
            common[name] = self._tensor(torch.from_numpy(values))
        return common

    def _private(self, users):
        """Return the private parameters of users, with the user as first axis."""
        layout, own = blueprint(self.fitted["_fitted_recipe"]).layout, {}
        rows = np.tile(self.fitted["newcomer_factors_"], (len(users), 1))
        rows[users >= 0] = self.fitted["user_factors_"][users[users >= 0]]
        rows = torch.from_numpy(rows)
        for name, column in layout.columns(self.n_items).items():
            part = layout.parts[name]
            values = rows[:, column].to(part.dtype)
            if part.kind == "private item":
                values = functional.pad(values, (0, part.width))
            shape = part.shape if part.kind == "private" else (-1, *part.shape)
            own[name] = self._tensor(values.reshape(len(users), *shape))
        return own

    def _tensor(self, values):
        return values.double() if self.is_double else values


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnItemScores(ModuleScores):
    """Scores of a module for users who also keep item vectors of their own."""

    def score_all(self, users):
        scores = super().score_all(users)
        for place in np.flatnonzero(users >= 0):
            items, own = self._own_scores(users[place])
            scores[place, items] = own
        return scores

    def score_pairs(self, users, items):
        scores = super().score_pairs(users, items)
        for user in np.unique(users[users >= 0]):
            board = np.full(self.n_items, np.nan)
            rated, own = self._own_scores(user)
            board[rated] = own
            places = np.flatnonzero((users == user) & (items >= 0))
            known = places[~np.isnan(board[items[places]])]
            scores[known] = board[items[known]]
        return scores

    def items_of(self, user):
        """Return the items of which a user has vectors of its own, and these."""
        own, width = self.fitted["user_items_"], self.fitted["user_factors_"].shape[1] - 1
        span = slice(*own.indptr[user : user + 2])
        vectors = own.data[span].reshape(-1, width)
        return own.indices[span][::width] // width, vectors

    def _own_scores(self, user):
        """Return a user's own items, and their scores."""
        items, vectors = self.items_of(user)
        own = self.fitted["user_factors_"][user].astype(np.float64)
        return items, vectors @ own[:-1] + own[-1] + self.fitted.get("global_bias_", 0.0)
