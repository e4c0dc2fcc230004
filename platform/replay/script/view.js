// The stretch of time on show, shared by every chart, and the sizes that map it to pixels.

const SHORTEST_WINDOW = 0.5; // seconds: tasks of a few ms are then still pixels wide

// Time is kept in seconds; `unit` is what axes count in.
function createView(end, unit) {
  return { from: 0, to: end, end, unit, width: 0, gutter: 0 };
}

function secondsToX(view, seconds) {
  return view.gutter + ((seconds - view.from) / (view.to - view.from)) * view.width;
}

function xToSeconds(view, x) {
  return view.from + ((x - view.gutter) / view.width) * (view.to - view.from);
}

function showWindow(view, from, to) {
  const span = Math.min(view.end, Math.max(Math.min(SHORTEST_WINDOW, view.end), to - from));
  view.from = Math.min(Math.max(0, from), view.end - span);
  view.to = view.from + span;
}

// Zoom about a moment, which keeps its place on the screen. factor > 1 shows more detail.
function zoom(view, factor, about) {
  const span = (view.to - view.from) / factor;
  const from = about - ((about - view.from) / (view.to - view.from)) * span;
  showWindow(view, from, from + span);
}

function pan(view, seconds) {
  showWindow(view, view.from + seconds, view.to + seconds);
}

function isWhole(view) {
  return view.to - view.from >= view.end * 0.9999;
}

function isNarrow(view) {
  return view.gutter < 40; // page.css narrows the gutter on a phone
}

// Round numbers of the unit, far enough apart for their labels.
function ticks(view, spacing) {
  const { seconds } = view.unit;
  const rough = ((view.to - view.from) * spacing) / view.width / seconds;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * magnitude).find((s) => s >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  const last = view.to / seconds / step + 1e-9;
  for (let i = Math.ceil(view.from / seconds / step - 1e-9); i <= last; i++) {
    const at = i * step + 0; // never a negative zero
    found.push({ at: at * seconds, label: number(at, digits) });
  }
  return found;
}

// A canvas sized to its box in device pixels, cleared, its context scaled to CSS pixels.
function openCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
