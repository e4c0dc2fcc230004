// A row for each setting: its importance as a bar with its interval, and the results over its values.

import { byId, element } from "../../replay/script/dom.js";
import { percent } from "../../replay/script/format.js";
import { settingScale, valueScale } from "./scales.js";
import { openChart, svg } from "./svg.js";

const BAR = { height: 30, right: 2 };
const SLICE = { width: 118, height: 46, pad: 5 };

export function drawImportance({ data, colours, rankShare }) {
  const { note, method, shares } = data.importance;
  byId("importance-note").textContent = note;
  byId("importance-method").textContent = shares.length ? method : "Right: the result of each trial over its value of the setting.";
  const order = data.parameters.map((_, i) => i).sort((a, b) => (shares[b]?.share ?? 0) - (shares[a]?.share ?? 0) || a - b);
  const rows = order.map((i) => {
    const setting = element("div", data.parameters[i].short, "setting");
    setting.title = data.parameters[i].name;
    if (shares[i]) setting.append(element("small", shareText(shares[i])));
    const slice = svg("svg", {});
    drawSlice(slice, data, i, colours, rankShare);
    return [setting, element("div"), slice];
  });
  byId("importance").replaceChildren(...rows.flat());
  rows.forEach(([, bar], row) => {
    const share = shares[order[row]];
    if (share) drawBar(bar, share);
  });
}

function shareText({ share, low, high, evident }) {
  if (!evident) return "no more than by chance";
  return `${percent(share)} (${percent(low)} to ${percent(high)})`;
}

function drawBar(parent, { share, low, high, evident }) {
  const width = Math.max(60, parent.clientWidth);
  const chart = svg("svg", { class: evident ? "" : "chance" });
  openChart(chart, width, BAR.height);
  const toX = (part) => 1 + part * (width - 1 - BAR.right);
  const middle = BAR.height / 2;
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    chart.append(svg("line", { class: part ? "grid" : "axis", x1: toX(part), x2: toX(part), y1: 0, y2: BAR.height }));
  }
  chart.append(svg("rect", { class: "share", x: toX(0), y: middle - 7, width: Math.max(1, toX(share) - toX(0)), height: 14, rx: 2 }));
  const ends = [low, high].map((part) => `M${toX(part)},${middle - 4}v8`).join("");
  chart.append(svg("path", { class: "whisker", d: `M${toX(low)},${middle}H${toX(high)}${ends}` }));
  parent.append(chart);
}

// The result of each trial over its value of one setting, the best on top.
function drawSlice(chart, data, i, colours, rankShare) {
  openChart(chart, SLICE.width, SLICE.height);
  chart.append(svg("rect", { class: "frame", width: SLICE.width, height: SLICE.height, rx: 4 }));
  const across = settingScale(data.parameters[i], rankShare);
  const up = valueScale(data.trials.map(({ value }) => value));
  data.trials.forEach(({ drawn, value }, trial) => {
    if (value === null) return;
    const share = data.mode === "min" ? 1 - up.share(value) : up.share(value);
    const x = SLICE.pad + (across.tickShare ?? across.share)(drawn[i], trial) * (SLICE.width - 2 * SLICE.pad);
    const y = SLICE.height - SLICE.pad - share * (SLICE.height - 2 * SLICE.pad);
    const dot = svg("circle", { class: "mark dot", cx: x, cy: y, r: trial === data.best ? 4.5 : 3, "data-trial": trial });
    dot.style.fill = colours[trial];
    chart.append(dot);
  });
}
