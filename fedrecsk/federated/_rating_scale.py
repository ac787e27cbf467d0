"""The parameter `rating_scale` of federated methods."""

from fedrecsk.data._rating_scale import check_ratings, check_scale


class RatingScale:
    """Mixin of the methods with a parameter `rating_scale`, before FederatedRecommender."""

    def _check_before_fit(self):
        super()._check_before_fit()
        if self.rating_scale is not None:
            check_scale(self.rating_scale)

    def _check_setting(self, federation, data, blocks):
        super()._check_setting(federation, data, blocks)
        if self.rating_scale is not None:
            check_ratings(data.values, self.rating_scale)

    def _new_user_attributes(self, data):
        check_ratings(data.values, self.rating_scale_)
        return super()._new_user_attributes(data)
