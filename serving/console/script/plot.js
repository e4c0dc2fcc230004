// A chart by hand: scales, ticks, lines with gaps, steps. It knows nothing of what it shows.

const PLOT_HEIGHT = 86;
const PAD = { top: 6, bottom: 6 };

const niceStep = (span, most) => {
  const rough = span / most;
  const ten = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((step) => step * ten).find((step) => step >= rough);
};

// A scale is { y(value), ticks }. Linear ones end at round numbers.
function linearScale(low, high, fewest = 0) {
  const span = Math.max(high - low, fewest) || 1;
  const step = niceStep(span, 3);
  const [from, to] = [Math.floor(low / step) * step, Math.ceil((low + span) / step) * step];
  const ticks = Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => from + i * step);
  return { y: (value) => place((value - from) / (to - from)), ticks };
}

// Latencies span decades: the deadline must stay in the picture without flattening p50.
function logScale(low, high) {
  const decades = Array.from({ length: 16 }, (_, i) => 10 ** (i - 6));
  const marks = decades.flatMap((ten) => [ten, 2 * ten, 5 * ten]);
  const from = marks.findLast((mark) => mark <= low) ?? marks[0];
  const to = marks.find((mark) => mark >= high && mark > from) ?? marks.at(-1);
  const inside = marks.filter((mark) => mark >= from && mark <= to);
  const ticks = inside.length > 4 ? inside.filter((mark) => decades.includes(mark)) : inside;
  const [low10, high10] = [from, to].map(Math.log10);
  return { y: (value) => place((Math.log10(Math.max(value, from)) - low10) / (high10 - low10)), ticks };
}

const place = (share) => PLOT_HEIGHT - PAD.bottom - share * (PLOT_HEIGHT - PAD.top - PAD.bottom);

// Smallest round window that holds the data, in minutes, ending with the last interval.
function windowOf(intervals, interval_s) {
  const to = intervals.length ? Date.parse(intervals.at(-1).time) + 1000 * interval_s : Date.now();
  const from = intervals.length ? Date.parse(intervals[0].time) : to;
  const minutes = [5, 15, 30, 60].find((each) => to - from <= each * 60e3) ?? 60;
  return { from: to - minutes * 60e3, to, minutes };
}

function timeTicks(view, width) {
  const minutes = [1, 2, 5, 10, 15, 30].find((each) => (view.minutes / each) * 64 <= width) ?? 30;
  const first = Math.ceil(view.from / (minutes * 60e3));
  const ticks = [];
  for (let n = first; n * minutes * 60e3 <= view.to; n++) ticks.push(n * minutes * 60e3);
  return ticks;
}

const at = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;

// Points [x, y or null] as a line that breaks where nothing is known, and where time was left out.
function linePath(points, widest) {
  let path = "";
  let before = null;
  for (const [x, y] of points) {
    if (y !== null) path += `${before !== null && x - before <= widest ? "L" : "M"}${at(x, y)}`;
    before = y === null ? null : x;
  }
  return path.replace(/M([^ML]+)(?=M|$)/g, "M$1h0.01"); // a lone point is a dot
}

// Steps of one width from `low` up to `high`: one closed shape a stretch, so that none shows seams.
function stepPath(steps, width) {
  const stretches = [];
  for (const step of steps) {
    const before = stretches.at(-1)?.at(-1);
    if (before && step.x - before.x <= 1.5 * width) stretches.at(-1).push(step);
    else stretches.push([step]);
  }
  return stretches.map((stretch) => {
    const ends = stretch.map((step, i) => stretch[i + 1]?.x ?? step.x + width);
    const over = stretch.map(({ high }, i) => `V${high.toFixed(1)}H${ends[i].toFixed(1)}`).join("");
    const under = stretch.map(({ x, low }) => `V${low.toFixed(1)}H${x.toFixed(1)}`).reverse().join("");
    return `M${at(stretch[0].x, stretch[0].low)}${over}${under}Z`;
  }).join("");
}
