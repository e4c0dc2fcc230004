"""ADWIN: agreement with an exact window, false positive rate, delay, bounds."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.serving.monitoring import drift as module
from loadmaster.serving.monitoring.drift import MIN_SIDE, Adwin

Draw = Callable[[np.random.Generator, int], np.ndarray]

NOISE: dict[str, Draw] = {
    "normal": lambda random, n: random.normal(-40, 3, n),
    "uniform": lambda random, n: random.random(n),
    "skewed": lambda random, n: random.exponential(1e6, n),
    "heavy": lambda random, n: random.lognormal(0, 1.5, n),
    "rare": lambda random, n: (random.random(n) < 0.02).astype(float),
}


def drop_before_cuts(values: list[float], delta: float) -> bool:
    """ADWIN with every number kept and every split tried; return whether there was a cut."""
    drift = False
    while len(values) >= 2 * MIN_SIDE and (cut := best_cut(np.array(values), delta)):
        drift = True
        del values[:cut]
    return drift


def best_cut(values: np.ndarray, delta: float) -> int:
    """By the paper's formula; 0 if there is none."""
    n, excess = len(values), {}
    log_term = math.log(2 / (delta / math.log(n)))
    for cut in range(MIN_SIDE, n - MIN_SIDE + 1):
        m = 1 / (1 / cut + 1 / (n - cut))
        bound = math.sqrt(2 / m * values.var() * log_term)
        bound += 2 / (3 * m) * log_term * np.ptp(values)
        excess[cut] = abs(values[:cut].mean() - values[cut:].mean()) - bound
    best = max(excess, key=lambda cut: excess[cut])
    return best if excess[best] > 1e-12 * np.abs(values).max() else 0


@pytest.mark.parametrize("seed", range(6))
def test_cuts_match_an_exact_window(seed: int) -> None:
    random = np.random.default_rng(seed)
    levels = np.repeat(random.normal(0, 6, 6), random.integers(8, 20, 6))
    values = levels + random.normal(0, 0.5, len(levels))
    adwin, window, drifts = Adwin(0.1, buckets=1000), list[float](), 0  # none are merged
    for value in values.tolist():
        window.append(value)
        drift = drop_before_cuts(window, 0.1)
        assert adwin.update(value) == drift
        assert (adwin.width, adwin.mean) == (len(window), pytest.approx(np.mean(window)))
        drifts += drift
    assert drifts


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_buckets_summarize_their_numbers(values: list[float], buckets: int) -> None:
    adwin = Adwin(1e-9, every=10**9, buckets=buckets)  # never checks: the window keeps all
    for value in values:
        adwin.update(value)
    assert adwin.width == len(values)
    place = 0
    for size, bucket in adwin.parts():
        held = np.array(values[place : place + size])
        place += size
        assert bucket.mean == pytest.approx(held.mean(), abs=1e-6)
        assert bucket.squares == pytest.approx(held.var() * size, rel=1e-6, abs=1e-3)
        assert (bucket.low, bucket.high) == (held.min(), held.max())
    assert place == len(values)
    assert len(adwin.parts()) <= buckets * (math.log2(len(values)) + 1)


@pytest.mark.parametrize("noise", NOISE)
def test_false_positive_rate_is_bounded(noise: str) -> None:
    alarms = 0
    for seed in range(20):
        adwin = Adwin(0.05, every=4)
        values = NOISE[noise](np.random.default_rng(seed), 600).tolist()
        alarms += any(adwin.update(value) for value in values)
    assert alarms <= 1  # 5% of 20


@pytest.mark.parametrize(("shift", "most"), [(1.0, 120), (2.0, 48), (4.0, 24)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_shift_is_detected_soon_in_any_unit(shift: float, most: int, scale: float) -> None:
    for seed in range(5):
        random = np.random.default_rng(seed)
        adwin = Adwin(0.05, every=4)
        for value in random.normal(5, 1, 400).tolist():
            assert not adwin.update(value * scale)
        later = random.normal(5 + shift, 1, most).tolist()
        assert any(adwin.update(value * scale) for value in later)
        assert adwin.cut is not None
        assert adwin.cut.before == pytest.approx(5 * scale, rel=0.05)
        assert adwin.cut.after == pytest.approx((5 + shift) * scale, rel=0.2)
        assert adwin.cut.deviation == pytest.approx(scale, rel=0.2)
        for value in random.normal(5 + shift, 1, 400).tolist():
            assert not adwin.update(value * scale)  # reported once
        assert adwin.mean == pytest.approx((5 + shift) * scale, rel=0.05)


def test_constant_stream_never_drifts() -> None:
    adwin = Adwin(0.5)
    assert not any(adwin.update(0.1) for _ in range(3000))
    assert adwin.mean == pytest.approx(0.1)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEVELS", 4)
    adwin = Adwin(1e-9, every=10**9, buckets=2)
    for value in range(1000):
        adwin.update(float(value))
        assert adwin.width == sum(size for size, _ in adwin.parts()) <= 2 * (1 + 2 + 4 + 8)
        assert adwin.parts()[-1][1].high == value
    assert len(adwin.parts()) <= 4 * 2
    assert adwin.mean == pytest.approx(1000 - adwin.width / 2 - 0.5)
