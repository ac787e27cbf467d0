"""Write a file of made-up purchases for each of three shops: customer, item, time."""

import numpy as np

from fedrecsk.datasets import make_interactions

X = make_interactions(n_users=240, n_items=200, n_interactions=6_000, random_state=0)
for shop in range(3):
    np.savetxt(f"shop-{shop}.csv", X[X[:, 0] % 3 == shop], delimiter=",", fmt="%d")
