"""Centralised models with the same interface: baselines, and models to compare with."""

from fedrecsk.centralized.bayesian_svdpp import BayesianSVDpp
from fedrecsk.centralized.bias_only import BiasOnly
from fedrecsk.centralized.biased_mf import BiasedMF
from fedrecsk.centralized.dcf import DCF
from fedrecsk.centralized.ddl import DDL
from fedrecsk.centralized.ease import EASE
from fedrecsk.centralized.implicit import ImplicitALS, ImplicitBPR, ImplicitLMF
from fedrecsk.centralized.item_knn import ItemKNN
from fedrecsk.centralized.pmf import PMF
from fedrecsk.centralized.popularity import Popularity
from fedrecsk.centralized.random import RandomRecommender
from fedrecsk.centralized.svdpp import SVDpp
from fedrecsk.centralized.user_knn import UserKNN

__all__ = [
    "DCF",
    "DDL",
    "EASE",
    "PMF",
    "BayesianSVDpp",
    "BiasOnly",
    "BiasedMF",
    "ImplicitALS",
    "ImplicitBPR",
    "ImplicitLMF",
    "ItemKNN",
    "Popularity",
    "RandomRecommender",
    "SVDpp",
    "UserKNN",
]
