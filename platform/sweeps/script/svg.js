// SVG elements, and the colours of trials.

import { css, oklchToRgb } from "../../replay/script/palette.js";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Empties a chart and sets its size in CSS pixels.
export function openChart(chart, width, height) {
  chart.replaceChildren();
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.style.width = `${width}px`;
  chart.style.height = `${height}px`;
}

// A text that ends in an ellipsis beyond `width` pixels, whole on hover.
export function label(text, x, y, attributes = {}, width = Infinity) {
  const fits = Math.max(3, Math.floor(width / 6.3));
  const shown = text.length > fits ? `${text.slice(0, fits - 1)}…` : text;
  const node = svg("text", { x, y, ...attributes }, shown);
  if (shown !== text) node.append(svg("title", {}, text));
  return node;
}

// The colour of a share from 0, the best trial, to 1, the worst, which is nearest to the ground.
export function shareColour(share) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const between = (best, worst) => best + share * (worst - best);
  if (dark) return css(oklchToRgb(between(0.88, 0.46), between(0.16, 0.11), between(105, 300)));
  return css(oklchToRgb(between(0.43, 0.82), between(0.17, 0.13), between(285, 90)));
}
