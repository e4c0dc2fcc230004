// Scales from values to shares of an axis, 0 at its start and 1 at its end, with ticks.

import { roundStep } from "../../replay/script/view.js";

export function numberText(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) {
    return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  }
  return String(Number(value.toPrecision(4)));
}

function linearTicks(low, high, most) {
  const step = roundStep((high - low) / most);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return ticks;
}

// Powers of ten, and their multiples by 2 and 5 or by all digits where the range is small.
function logTicks(low, high) {
  for (const digits of [[1], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      ticks.push(...digits.map((digit) => Number(`${digit}e${power}`)));
    }
    const inside = ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
    if (inside.length >= 3) return inside;
  }
  return [low, high];
}

export function numberScale(low, high, log, most = 6) {
  const map = log ? Math.log : (value) => value;
  const span = map(high) - map(low);
  return {
    share: (value) => (span ? (map(value) - map(low)) / span : 0.5),
    ticks: (span ? (log ? logTicks(low, high) : linearTicks(low, high, most)) : [low]).map((value) => ({
      value,
      text: numberText(value),
    })),
  };
}

// A scale over the finite values, logarithmic where they differ by more than three times.
export function valueScale(values, most) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return numberScale(0, 1, false, most);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  return numberScale(low, high, low > 0 && high > 3 * low, most);
}

// The axis of a setting. Trials of one category share a band, in the order of `rankShare`.
export function settingScale(setting, rankShare) {
  if (!setting.categories) return numberScale(setting.low, setting.high, setting.log);
  const count = setting.categories.length;
  return {
    band: 0.6 / count,
    share: (place, trial) => (place + 0.5 + 0.6 * (0.5 - (rankShare[trial] ?? 1))) / count,
    ticks: setting.categories.map((text, place) => ({ value: place, text })),
    tickShare: (place) => (place + 0.5) / count,
  };
}
