"""The split that the runs were evaluated on, with its pictures and texts as the user gave them."""

from tercet.comparison.settings import CompareSettings
from tercet.data.dataset import Split
from tercet.data.formats import open_data


def evaluated_split(settings: CompareSettings, evaluated: str) -> Split | None:
    """With the pictures of the data, also where features took their place; None where the data has no such split now.

    `evaluated` is test, or validation where there was no test.
    """
    own_features = settings.features if settings.image_encoder in (None, "none") else None
    data = open_data(settings.data, images=settings.images, features=own_features)
    setting, usual = ("test_split", "test") if evaluated == "test" else ("validation_split", "val")
    try:
        return data.split(settings.train.get(setting, usual))
    except ValueError:
        return None
