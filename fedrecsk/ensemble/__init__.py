"""Sums of several recommenders, federated or not.

scikit-learn's own ensembles average predictions, too, but do not support `recommend`, `fold_in`,
`clients` or communication. Parts are named like those of
:class:`~sklearn.ensemble.VotingRegressor`.
"""

from fedrecsk.ensemble._ranking import RankingEnsemble
from fedrecsk.ensemble._rating import RatingEnsemble

__all__ = ["RankingEnsemble", "RatingEnsemble"]
