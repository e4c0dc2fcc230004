// Text of numbers, times and decisions. A missing number is a dash.

import { element } from "./dom.js";

export const NONE = "–";
export const SPACE = "\u202f"; // narrow and non-breaking, between a number and its unit
export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const minus = (text) => text.replace("-", "−");

const wholeNumbers = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const threeDigits = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 3 });
export const count = (value) => (isNumber(value) ? wholeNumbers.format(value) : NONE);
export const decimal = (value) => (isNumber(value) ? minus(threeDigits.format(value)) : NONE);
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const milliseconds = (value) => (isNumber(value) ? `${decimal(value)}${SPACE}ms` : NONE);

export function percent(share) {
  if (!isNumber(share)) return NONE;
  const value = 100 * share;
  if (value > 0 && value < 0.1) return `<0.1${SPACE}%`;
  if (value < 100 && value > 99.9) return `>99.9${SPACE}%`;
  const digits = (value > 0 && value < 9.95) || (value > 90 && value < 100) ? 1 : 0;
  return `${value.toFixed(digits)}${SPACE}%`;
}

export function bytes(value) {
  if (!isNumber(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, value < 1000 ? 0 : Math.floor(Math.log10(value) / 3));
  return `${decimal(value / 1000 ** step)}${SPACE}${units[step]}`;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [whole / 86400, (whole / 3600) % 24, (whole / 60) % 60].map(Math.floor);
  if (days) return `${days}${SPACE}d ${hours}${SPACE}h`;
  if (hours) return `${hours}${SPACE}h ${minutes}${SPACE}min`;
  return minutes ? `${minutes}${SPACE}min` : `${whole}${SPACE}s`;
}

export const clockTime = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
export const shortTime = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });
const dayAndTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
export const utc = (date) => `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;

// Local time with UTC as the tooltip; times more than 20 hours away include the date.
export function timeElement(iso) {
  const date = new Date(iso ?? NaN);
  if (Number.isNaN(date.getTime())) return element("span", {}, NONE);
  const near = Math.abs(Date.now() - date) < 20 * 3600e3;
  const text = (near ? clockTime : dayAndTime).format(date);
  return element("time", { datetime: date.toISOString(), title: utc(date) }, text);
}

export function versionElement({ version }) {
  return element("code", { title: version }, version.slice(0, 12));
}

// [name, count] pairs with counts above zero, largest first.
export const largestFirst = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]).filter(([, n]) => n > 0);

// Flattens a decision into [path, text] rows: { a: { b: 1 }, c: [2, 3] } has a.b and c.
export function flatten(value, path = "") {
  if (Array.isArray(value) && !value.length) return [[path, "none"]];
  const isLeaf = Array.isArray(value) ? !value.some(isNested) : !isNested(value);
  if (isLeaf) return [[path, valueText(value)]];
  return Object.entries(value).flatMap(([name, inner]) => {
    const step = Array.isArray(value) ? `[${name}]` : path ? `.${name}` : name;
    return flatten(inner, path + step);
  });
}

const isNested = (value) => typeof value === "object" && value !== null;

export function valueText(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.map(valueText).join(", ") || "none";
  if (isNested(value)) return Object.entries(value).map(([name, inner]) => `${name} ${valueText(inner)}`).join(", ");
  return typeof value === "number" && !Number.isInteger(value) ? decimal(value) : String(value);
}
