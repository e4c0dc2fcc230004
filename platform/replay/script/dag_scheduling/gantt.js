// Executors by time. Every executor becomes one line of device pixels, filled straight into an
// image: the cost is one pass over the rows in the window plus the pixels, however many tasks
// share a pixel. A pixel takes the colour of the task that fills most of it; its opacity is the
// share of it that any work fills, so that idle slivers show as lighter even from afar.

const HATCH = 6; // device pixels from one hatching stripe of a move to the next
const SEAM = 7; // tasks at least this wide are set apart by a thin line
const DIMMED = 0.1;

// What the other parts of the page leave of the window's height, within reason. Whole device pixels
// a row, or the rows would look uneven; past one a pixel, rows are sampled.
function plotShape(replay, room) {
  const { executors } = replay;
  const target = Math.min(420, Math.max(200, room));
  const ratio = window.devicePixelRatio || 1;
  const rowPixels = Math.max(1, Math.min(Math.floor((target * ratio) / executors), 24 * ratio));
  const rows = Math.min(executors, Math.floor(target * ratio));
  return { rows, rowPixels, height: (rows * rowPixels) / ratio };
}

function executorOf(row, replay, shape) {
  return Math.floor((row * replay.executors) / shape.rows);
}

function paintPlot(canvas, replay, policy, view, theme, shape, lit) {
  const context = openCanvas(canvas, view.gutter + view.width, shape.height);
  const ratio = window.devicePixelRatio || 1;
  const left = Math.round(view.gutter * ratio);
  const width = canvas.width - left;
  context.fillStyle = theme.empty;
  context.fillRect(view.gutter, 0, view.width, shape.height);
  paintGrid(context, view, theme, shape.height);

  const image = new ImageData(width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const gap = shape.rowPixels >= 4 ? 1 : 0;
  const line = createLine(width);
  for (let row = 0; row < shape.rows; row++) {
    fillLine(line, policy.schedule, executorOf(row, replay, shape), view);
    const top = row * shape.rowPixels;
    for (let y = top; y < top + shape.rowPixels - gap; y++) {
      writeLine(line, pixels, y, width, theme, lit);
    }
  }
  const layer = new OffscreenCanvas(width, canvas.height);
  layer.getContext("2d").putImageData(image, 0, 0);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.drawImage(layer, left, 0);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  labelExecutors(context, replay.executors, view, theme, shape);
}

function createLine(width) {
  return {
    row: new Int32Array(width), // the schedule's row that fills most of the pixel, -1: none
    most: new Float32Array(width), // how much of the pixel that row fills
    filled: new Float32Array(width), // how much of it all rows fill
    job: new Int32Array(width),
    moving: new Uint8Array(width),
  };
}

function fillLine(line, schedule, executor, view) {
  const width = line.row.length;
  const scale = width / ((view.to - view.from) * 1000);
  const origin = view.from * 1000;
  line.row.fill(-1);
  line.most.fill(0);
  line.filled.fill(0);
  const last = schedule.first[executor + 1];
  for (let row = firstRowAfter(schedule, executor, origin); row < last; row++) {
    const from = Math.max(0, (schedule.start[row] - origin) * scale);
    if (from >= width) break;
    const to = Math.min(width, (schedule.end[row] - origin) * scale);
    const seam = to - from >= SEAM ? 1 : 0;
    for (let x = Math.floor(from); x < to; x++) {
      const share = Math.min(to, x + 1) - Math.max(from, x);
      if (share > line.most[x]) {
        line.most[x] = share;
        line.row[x] = row;
        line.job[x] = schedule.job[row];
        line.moving[x] = schedule.moving[row];
      }
      line.filled[x] += seam && x <= from ? share * 0.35 : share;
    }
  }
}

function writeLine(line, pixels, y, width, theme, lit) {
  const base = y * width;
  for (let x = 0; x < width; x++) {
    if (line.row[x] < 0) continue;
    const bright = lit < 0 || lit === line.job[x];
    if (line.moving[x] && (x + y) % HATCH >= HATCH / 2) continue;
    const colour = line.moving[x] ? theme.move : theme.jobs[line.job[x]];
    const alpha = Math.min(1, line.filled[x]) * (bright ? 1 : DIMMED);
    pixels[base + x] = pixel(colour, Math.round(alpha * 255));
  }
}

function labelExecutors(context, executors, view, theme, shape) {
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find(
    (step) => (step * shape.height) / executors >= 22,
  );
  context.font = theme.font;
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let executor = 0; executor < executors; executor++) {
    if (executor > 0 && (executor + 1) % (every ?? executors) !== 0) continue;
    const y = ((executor + 0.5) * shape.height) / executors;
    context.fillText(executor + 1, view.gutter - 8, Math.min(Math.max(y, 6), shape.height - 6));
  }
}

// The row under a point of the canvas, or -1. Within a pixel the longest row is meant.
function rowAt(replay, policy, view, shape, x, y) {
  if (x < view.gutter || y < 0 || y >= shape.height) return -1;
  const executor = executorOf(Math.floor((y / shape.height) * shape.rows), replay, shape);
  const { schedule } = policy;
  const from = xToSeconds(view, x - 0.5) * 1000;
  const to = xToSeconds(view, x + 0.5) * 1000;
  let best = -1;
  let longest = -1;
  for (
    let row = firstRowAfter(schedule, executor, from);
    row < schedule.first[executor + 1] && schedule.start[row] < to;
    row++
  ) {
    const overlap = Math.min(to, schedule.end[row]) - Math.max(from, schedule.start[row]);
    if (overlap > longest) [best, longest] = [row, overlap];
  }
  return best;
}

// The page opens on the whole episode.
function openingEnd(replay) {
  return replay.end;
}

// There is nothing on this page but what every replay has.
function startExtras() {
  return null;
}
