"""Can a recommender handle the cold start of new movies?

Hold out 10% of the movies with all their ratings, fit a model to the others with their titles and
genres, and add the new ones by `add_items`. scikit-learn's transformers turn titles and genres into
numbers. In these generated data, words and genres predict which users like a movie; for MovieLens
see ``python -m benchmarks.content ratings`` and :doc:`/user_guide/content`.

The clients send the same messages as without features: only the server uses features.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.metrics import root_mean_squared_error

from fedrecsk import BiasedMF, FedEB, RFRec
from fedrecsk.datasets import make_ratings
from fedrecsk.model_selection import ColdItemHoldout

X, y, taste = make_ratings(400, 400, 30_000, item_features=20, random_state=0)
words = ["Robot", "Love", "War", "Ghost", "King", "Night", "Road", "Dance", "Snow", "Fire"]
genres = [
    "Horror",
    "Comedy",
    "Drama",
    "Western",
    "Romance",
    "Crime",
    "Musical",
    "Fantasy",
    "Action",
    "Mystery",
]
movies = pd.DataFrame(
    {
        "title": [" ".join(np.array(words)[row > 0.5]) for row in taste.to_numpy()[:, :10]],
        "genres": ["|".join(np.array(genres)[row > 0.5]) for row in taste.to_numpy()[:, 10:]],
    },
    index=taste.index,
)
X_train, X_new, y_train, y_new = ColdItemHoldout(0.1, random_state=0).train_test_split(X, y)
known = movies.loc[np.unique(X_train[:, 1])]
new = movies.drop(known.index)

# %%
transformer = ColumnTransformer(
    [
        ("words", TfidfVectorizer(), "title"),
        ("genres", CountVectorizer(token_pattern=r"[^|]+", binary=True), "genres"),
    ]
)
features = transformer.fit_transform(known)
models = {
    "FedEB": FedEB(random_state=0),
    "RFRec": RFRec(random_state=0),
    "BiasedMF (central)": BiasedMF(random_state=0),
}
errors = {"before add_items": [], "after": []}
for name, model in models.items():
    model.set_params(items=known.index, item_features=features).fit(X_train, y_train)
    errors["before add_items"].append(root_mean_squared_error(y_new, model.predict(X_new)))
    model.add_items(transformer.transform(new), new.index)
    errors["after"].append(root_mean_squared_error(y_new, model.predict(X_new)))
    print(f"{name:>18}: RMSE on new movies", *(f"{one[-1]:.3f}" for one in errors.values()))
movies.loc[models["FedEB"].recommend([7], 3, candidates=new.index)[0][0]]

# %%
_, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
for shift, (label, values) in zip((-0.2, 0.2), errors.items(), strict=True):
    places = [place + shift for place in range(len(models))]
    ax.bar_label(ax.bar(places, values, 0.38, label=label), fmt="{:.3f}")
ax.set_xticks(range(len(models)), list(models))
ax.set_ylabel("RMSE on movies without training rows")
ax.set_ylim(0.8, None)
ax.legend()
plt.show()
