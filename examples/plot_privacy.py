"""What does differential privacy cost in accuracy?

PrivFedEB's clients bound the length of what they upload, and the server adds noise to the sum.
Epsilon then limits what the model can reveal about all the ratings of any one user.

A single draw of noise hides every client. So the same epsilon costs less the more clients there
are: at epsilon 3, biases without noise (zero, dotted) are better than the private model of a few
hundred users, and worse than that of thousands.
"""

import matplotlib.pyplot as plt
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split

from fedrecsk import BiasOnly, Federation, PrivFedEB
from fedrecsk.datasets import make_ratings
from fedrecsk.privacy import CentralDP

epsilons = (1, 3, 10, 30)
gains = {}
for n_users in (500, 2000, 6000):
    X, y = make_ratings(n_users=n_users, n_items=300, n_ratings=40 * n_users, random_state=0)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
    biases = BiasOnly().fit(X_train, y_train)
    reference = root_mean_squared_error(y_test, biases.predict(X_test))
    gains[n_users] = []
    for epsilon in epsilons:
        federation = Federation(central_dp=CentralDP(epsilon=epsilon))
        # What would be read off the data must be public: the scale, and the items on offer.
        public = {"rating_scale": (1, 5), "items": range(300)}
        model = PrivFedEB(**public, federation=federation, random_state=0).fit(X_train, y_train)
        error = root_mean_squared_error(y_test, model.predict(X_test))
        gains[n_users].append(error - reference)
    shown = ", ".join(f"{gain:+.3f}" for gain in gains[n_users])
    print(f"{n_users} users: biases {reference:.3f}; epsilon {epsilons}: {shown}")
print(model.privacy_)

# %%
_, ax = plt.subplots(figsize=(7, 4.3), layout="constrained")
for n_users, gain in gains.items():
    ax.plot(epsilons, gain, "o-", label=f"{n_users:,} users")
ax.axhline(0, color="0.5", linestyle=":", label="BiasOnly, without noise")
ax.set(
    xscale="log",
    xlabel="Total epsilon of a user (left is more private)",
    ylabel="Test RMSE, less that of biases",
)
ax.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
ax.minorticks_off()
ax.legend()
plt.show()
