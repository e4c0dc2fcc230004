// How figures and times are written. Where the service has no figure yet, a dash stands.

const NONE = "–";
const SPACE = "\u202f"; // narrow and unbreakable, between a number and its unit
const known = (value) => typeof value === "number" && Number.isFinite(value);
const minus = (text) => text.replace("-", "−");

const wholeNumbers = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const threeDigits = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 3 });
const count = (value) => (known(value) ? wholeNumbers.format(value) : NONE);
const figure = (value) => (known(value) ? minus(threeDigits.format(value)) : NONE);
const plural = (many, one) => `${count(many)} ${one}${many === 1 ? "" : "s"}`;

function percent(share) {
  if (!known(share)) return NONE;
  const value = 100 * share;
  if (value > 0 && value < 0.1) return `<0.1${SPACE}%`;
  if (value < 100 && value > 99.9) return `>99.9${SPACE}%`;
  const digits = value > 0 && value < 9.95 ? 1 : value > 90 && value < 100 ? 1 : 0;
  return `${value.toFixed(digits)}${SPACE}%`;
}

const milliseconds = (value) => (known(value) ? `${figure(value)}${SPACE}ms` : NONE);

function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, value < 1000 ? 0 : Math.floor(Math.log10(value) / 3));
  return `${figure(value / 1000 ** step)}${SPACE}${units[step]}`;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [whole / 86400, (whole / 3600) % 24, (whole / 60) % 60].map(Math.floor);
  if (days) return `${days}${SPACE}d ${hours}${SPACE}h`;
  if (hours) return `${hours}${SPACE}h ${minutes}${SPACE}min`;
  return minutes ? `${minutes}${SPACE}min` : `${whole}${SPACE}s`;
}

const clockTime = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const shortTime = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });
const dayAndTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const utc = (date) => `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;

// A moment in the viewer's zone, with UTC when pointed at. Another day is told with its date.
function moment(iso) {
  const date = new Date(iso ?? NaN);
  if (Number.isNaN(date.getTime())) return element("span", {}, NONE);
  const near = Math.abs(Date.now() - date) < 20 * 3600e3;
  const text = (near ? clockTime : dayAndTime).format(date);
  return element("time", { datetime: date.toISOString(), title: utc(date) }, text);
}

// Any decision as rows of [where, value]: { a: { b: 1 }, c: [2, 3] } has a.b and c.
function rowsOf(value, path = "") {
  if (Array.isArray(value) && !value.length) return [[path, "none"]];
  const whole = Array.isArray(value) ? value.every((item) => !isNested(item)) : !isNested(value);
  if (whole) return [[path, Array.isArray(value) ? value.map(plain).join(", ") : plain(value)]];
  return Object.entries(value).flatMap(([name, inner]) => {
    const step = Array.isArray(value) ? `[${name}]` : path ? `.${name}` : name;
    return rowsOf(inner, path + step);
  });
}

const isNested = (value) => typeof value === "object" && value !== null;

function plain(value) {
  if (value === null || value === undefined) return "none";
  if (Array.isArray(value)) return value.map(plain).join(", ") || "none";
  if (isNested(value)) return Object.entries(value).map(([name, one]) => `${name} ${plain(one)}`).join(", ");
  return typeof value === "number" && !Number.isInteger(value) ? figure(value) : String(value);
}
