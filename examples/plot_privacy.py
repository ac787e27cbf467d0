"""What does local differential privacy cost in accuracy?

RFRec's clients clip each number that they upload and add Laplace noise.

From left to right the noise shrinks and the error falls. The lower axis has what one client loses
in all, over every number of every round; the upper axis has the epsilon of a single number, which
papers quote. With little noise the model is better than biases alone (dotted). But its total
epsilon is in the millions: formally that promises nothing, and where accuracy counts encrypted
sums are the better choice.
"""

import matplotlib.pyplot as plt
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split

from fedrecsk import BiasOnly, Federation, RFRec
from fedrecsk.datasets import make_ratings
from fedrecsk.privacy import LaplaceMechanism

# Noise averages out over clients, so this needs many of them.
X, y = make_ratings(n_users=3000, n_items=200, n_ratings=120_000, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)


def rmse(model):
    return root_mean_squared_error(y_test, model.fit(X_train, y_train).predict(X_test))


# What would be read off the data must be public: the scale, and the items on offer.
model = RFRec(8, learning_rate=0.05, rating_scale=(1, 5), items=range(200), random_state=0)
plaintext, biases = rmse(model), rmse(BiasOnly())
print(f"plaintext {plaintext:.3f}, biases {biases:.3f}")
single, total, errors = [], [], []
for scale in (1.0, 0.4, 0.2, 0.1, 0.05):
    model.set_params(federation=Federation(local_dp=LaplaceMechanism(clip=0.5, scale=scale)))
    errors.append(rmse(model))
    single.append(model.privacy_.epsilon_per_coordinate)
    total.append(model.privacy_.epsilon)
    print(f"noise {scale}: RMSE {errors[-1]:.3f}, epsilon {single[-1]:g}, total {total[-1]:,.0f}")

# %%
_, ax = plt.subplots(figsize=(7, 4.3), layout="constrained")
ax.set_xscale("log")
ax.plot(total, errors, "o-", color="#0072B2", label="RFRec with local noise")
ax.axhline(biases, color="0.5", linestyle=":", label="BiasOnly")
ax.axhline(plaintext, color="0.3", linestyle="--", label="RFRec without noise")
ax.set(xlabel="Total epsilon of one client (left is more private)", ylabel="Test RMSE")
ax.set_xticks([2e5, 5e5, 1e6, 2e6, 4e6], ["200,000", "500,000", "1 m", "2 m", "4 m"])
ax.minorticks_off()
ratio = total[0] / single[0]
upper = ax.secondary_xaxis("top", functions=(lambda x: x / ratio, lambda x: x * ratio))
upper.set_xticks(single, [f"{epsilon:g}" for epsilon in single])
upper.minorticks_off()
upper.set_xlabel("Epsilon of a single number")
ax.legend()
plt.show()
