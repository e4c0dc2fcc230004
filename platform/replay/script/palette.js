// Colours in OKLCH. Consecutive items (jobs) are a golden angle apart in hue and cycle through three
// lightnesses, so that jobs that run at the same time are easy to distinguish.

const LIGHTNESS = { light: [0.64, 0.76, 0.53], dark: [0.7, 0.82, 0.59] };
const CHROMA = [0.145, 0.125, 0.13];

export function oklchToRgb(lightness, chroma, degrees) {
  const a = chroma * Math.cos((degrees * Math.PI) / 180);
  const b = chroma * Math.sin((degrees * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((linear) => {
    const x = Math.min(1, Math.max(0, linear));
    return Math.round(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055));
  });
}

function itemColour(item, scheme) {
  const shade = item % 3;
  return oklchToRgb(LIGHTNESS[scheme][shade], CHROMA[shade], (25 + item * 137.508) % 360);
}

// From a pale to a strong colour, in either colour scheme.
export function heatColour(share, scheme) {
  const lightness = scheme === "dark" ? 0.3 + 0.5 * share : 0.96 - 0.5 * share;
  return oklchToRgb(lightness, 0.015 + 0.15 * share, 235 + 35 * share);
}

// A gradient of the heat colours for a legend.
export function heatGradient(scheme) {
  const colours = [0, 0.25, 0.5, 0.75, 1].map((share) => css(heatColour(share, scheme)));
  return `linear-gradient(90deg, ${colours.join(", ")})`;
}

export function css([red, green, blue], alpha = 1) {
  return `rgb(${red} ${green} ${blue} / ${alpha})`;
}

function hexToRgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// One pixel of ImageData as a little-endian 32-bit integer.
export function pixel([red, green, blue], alpha) {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

export function readTheme(items) {
  const scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return {
    ink: value("--ink"),
    muted: value("--muted"),
    line: value("--line"),
    empty: value("--empty"),
    surface: value("--surface"),
    scheme,
    error: value("--error"),
    move: hexToRgb(value("--move")),
    policies: [value("--policy-0"), value("--policy-1")],
    items: Array.from({ length: items }, (_, item) => itemColour(item, scheme)),
    gutter: parseFloat(value("--gutter")),
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
  };
}

// Black or white, whichever contrasts more with a colour.
export function textColour([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#16181d" : "#ffffff";
}
