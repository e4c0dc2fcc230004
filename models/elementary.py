"""Elementary functions in compiled code without calls to libm, so that loops of them vectorise.

Arguments and results have the annotated types; errors are a few units in the last place.
"""

import math

import numpy as np

from loadmaster.envs.compiled import njit_fused

_ONE, _TWO, _HALF = np.float32(1), np.float32(2), np.float32(0.5)
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits, so that multiples are exact
_LN2_LOW = np.float32(-2.12194440054690583e-4)
_MIN_EXP, _MAX_EXP = np.float32(-87), np.float32(88)  # arguments whose exponential is finite
_LN2, _LN2_32 = math.log(2), np.float32(math.log(2))
# Bits of sqrt(1/2): a number is m * 2^k with m between sqrt(1/2) and sqrt(2).
_ROOT = np.float64(math.sqrt(0.5)).view(np.int64)
_ROOT_32 = np.float32(math.sqrt(0.5)).view(np.int32)
_S52, _S23 = np.int64(52), np.int32(23)
_PER_QUARTER = np.float32(2 / math.pi)
_QUARTER_HIGH = np.float32(1.5703125)  # few bits, so that multiples are exact
_QUARTER_LOW = np.float32(math.pi / 2 - 1.5703125)
_I1, _I2 = np.int32(1), np.int32(2)


@njit_fused
def sigmoid(x: np.float32) -> np.float32:
    return _ONE / (_ONE + exponential(-x))


@njit_fused
def hyperbolic_tangent(x: np.float32) -> np.float32:
    """tanh to 1e-7."""
    return _ONE - _TWO / (exponential(x + x) + _ONE)


@njit_fused
def exponential(x: np.float32) -> np.float32:
    x = min(max(x, _MIN_EXP), _MAX_EXP)
    whole = np.floor(x * _LOG2_E + _HALF)
    x = x - whole * _LN2_HIGH - whole * _LN2_LOW
    series = np.float32(1 / 5040)
    series = series * x + np.float32(1 / 720)
    series = series * x + np.float32(1 / 120)
    series = series * x + np.float32(1 / 24)
    series = series * x + np.float32(1 / 6)
    series = series * x + _HALF
    series = series * x + _ONE
    series = series * x + _ONE
    exponent = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return series * exponent.view(np.float32)


@njit_fused
def logarithm(x: np.float64) -> np.float64:
    """log of a positive, normal number: k log 2 + 2 artanh((m - 1) / (m + 1))."""
    bits = np.float64(x).view(np.int64)
    k = (bits - _ROOT) >> _S52
    m = np.int64(bits - (k << _S52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    z2 = z * z
    z4 = z2 * z2
    low = (1 / 3 + z * (1 / 5)) + z2 * (1 / 7 + z * (1 / 9))
    middle = (1 / 11 + z * (1 / 13)) + z2 * (1 / 15 + z * (1 / 17))
    high = (1 / 19 + z * (1 / 21)) + z2 * (1 / 23)
    series = low + z4 * (middle + z4 * high)
    return np.float64(k) * _LN2 + 2.0 * (s + s * z * series)


@njit_fused
def logarithm_32(x: np.float32) -> np.float32:
    """As `logarithm`, of a float32."""
    bits = np.float32(x).view(np.int32)
    k = np.int32(np.int32(bits - _ROOT_32) >> _S23)
    m = np.int32(bits - np.int32(k << _S23)).view(np.float32)
    s = (m - _ONE) / (m + _ONE)
    z = s * s
    series = np.float32(1 / 11)
    series = series * z + np.float32(1 / 9)
    series = series * z + np.float32(1 / 7)
    series = series * z + np.float32(1 / 5)
    series = series * z + np.float32(1 / 3)
    return np.float32(k) * _LN2_32 + _TWO * (s + s * z * series)


@njit_fused
def cosine_and_sine(angle: np.float32) -> tuple[np.float32, np.float32]:
    """Of an angle between 0 and 2 pi."""
    quarter = np.floor(angle * _PER_QUARTER + _HALF)
    x = angle - quarter * _QUARTER_HIGH - quarter * _QUARTER_LOW
    z = x * x
    cosine = np.float32(-1 / 3628800)
    cosine = cosine * z + np.float32(1 / 40320)
    cosine = cosine * z - np.float32(1 / 720)
    cosine = cosine * z + np.float32(1 / 24)
    cosine = cosine * z - _HALF
    cosine = cosine * z + _ONE
    sine = np.float32(1 / 362880)
    sine = sine * z - np.float32(1 / 5040)
    sine = sine * z + np.float32(1 / 120)
    sine = sine * z - np.float32(1 / 6)
    sine = sine * z * x + x
    turn = np.int32(quarter)
    across, up = (sine, cosine) if turn & _I1 else (cosine, sine)
    return (-across if (turn + _I1) & _I2 else across), (-up if turn & _I2 else up)
