"""An axis on which 330 and the difference between 93 and 100 can both be seen."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.platform.training.broken_axis import APART, SQUEEZED, Fold, fold_for

LEARNING = [330.0, 140.0, 122.0, 113.0, 107.0, 103.0, 100.0, 99.0, 98.5, 98.0, 97.5]


def test_curves_that_need_no_fold() -> None:
    assert fold_for([[185.0, 110.0, 80.0]], [60.0]) is None
    assert fold_for([LEARNING, [330.0] * 8], []) is None  # one never learnt: nothing to hide
    assert fold_for([[330.0]], []) is None
    assert fold_for([[5.0, 5.0]], [5.0]) is None


def test_most_of_every_curve_keeps_its_size() -> None:
    fold = fold_for([LEARNING], [108.5])
    assert fold is not None
    assert (fold.low, fold.top) == (97.5, 330.0)
    assert 108.5 < fold.at < 122
    higher = fold_for([LEARNING], [150.0])
    assert higher is not None
    assert higher.at > 150  # a baseline is never squeezed
    assert fold_for([LEARNING], [250.0]) is None


@pytest.mark.parametrize("shift", [0.0, -1000.0])  # a metric may be negative
def test_the_axis_is_even_below_the_fold_and_monotone_above(shift: float) -> None:
    fold = fold_for([[value + shift for value in LEARNING]], [])
    assert fold is not None
    assert fold.low < fold.at < fold.top
    y = np.linspace(fold.low - 10, fold.top + 10, 500)
    seen = fold.forward(y)
    assert (np.diff(seen) > 0).all()
    np.testing.assert_allclose(fold.inverse(seen), y)
    np.testing.assert_array_equal(seen[y <= fold.at], y[y <= fold.at])
    reach = float(fold.forward(np.array([fold.top]))[0] - fold.at)
    assert reach == pytest.approx(SQUEEZED * fold.height)


def test_ticks_on_both_sides_and_none_too_near() -> None:
    fold = Fold(93.2, 125.0, 330.0)
    ticks = fold.ticks()
    assert ticks == [90, 95, 100, 105, 110, 115, 120, 125, 200, 300]
    assert (np.diff(fold.forward(np.array(ticks))) >= APART * fold.height).all()
