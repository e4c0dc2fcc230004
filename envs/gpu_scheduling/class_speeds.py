"""Classes of training jobs: measured speeds by GPU type, losses by sharing, and their drawing.

The figures are derived from the throughputs published with Gavel (OSDI 2020, MIT licence): of each
model family on one K80, P100 and V100, and of every pair of families that shares one GPU.
"""

import numpy as np
from numpy.typing import NDArray

from loadmaster.envs.gpu_scheduling.jobs import Jobs
from loadmaster.envs.gpu_scheduling.settings import GPU_TYPES, GpuType

CLASSES = ("ResNet-18", "ResNet-50", "Transformer", "A3C", "LM", "Recommendation", "CycleGAN")

# Throughput relative to a V100, geometric means over batch sizes. The recommendation model is
# limited by its host, and was measured slower on the V100.
_MEASURED_SPEEDS = {
    "K80": (0.16, 0.16, 0.28, 0.48, 0.25, 1.31, 0.11),
    "P100": (0.90, 0.66, 0.74, 0.79, 0.84, 2.17, 0.54),
    "V100": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
}
# Share of its throughput that the class of the row keeps beside the class of the column on one GPU:
# medians over batch sizes, without pairs that exceed the GPU's memory.
_MEASURED_KEPT = {
    "K80": (
        (0.51, 0.50, 0.54, 0.45, 0.63, 0.68, 0.48),
        (0.52, 0.48, 0.55, 0.42, 0.65, 0.72, 0.48),
        (0.46, 0.43, 0.50, 0.41, 0.57, 0.67, 0.45),
        (0.57, 0.54, 0.61, 0.47, 0.57, 0.56, 0.43),
        (0.44, 0.45, 0.48, 0.40, 0.47, 0.64, 0.45),
        (0.56, 0.49, 0.54, 0.37, 0.60, 0.50, 0.40),
        (0.50, 0.55, 0.59, 0.58, 0.69, 0.76, 0.54),
    ),
    "P100": (
        (0.54, 0.47, 0.56, 0.53, 0.70, 0.82, 0.52),
        (0.58, 0.52, 0.60, 0.55, 0.75, 0.87, 0.58),
        (0.54, 0.47, 0.55, 0.52, 0.70, 0.77, 0.51),
        (0.60, 0.54, 0.62, 0.58, 0.65, 0.67, 0.53),
        (0.42, 0.33, 0.43, 0.44, 0.48, 0.71, 0.38),
        (0.65, 0.51, 0.69, 0.54, 0.73, 0.63, 0.50),
        (0.47, 0.41, 0.49, 0.50, 0.65, 0.75, 0.47),
    ),
    "V100": (
        (1.00, 0.62, 0.82, 1.00, 1.00, 1.00, 0.87),
        (0.77, 0.39, 0.48, 0.48, 0.43, 0.50, 0.50),
        (0.55, 0.20, 0.81, 0.77, 0.80, 0.70, 0.66),
        (0.75, 0.20, 0.86, 0.51, 0.50, 0.65, 0.64),
        (0.71, 0.44, 0.80, 0.65, 0.63, 0.83, 0.59),
        (0.71, 0.17, 0.64, 0.83, 0.70, 0.28, 0.31),
        (0.57, 0.25, 0.76, 0.71, 0.73, 0.50, 0.62),
    ),
}
_NOMINAL = np.log([GPU_TYPES[name].speed for name in _MEASURED_SPEEDS])  # ascending

MAIN_SHARE = 0.8  # share of a user's jobs that are of the user's main class
_DRAW = 0xC1A55  # separates the draw of classes from the runtime noise


def class_factors(gpu: GpuType) -> NDArray[np.float64]:
    """(C,) Speed of each class on a GPU type, relative to the type's nominal speed.

    Types that were not measured are interpolated between the measured ones by nominal speed.
    """
    ratios = np.log(list(_MEASURED_SPEEDS.values())) - _NOMINAL[:, None]
    at = np.log(gpu.speed)
    return np.exp([np.interp(at, _NOMINAL, one) for one in ratios.T])


def pair_severities(gpu: GpuType) -> NDArray[np.float64]:
    """(C, C) Loss of a class beside another, relative to the mean loss of all pairs.

    Types that were not measured are like the measured one of the nearest nominal speed.
    """
    nearest = int(np.abs(_NOMINAL - np.log(gpu.speed)).argmin())
    lost = 1 - np.array(list(_MEASURED_KEPT.values())[nearest])
    return np.asarray(lost / lost.mean())


def draw_classes(jobs: Jobs, seed: int) -> NDArray[np.int64]:
    """(N,) Class of each job: mostly the main class of its user, which the seed draws."""
    rng = np.random.default_rng((seed, _DRAW))
    main = rng.integers(len(CLASSES), size=int(jobs.user.max(initial=0)) + 1)
    other = rng.integers(len(CLASSES), size=len(jobs.user))
    return np.where(rng.random(len(jobs.user)) < MAIN_SHARE, main[jobs.user], other)
