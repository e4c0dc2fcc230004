"""A y axis that shows what trained policies differ by, and where an untrained one began.

An untrained policy may be at 330 where trained ones lie between 93 and 100. A logarithm would
still leave them a twentieth of the height.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from loadmaster.platform.evaluation.chart_style import QUIET

MOST = 0.7  # share of a curve's values, from the lowest, that is shown at full size
WORTH_IT = 3.0  # times as high as that has to be everything, else the axis stays even
SQUEEZED = 0.3  # height of all above the fold, as a share of what is below
APART = 0.07  # least distance of two labels, in the same measure
ROUND = (1, 2, 5, 10)
EDGE = 0.05  # between the picture's edge and the lowest and highest value, in the same measure


@dataclass(frozen=True)
class Fold:
    """Even from `low` to `at`; from there to `top` the logarithm of the distance from `at`."""

    low: float
    at: float
    top: float

    def forward(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        above = np.maximum(y - self.at, 0) / self.height
        return np.minimum(y, self.at) + self._scale * np.log1p(above)

    def inverse(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        above = np.maximum(y - self.at, 0) / self._scale
        return np.minimum(y, self.at) + self.height * np.expm1(above)

    @property
    def height(self) -> float:
        return self.at - self.low

    @property
    def _scale(self) -> float:
        return SQUEEZED * self.height / math.log1p((self.top - self.at) / self.height)

    def ticks(self) -> list[float]:
        """Round figures on either side of the fold, and the fold itself."""
        gap = APART * self.height
        below = MaxNLocator(8, steps=ROUND).tick_values(self.low, self.at)
        above: list[float] = []
        ceiling = math.inf
        for y in MaxNLocator(3, steps=ROUND).tick_values(self.at, self.top)[::-1]:
            seen = float(self.forward(np.asarray(y)))
            if y <= self.top and self.at + gap <= seen <= ceiling - gap:
                above.insert(0, float(y))
                ceiling = seen
        return [*(float(y) for y in below if y <= self.at - gap), self.at, *above]


def fold_for(curves: Sequence[Sequence[float]], levels: Iterable[float]) -> Fold | None:
    """Where to fold so that most of every curve, and all levels, keep their size; None: nowhere."""
    levels = list(levels)
    low = min(*levels, *(min(curve) for curve in curves), math.inf)
    top = max(*levels, *(max(curve) for curve in curves), -math.inf)
    most = max(*levels, *(float(np.quantile(curve, MOST)) for curve in curves), -math.inf)
    if most <= low:
        return None
    step = 10 ** math.floor(math.log10(most - low)) / 2
    fold = Fold(low, math.ceil((low + 1.1 * (most - low)) / step) * step, top)
    return fold if top - low > WORTH_IT * fold.height else None


def fold_axis(axes: Axes, fold: Fold) -> None:
    """After everything is drawn; what is squeezed lies on a darker ground."""
    axes.set_yscale("function", functions=(fold.forward, fold.inverse))
    axes.yaxis.set_major_locator(FixedLocator(fold.ticks()))
    axes.yaxis.set_minor_locator(NullLocator())
    ends = fold.forward(np.array([fold.low, fold.top])) + fold.height * np.array([-EDGE, EDGE])
    low, high = fold.inverse(ends)
    axes.axhspan(fold.at, high, color="#F4F4F4", zorder=0, linewidth=0)
    axes.axhline(fold.at, color=QUIET, linewidth=0.8, linestyle=":")
    axes.set_ylim(low, high)
