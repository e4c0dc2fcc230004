"""What is known of the jobs at Alibaba's PAI, as tables that a generator can draw from.

Published for the 82,184 GPU jobs of a week in 2020: run times of 5,223 s on average, 594 s in the
middle, 24,110 s and 67,432 s at 95 and 99%; 5.0 instances a job, 512 at most; 0.68 GPU an
instance, 45.1% of them one, 52.5% less; 31.0% on T4, 6.1% on P100, 2.9% on V100, the others on
older kinds; 318, 421 and 545 arrivals an hour at the quartiles, 1,350 at the peak. What lies
between follows two public samples of it, 3,046 jobs of one instance and 16,842 of 2 to 16. How
many jobs are single was not published: 6 in 10 are here, which leads to 5.0 instances a job.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Run time at each quantile; straight lines between them in the logarithm of the seconds.
_QUANTILES_S = (
    (0.0, 6),
    (0.01, 18),
    (0.05, 30),
    (0.1, 42),
    (0.25, 138),
    (0.5, 594),
    (0.75, 3950),
    (0.9, 11500),
    (0.95, 24110),
    (0.99, 67432),
    (0.999, 148000),
    (1.0, 290000),
)
DURATION_AT = np.array([share for share, _ in _QUANTILES_S])
DURATION_LOG_S = np.log([seconds for _, seconds in _QUANTILES_S])

Table = tuple[NDArray[np.int64], NDArray[np.float64]]  # values ascending, cumulative shares


def _table(shares: dict[int, float]) -> Table:
    values = sorted(shares)
    weights = np.cumsum([shares[value] for value in values])
    return np.array(values, np.int64), weights / weights[-1]


def look_up(table: Table, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """The values at these quantiles, each a number in [0, 1]."""
    values, up_to = table
    return values[np.minimum(np.searchsorted(up_to, uniform, side="right"), len(values) - 1)]


# GPU per instance, in percent.
GPU = _table(
    {1: 0.4, 5: 1.0, 10: 7.1, 15: 0.2, 20: 1.05, 25: 25.3, 50: 17.45, 100: 45.1, 200: 1.6}
    | {300: 0.1, 400: 0.3, 500: 0.15, 800: 0.25}
)
# Instances of a job.
INSTANCES = _table(
    {1: 60.0, 2: 6.0, 3: 1.0, 4: 4.5, 5: 4.0, 6: 1.0, 8: 9.0, 10: 5.5, 12: 0.5, 15: 1.0, 16: 3.4}
    | {20: 1.5, 32: 1.3, 50: 0.8, 64: 0.5, 100: 0.2, 200: 0.05, 512: 0.01}
)
# Cores per instance, in percent: of a job of one instance, and of a gang.
CPU_ALONE = _table(
    {10: 0.3, 20: 1.9, 50: 1.1, 100: 2.2, 200: 1.3, 300: 0.7, 400: 2.1, 500: 0.4, 600: 74.2}
    | {800: 1.1, 1000: 5.3, 1200: 0.8, 1600: 0.8, 1800: 7.0, 2000: 0.2, 4000: 0.1}
)
CPU_IN_GANG = _table(
    {100: 0.8, 120: 0.9, 200: 10.1, 300: 0.7, 400: 4.0, 500: 5.8, 600: 34.0, 800: 4.3, 1000: 5.5}
    | {1600: 6.4, 1800: 25.4, 9000: 2.1}
)
# Jobs that need a kind of GPU; the others run on any.
TYPES = {"T4": 0.310, "P100": 0.061, "V100": 0.029}

# Users by the jobs they submit: the k-th has a share in proportion to (k + 3)^-1.6. That gives the
# first, second, tenth and hundredth 15.3, 10.7, 2.3 and 0.08% of the jobs; in the sample they have
# 15.5, 10.3, 1.7 and 0.08%.
USERS = 235
USER_SHIFT = 3
USER_EXPONENT = 1.6
# A user's habits explain 43% of the variance of a job's run time (in ranks) in the sample; taken
# for the other requests as well.
HABIT = 0.43
# Rank correlations in the samples, of run time, instances, GPU and CPU. Gangs have their own table
# of cores, so instances and cores stay apart.
CORRELATION = np.array(
    [
        [1.0, 0.2, -0.25, 0.0],
        [0.2, 1.0, 0.0, 0.0],
        [-0.25, 0.0, 1.0, 0.3],
        [0.0, 0.0, 0.3, 1.0],
    ]
)

# Arrivals an hour are lognormal: the quartiles make sigma 0.4. A daily wave is a small part of it,
# a sixth up and down in the sample.
MEAN_GAP_S = 3600 / 446.9
DAILY_WAVE = 0.15  # amplitude, in the logarithm
HOUR_SIGMA = 0.385  # sqrt(0.385^2 + 0.15^2 / 2) = 0.4
