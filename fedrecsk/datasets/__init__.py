"""Interactions to learn from: read your own, download published ones, or generate some."""

from fedrecsk.datasets._filmtrust import fetch_filmtrust
from fedrecsk.datasets._generate import make_ratings
from fedrecsk.datasets._home import clear_data_home, get_data_home
from fedrecsk.datasets._interactions import make_interactions
from fedrecsk.datasets._kuairec import fetch_kuairec
from fedrecsk.datasets._lastfm import fetch_lastfm
from fedrecsk.datasets._load import load_ratings
from fedrecsk.datasets._movielens import fetch_movielens

__all__ = [
    "clear_data_home",
    "fetch_filmtrust",
    "fetch_kuairec",
    "fetch_lastfm",
    "fetch_movielens",
    "get_data_home",
    "load_ratings",
    "make_interactions",
    "make_ratings",
]
