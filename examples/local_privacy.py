"""What does local differential privacy promise, and at which price?

Epsilon per number and in total, beside the error with and without noise.

Many clients are what averages the noise away, so the data are wide. Runs offline.
"""

from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split

from fedrecsk import BiasOnly, Federation, RFRec
from fedrecsk.datasets import make_ratings
from fedrecsk.privacy import LaplaceMechanism

X, y = make_ratings(n_users=4000, n_items=500, n_ratings=200_000, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)

settings = {"plaintext": None}
for scale in (0.04, 0.4):
    mechanism = LaplaceMechanism(clip=0.2, scale=scale)
    settings[f"Laplace noise {scale}"] = Federation(local_dp=mechanism)

biases = BiasOnly().fit(X_train, y_train)
print(f"bias-only: RMSE {root_mean_squared_error(y_test, biases.predict(X_test)):.4f}")
for name, federation in settings.items():
    # What is read off the data must be public: the scale, and the items on offer.
    model = RFRec(rating_scale=(1, 5), items=range(500), federation=federation, random_state=0)
    model.fit(X_train, y_train)
    rmse = root_mean_squared_error(y_test, model.predict(X_test))
    report = model.privacy_
    print(
        f"{name}: RMSE {rmse:.4f}, epsilon {report.epsilon_per_coordinate:g} per coordinate and "
        f"upload, {report.epsilon:g} in total"
    )
