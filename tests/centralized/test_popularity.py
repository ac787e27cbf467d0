import numpy as np
import pytest

from fedrecsk import Popularity

X = np.array([[1, 10], [1, 20], [2, 10], [3, 10], [3, 30], [4, 20]])


def test_counts_the_users_of_each_item():
    model = Popularity().fit(X)
    assert dict(zip(model.item_ids_, model.item_popularity_, strict=True)) == pytest.approx(
        {10: 3 / 4, 20: 2 / 4, 30: 1 / 4}
    )
    assert model.predict([[1, 10], [9, 30], [1, 99]]) == pytest.approx([0.75, 0.25, 0])


def test_weights_count_and_non_positive_preferences_do_not():
    model = Popularity().fit(X, [1, 1, 0, -1, 5, 1], sample_weight=[2, 1, 1, 1, 1, 1])
    assert model.predict([[1, 10], [1, 20], [1, 30]]) == pytest.approx([2 / 4, 2 / 4, 1 / 4])
