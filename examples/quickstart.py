"""How do I fit a federated recommender?

And what does it recommend, and what does it cost?

Runs offline on generated ratings: ``python examples/quickstart.py``.
"""

from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split

from fedrecsk import BiasOnly, RFRec
from fedrecsk.datasets import make_ratings

X, y = make_ratings(random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)

model = RFRec(random_state=0).fit(X_train, y_train)
biases = BiasOnly().fit(X_train, y_train)
for fitted in (biases, model):
    rmse = root_mean_squared_error(y_test, fitted.predict(X_test))
    print(f"{type(fitted).__name__}: test RMSE {rmse:.3f}")

items, scores = model.recommend(X_test[:2, 0], n_recommendations=5)
print("Items for the first two test users:", items.tolist())
print(model.communication_)
