// A decision as a table: a row a job, who goes first on top, and beside it the job on every machine.

const ROW = 26; // pixels
const HEAD = 60;
const CELL = { least: 6, most: 44, written: 30 };

// From hardly any colour to a strong one, in either colour scheme.
function heatColour(share, scheme) {
  const lightness = scheme === "dark" ? 0.3 + 0.5 * share : 0.96 - 0.5 * share;
  return oklchToRgb(lightness, 0.015 + 0.15 * share, 235 + 35 * share);
}

// From the machine that a job likes the least to the one it likes the most: affinities of different
// jobs are never compared with each other.
function heatScale(row) {
  const known = (row.affinity ?? []).filter(Number.isFinite);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return (value) => (high > low ? (value - low) / (high - low) : 0.5);
}

function priorityScale(step) {
  const low = Math.min(...step.rows.map(({ mean, std }) => mean - std));
  const high = Math.max(...step.rows.map(({ mean, std }) => mean + std));
  return (value) => `${(100 * (value - low)) / Math.max(high - low, 1e-9)}%`;
}

function createStepRow(replay, step, row, turn, theme, cell) {
  const made = element("tr");
  made.dataset.job = row.job;
  const waited = step.time_s - replay.jobs.arrival_s[row.job];
  const cells = [
    element("td", turn),
    element("td", replay.jobs.name[row.job]),
    element("td", gangText(replay, row.job)),
    element("td", secondsText(waited)),
    element("td", row.attained ? secondsText(row.attained) : "–"),
    createPriority(row, priorityScale(step)),
  ];
  const swatch = element("i", "", "swatch");
  swatch.style.background = css(theme.jobs[row.job]);
  cells[1].prepend(swatch);
  if (row.running) cells[1].append(element("span", " runs", "state"));
  const map = element("td", "", "map");
  const canvas = element("canvas");
  map.append(canvas);
  made.append(...cells, map);
  made.classList.toggle("unheeded", !row.heeded);
  made.classList.toggle("stopped", step.stopped.includes(row.job));
  paintMapRow(canvas, replay, step, row, theme, cell);
  return made;
}

function createPriority(row, scale) {
  const cell = element("td", "", "priority");
  const track = element("div", "", "track");
  const band = element("i", "", "band");
  band.style.left = scale(row.mean - row.std);
  band.style.right = `calc(100% - ${scale(row.mean + row.std)})`;
  const mark = element("b");
  mark.style.left = scale(row.mean);
  track.append(band, mark);
  cell.append(track, element("span", number(row.mean, 2)));
  return cell;
}

function paintMapRow(canvas, replay, step, row, theme, cell) {
  const count = replay.machines.rack.length;
  const context = openCanvas(canvas, mapX(replay, cell, count), ROW);
  canvas.style.width = `${mapX(replay, cell, count)}px`;
  context.font = theme.font;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const scale = heatScale(row);
  const placed = machinesOf(step.placed, row.job);
  const held = machinesOf(step.held, row.job);
  const heir = step.then.length && !row.running ? machinesOf(step.then, row.job) : [];
  for (let machine = 0; machine < count; machine++) {
    const box = [mapX(replay, cell, machine) + 0.5, 1.5, cell - 1, ROW - 3];
    const value = row.affinity?.[machine] ?? NaN;
    const here = (places) => places.find((place) => place.machine === machine);
    const [goes, stays, comes] = [here(placed), here(held), here(heir)];
    if (Number.isFinite(value)) {
      const colour = heatColour(scale(value), theme.scheme);
      fillBox(context, box, css(colour));
      // Out of the way of the mark in the corner.
      const beside = goes?.instances > 1 ? [box[0], box[1] + 5, box[2] - 12, box[3] - 4] : box;
      if (cell >= CELL.written) write(context, beside, number(value, 2), inkOn(colour));
    } else if (stays) {
      fillBox(context, box, css(theme.jobs[row.job]));
      if (cell >= CELL.written) write(context, box, instancesText(stays), inkOn(theme.jobs[row.job]));
    } else if (step.kind === "reconsidering") fillBox(context, box, theme.empty);
    else hatchBox(context, box, theme, row.affinity ? 0.5 : 0.22);
    if (stays && step.stopped.includes(row.job)) strikeBox(context, box, theme);
    if (goes || comes) ringBox(context, box, theme, comes && css(theme.jobs[row.job]));
    if (comes && cell >= CELL.written) write(context, box, instancesText(comes), theme.ink);
    if (goes && goes.instances > 1) markInstances(context, box, goes.instances, theme);
  }
}

function instancesText({ instances }) {
  return instances > 1 ? `×${instances}` : "●";
}

// Racks stand a little apart.
function mapX(replay, cell, machine) {
  const { rack } = replay.machines;
  const racks = machine < rack.length ? rack[machine] : rack.at(-1);
  return machine * cell + racks * 6;
}

function machineAt(replay, cell, x) {
  return replay.machines.rack.findIndex((_, machine) => {
    const left = mapX(replay, cell, machine);
    return x >= left && x < left + cell;
  });
}

function fillBox(context, [x, y, width, height], colour) {
  context.fillStyle = colour;
  context.fillRect(x, y, width, height);
}

function write(context, [x, y, width, height], text, colour) {
  context.fillStyle = colour;
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

function clipped(context, [x, y, width, height], draw) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  draw();
  context.restore();
}

function hatchBox(context, box, theme, alpha) {
  const [x, y, width, height] = box;
  fillBox(context, box, theme.empty);
  clipped(context, box, () => {
    context.globalAlpha = alpha;
    context.strokeStyle = css(theme.move);
    context.lineWidth = 1;
    for (let at = -height; at < width; at += 5) {
      context.beginPath();
      context.moveTo(x + at, y + height);
      context.lineTo(x + at + height, y);
      context.stroke();
    }
  });
}

function strikeBox(context, [x, y, width, height], theme) {
  context.strokeStyle = theme.fault;
  context.lineWidth = 2.5;
  context.strokeRect(x + 1, y + 1, width - 2, height - 2);
  context.beginPath();
  context.moveTo(x + 1, y + height - 1);
  context.lineTo(x + width - 1, y + 1);
  context.stroke();
}

function ringBox(context, [x, y, width, height], theme, colour) {
  context.strokeStyle = colour || theme.ink;
  context.lineWidth = 2.5;
  context.strokeRect(x + 1, y + 1, width - 2, height - 2);
}

function markInstances(context, [x, y, width], instances, theme) {
  const text = `×${instances}`;
  const room = context.measureText(text).width + 4;
  if (room > width) return;
  fillBox(context, [x + width - room, y, room, 11], theme.ink);
  context.save();
  context.font = theme.font.replace("11px", "9px");
  write(context, [x + width - room, y, room, 11], text, theme.surface);
  context.restore();
}

// Racks with their GPUs and price; the machines' numbers, and what each has free.
function paintMapHead(canvas, replay, step, theme, cell) {
  const { rack, gpus } = replay.machines;
  const width = mapX(replay, cell, rack.length);
  const context = openCanvas(canvas, width, HEAD);
  canvas.style.width = `${width}px`;
  context.font = theme.font;
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (const { rack: place, gpu, price, machines } of racksOf(replay)) {
    const left = mapX(replay, cell, machines[0]);
    const room = machines.length * cell - 2;
    context.fillStyle = theme.muted;
    const fitting = (...names) => names.find((text) => context.measureText(text).width <= room) ?? "";
    context.fillText(fitting(`rack ${place + 1}`, place + 1), left, 8);
    context.fillText(fitting(`${gpu} · ${dollars(price)}/h`, `${gpu} ${dollars(price)}`, gpu), left, 22);
    context.fillStyle = theme.line;
    context.fillRect(left, 30, room + 1, 1);
  }
  context.textAlign = "center";
  rack.forEach((_, machine) => {
    const middle = mapX(replay, cell, machine) + cell / 2;
    context.fillStyle = theme.ink;
    if (cell >= 14) context.fillText(machine + 1, middle, 40);
    const share = step.free[machine] / (100 * gpus[machine]);
    const track = [middle - cell / 2 + 1, 50, cell - 2, 5];
    fillBox(context, track, theme.line);
    fillBox(context, [track[0], track[1], track[2] * (1 - share), track[3]], theme.muted);
  });
  canvas.setAttribute("aria-label", `The ${rack.length} machines, and how full they are`);
}

function cellTip(replay, step, row, machine) {
  const { gpus } = replay.machines;
  const free = `${gpusText(step.free[machine])} of its ${gpus[machine]} GPUs free`;
  const where = `${machineTitle(replay, machine)}, ${free}`;
  const here = (places) => machinesOf(places, row.job).find((place) => place.machine === machine);
  const said = [];
  if (row.affinity) {
    const value = row.affinity[machine];
    const better = row.affinity.filter((other) => other > value).length;
    const rank = better ? `${plural(better, "machine")} ${better > 1 ? "are" : "is"} liked better` : "liked best";
    said.push(Number.isFinite(value) ? `affinity ${number(value, 3)}: ${rank}` : "no room for an instance here");
  } else if (step.kind !== "reconsidering") said.push("the whole gang finds no room now, so it is not asked where");
  const [goes, stays, comes] = [here(step.placed), here(step.held), here(step.then)];
  if (goes) said.push(`${plural(goes.instances, "instance")} placed here`);
  if (stays) said.push(`${plural(stays.instances, "instance")} here${step.stopped.includes(row.job) ? ": stopped" : ", may stay"}`);
  if (comes && step.kind === "reconsidering" && !row.running) said.push(`${plural(comes.instances, "instance")} placed here next`);
  return [where, said.join("; ") || "not here"];
}

function priorityTip(step, row) {
  const turn = step.rows.indexOf(row) + 1;
  const spread = `priority ${number(row.mean, 3)}, give or take ${number(row.std, 3)} while it learns`;
  if (!row.heeded) return [spread, "it cannot start now: its priority changes nothing"];
  return [spread, `its turn is number ${turn}: the highest priority goes first`];
}
