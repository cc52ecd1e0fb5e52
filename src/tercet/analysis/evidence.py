"""What `tercet doctor` measures on a finished run."""

from dataclasses import asdict, dataclass
from math import isfinite, isnan, nan

GUESSING = 0.45  # mean share of negatives ahead of a positive; 0.5 is chance
CLEARLY = 0.1  # rise of validation that is no luck of an epoch
NEAR_THE_BEST = 0.05


@dataclass(frozen=True)
class Evidence:
    """What was measured on a run; None where there was nothing to measure."""

    spread: float
    """Standard deviation of a query's similarities, mean over queries, of the flatter direction."""
    hub_captions: float
    """Skew of how often each caption is among the 10 nearest of an image."""
    hub_images: float
    largest_hub: float
    """Share of the queries of a direction that have its most frequent candidate among their 10 nearest."""
    gap: float
    """Distance of both sides' centroids over the width of a side."""
    told_apart: float
    evenness: float | None
    """Of the weights of a query's negatives, where the objective has a temperature."""
    hardest_share: float | None
    silent: float
    duplicates: float
    """Share of training queries whose hardest negative says almost the same."""
    leaked: float
    """Share of held-out images that are in the training images too."""
    ahead_i2t: float
    """Mean share of negatives ahead of a positive."""
    ahead_t2i: float
    images: int
    """That are held out, all of them."""
    validations: int
    """Epochs that were validated; 0 where there is no validation split."""
    rise: float | None
    """Of validation over the last third of the epochs, over its best."""
    fall: float | None
    """Of validation from its best to its last epoch, over its best."""
    train_rsum: float
    """On as many training images as are held out."""
    held_out_rsum: float

    @property
    def imbalance(self) -> float:
        """How many times as far down the worse direction is; a rank is added to both, so that luck is no imbalance."""
        one_rank = 1 / self.images
        worse, better = larger(self.ahead_i2t, self.ahead_t2i), min(self.ahead_i2t, self.ahead_t2i)
        return (worse + one_rank) / (better + one_rank)

    @property
    def hubs(self) -> float:
        return larger(self.hub_captions, self.hub_images)

    @property
    def guesses(self) -> bool:
        return min(self.ahead_i2t, self.ahead_t2i) > GUESSING

    @property
    def is_rising(self) -> bool:
        """Whether validation ended clearly above where it was and near its best, and the model does not guess."""
        return not self.guesses and (self.rise or 0) > CLEARLY and (self.fall or 0) <= NEAR_THE_BEST

    @property
    def not_numbers(self) -> list[str]:
        """Names of what was measured and came out as no number."""
        return [name for name, value in asdict(self).items() if value is not None and not isfinite(value)]


def larger(a: float, b: float) -> float:
    """Not a number if one is none; `max` would pass it over, or not, by their order."""
    return nan if isnan(a) or isnan(b) else max(a, b)
