"""Sums of several recommenders, federated or not.

scikit-learn's own ensembles average predictions, too, but do not support `recommend`, `fold_in`,
`clients` or communication. Parts are named like those of
:class:`~sklearn.ensemble.VotingRegressor`.
"""

from fedrecsk.ensemble._ensemble import RankingEnsemble, RatingEnsemble

__all__ = ["RankingEnsemble", "RatingEnsemble"]
