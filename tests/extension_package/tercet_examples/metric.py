"""A metric: the rank of a query's worst positive. It becomes i2t_worst and t2i_worst."""

import numpy as np

from tercet.evaluation.metrics import Metric


def worst(ranks):
    found = np.zeros(len(ranks.positives))
    np.maximum.at(found, ranks.query, ranks.rank)
    return found  # one value per query


WORST = Metric(worst, larger_is_better=False, description="rank of the worst positive")
