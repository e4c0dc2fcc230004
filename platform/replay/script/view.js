// The time window shown by every chart, and its mapping to pixels.

import { number } from "./format.js";

const SHORTEST_WINDOW = 0.5; // seconds: tasks of a few ms are then pixels wide

// Times are in seconds; `unit` is the unit of the axis labels.
export function createView(end, unit, shortest = SHORTEST_WINDOW) {
  return { from: 0, to: end, end, unit, shortest: Math.min(shortest, end), width: 0, gutter: 0 };
}

export function secondsToX(view, seconds) {
  return view.gutter + ((seconds - view.from) / (view.to - view.from)) * view.width;
}

export function xToSeconds(view, x) {
  return view.from + ((x - view.gutter) / view.width) * (view.to - view.from);
}

export function showWindow(view, from, to) {
  const span = Math.min(view.end, Math.max(view.shortest, to - from));
  view.from = Math.min(Math.max(0, from), view.end - span);
  view.to = view.from + span;
}

// Zooms about a time, which keeps its position on the screen. factor > 1 shows more detail.
export function zoom(view, factor, centre) {
  const span = (view.to - view.from) / factor;
  const from = centre - ((centre - view.from) / (view.to - view.from)) * span;
  showWindow(view, from, from + span);
}

export function pan(view, seconds) {
  showWindow(view, view.from + seconds, view.to + seconds);
}

export function isWhole(view) {
  return view.to - view.from >= view.end * 0.9999;
}

export function isNarrow(view) {
  return view.gutter < 40; // page.css narrows the gutter on small screens
}

// The smallest of 1, 2, 5, 10, 20, 50, ... that is at least `smallest`.
export function roundStep(smallest) {
  const magnitude = 10 ** Math.floor(Math.log10(smallest));
  return [1, 2, 5, 10].map((step) => step * magnitude).find((step) => step >= smallest);
}

// Round times at least `spacing` pixels apart, with labels.
export function timeTicks(view, spacing) {
  const { seconds, steps = [] } = view.unit;
  const least = ((view.to - view.from) * spacing) / view.width / seconds;
  const step = (least > 0.5 && steps.find((each) => each >= least)) || roundStep(least);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  const last = view.to / seconds / step + 1e-9;
  for (let i = Math.ceil(view.from / seconds / step - 1e-9); i <= last; i++) {
    const value = i * step + 0; // never a negative zero
    ticks.push({ s: value * seconds, label: number(value, digits) });
  }
  return ticks;
}
