"""Interactions to learn from: read your own, download published ones, or generate some."""

from fedrecsk.datasets.fetch import (
    clear_data_home,
    fetch_amazon,
    fetch_filmtrust,
    fetch_kuairec,
    fetch_lastfm,
    fetch_movielens,
    get_data_home,
)
from fedrecsk.datasets.generate import make_interactions, make_ratings
from fedrecsk.datasets.readers import load_ratings

__all__ = [
    "clear_data_home",
    "fetch_amazon",
    "fetch_filmtrust",
    "fetch_kuairec",
    "fetch_lastfm",
    "fetch_movielens",
    "get_data_home",
    "load_ratings",
    "make_interactions",
    "make_ratings",
]
