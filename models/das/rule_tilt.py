"""Weights that change the parameters of the rule that DAS corrects (`environment.guide`).

They start at 0, and evolution can search them (`tilt_rule`). One unit of each is a step that
changes decisions about as much as one unit of a linear term: most parameters are changed by
addition, AGE and how far MIGRATE and SWAP exceed 1 by a factor. MIGRATE and SWAP that are 0 remain
disabled.
"""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling import baselines as rules
from loadmaster.models.das.network import DasNetwork
from loadmaster.models.layers import to_numpy

# By addition: parameter, step, least and greatest value.
ADDED = (
    (rules.SIZE, 1.0, 0.0, 3.0),
    (rules.FAIR, 1.0, 0.0, 3.0),
    (rules.STICK, 1.0, 0.0, 0.95),
    (rules.PRICE, 0.5, 0.0, 3.0),
    (rules.SPREAD, 1.0, 0.0, 5.0),
    (rules.FIT, 0.5, 0.0, 3.0),
)
AGE_STEP, MOVE_STEP = 2.0, 2.0  # of logarithms
MOST = 2.0  # steps up or down
SEARCHED = (*(parameter for parameter, *_ in ADDED), rules.AGE, rules.MIGRATE, rules.SWAP)


def tilt_rule(network: DasNetwork, values: NDArray[np.float64]) -> None:
    """Change the parameters of a rule, in the order of `baselines.PARAMETERS`, by the weights."""
    if network.tilt_rule is None:
        return
    weights = np.clip(to_numpy(network.tilt_rule).astype(np.float64), -MOST, MOST)
    *added, age, migrate, swap = weights.tolist()
    for (parameter, step, least, most), weight in zip(ADDED, added, strict=True):
        if weight != 0:
            values[parameter] = min(max(values[parameter] + step * weight, least), most)
    values[rules.AGE] *= np.exp(AGE_STEP * age)
    for parameter, weight in ((rules.MIGRATE, migrate), (rules.SWAP, swap)):
        if values[parameter] > 0 and weight != 0:
            values[parameter] = 1 + (values[parameter] - 1) * np.exp(MOVE_STEP * weight)
