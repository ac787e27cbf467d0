"""What all machines agree on: the method, its parameters and the catalogue."""

from fedrecsk import LocALS

method = LocALS(n_factors=8, n_rounds=5, items=range(200))
