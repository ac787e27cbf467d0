"""How do I fit a federated recommender?

Fit FedEB on ratings, compare it with simpler models, and get recommendations.

On the left, the test error of three models: the federated one has learned more than which items
and users rate high. On the right, what it predicts for test ratings of one to five stars. The
boxes rise with the true rating. Their middles lie between 2.6 and 4.2 stars: a model that
minimises squared errors is cautious.
"""

import matplotlib.pyplot as plt
from sklearn.dummy import DummyRegressor
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split

from fedrecsk import BiasOnly, FedEB
from fedrecsk.datasets import make_ratings

# Columns of X: user, item, timestamp. y: one to five stars.
X, y = make_ratings(random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)

model = FedEB(client_fraction=0.1, random_state=0).fit(X_train, y_train)
models = {
    "mean rating": DummyRegressor().fit(X_train, y_train),
    "BiasOnly": BiasOnly().fit(X_train, y_train),
    "FedEB": model,
}
errors = {
    name: root_mean_squared_error(y_test, fitted.predict(X_test)) for name, fitted in models.items()
}
for name, error in errors.items():
    print(f"{name}: test RMSE {error:.3f}")

items, scores = model.recommend(X_test[:2, 0], n_recommendations=5)
print("Items for the first two test users:", items.tolist())
print(model.communication_)

# %%
# The errors, and the predictions for each number of stars:
_, (left, right) = plt.subplots(1, 2, figsize=(8.5, 4), layout="constrained")
bars = left.bar(list(errors), list(errors.values()), color=["0.75", "0.55", "#0072B2"])
left.bar_label(bars, fmt="{:.3f}")
left.set(ylim=(0.8, 1.15), ylabel="Test RMSE (lower is better)")
stars = [1, 2, 3, 4, 5]
predicted = model.predict(X_test)
right.boxplot([predicted[y_test == star] for star in stars], tick_labels=stars, showfliers=False)
right.set(xlabel="True rating of a test pair (stars)", ylabel="Rating predicted by FedEB")
plt.show()
