// Scales, ticks and SVG paths of the charts.

export const PLOT_HEIGHT = 86;
const MARGIN = 6; // above and below

const shareToY = (share) => PLOT_HEIGHT - MARGIN - share * (PLOT_HEIGHT - 2 * MARGIN);

function roundStep(span, steps) {
  const smallest = span / steps;
  const magnitude = 10 ** Math.floor(Math.log10(smallest));
  return [1, 2, 5, 10].map((step) => step * magnitude).find((step) => step >= smallest);
}

// A scale is { y(value), ticks }. A linear scale ends at round numbers.
export function linearScale(low, high, leastSpan = 0) {
  const span = Math.max(high - low, leastSpan) || 1;
  const step = roundStep(span, 3);
  const [from, to] = [Math.floor(low / step) * step, Math.ceil((low + span) / step) * step];
  const ticks = Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => from + i * step);
  return { y: (value) => shareToY((value - from) / (to - from)), ticks };
}

// For latencies: p50 stays readable beside a deadline that is decades away.
export function logScale(low, high) {
  const decades = Array.from({ length: 16 }, (_, i) => 10 ** (i - 6));
  const marks = decades.flatMap((decade) => [decade, 2 * decade, 5 * decade]);
  const from = marks.findLast((mark) => mark <= low) ?? marks[0];
  const to = marks.find((mark) => mark >= high && mark > from) ?? marks.at(-1);
  const inside = marks.filter((mark) => mark >= from && mark <= to);
  const ticks = inside.length > 4 ? inside.filter((mark) => decades.includes(mark)) : inside;
  const [low10, high10] = [from, to].map(Math.log10);
  return { y: (value) => shareToY((Math.log10(Math.max(value, from)) - low10) / (high10 - low10)), ticks };
}

// The smallest round number of minutes that holds the data, ending with the last interval.
export function timeWindow(intervals, interval_s) {
  const to = intervals.length ? Date.parse(intervals.at(-1).time) + 1000 * interval_s : Date.now();
  const from = intervals.length ? Date.parse(intervals[0].time) : to;
  const minutes = [5, 15, 30, 60].find((length) => to - from <= length * 60e3) ?? 60;
  return { from: to - minutes * 60e3, to, minutes };
}

export function timeTicks(view, width) {
  const minutes = [1, 2, 5, 10, 15, 30].find((step) => (view.minutes / step) * 64 <= width) ?? 30;
  const first = Math.ceil(view.from / (minutes * 60e3));
  const ticks = [];
  for (let n = first; n * minutes * 60e3 <= view.to; n++) ticks.push(n * minutes * 60e3);
  return ticks;
}

const point = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;

// A line through points [x, y or null], broken at nulls and at gaps wider than `widest`.
export function linePath(points, widest) {
  let path = "";
  let before = null;
  for (const [x, y] of points) {
    if (y !== null) path += `${before !== null && x - before <= widest ? "L" : "M"}${point(x, y)}`;
    before = y === null ? null : x;
  }
  return path.replace(/M([^ML]+)(?=M|$)/g, "M$1h0.01"); // a single point becomes a dot
}

// Steps of one width from `low` to `high`. Adjacent steps form one closed shape, without seams.
export function stepPath(steps, width) {
  const runs = [];
  for (const step of steps) {
    const before = runs.at(-1)?.at(-1);
    if (before && step.x - before.x <= 1.5 * width) runs.at(-1).push(step);
    else runs.push([step]);
  }
  return runs.map((run) => {
    const ends = run.map((step, i) => run[i + 1]?.x ?? step.x + width);
    const top = run.map(({ high }, i) => `V${high.toFixed(1)}H${ends[i].toFixed(1)}`).join("");
    const bottom = run.map(({ x, low }) => `V${low.toFixed(1)}H${x.toFixed(1)}`).reverse().join("");
    return `M${point(run[0].x, run[0].low)}${top}${bottom}Z`;
  }).join("");
}
