// Text of numbers and times. A missing number is a dash.

export function number(value, digits = 1) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en-GB", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
    signDisplay: "negative", // no sign before a zero
  });
}

export function secondsText(value) {
  return Number.isFinite(value) ? `${number(value)} s` : "–";
}

// A duration in seconds, minutes or hours, whichever suits its length.
export function durationText(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 99.5) return `${number(value, value < 9.95 ? 1 : 0)} s`;
  if (value < 5970) return `${number(value / 60)} min`;
  return `${number(value / 3600)} h`;
}

// A time of the episode in the unit of the time axis.
export function timeText(unit, seconds) {
  return `${number(seconds / unit.seconds, unit.seconds > 1 ? 2 : 1)} ${unit.name}`;
}

export function dollars(value, digits = 2) {
  return Number.isFinite(value) ? `$${number(value, digits)}` : "–";
}

export function percent(share) {
  return Number.isFinite(share) ? `${number(100 * share, 0)}%` : "–";
}

export function plural(count, noun) {
  return `${number(count, 0)} ${noun}${count === 1 ? "" : "s"}`;
}

export function listText(items) {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}
