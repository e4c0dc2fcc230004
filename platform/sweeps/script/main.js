// The report of a sweep: reads the data, draws the charts and the table, and links them.

import { byId, element, showTooltip } from "../../replay/script/dom.js";
import { durationText, plural } from "../../replay/script/format.js";
import { addRowEvents, addSorting, createSelection } from "../../replay/script/table.js";
import { curvesKey, drawCurves } from "./curves.js";
import { drawImportance } from "./importance.js";
import { drawParallel } from "./parallel.js";
import { numberText } from "./scales.js";
import { shareColour } from "./svg.js";

addEventListener("error", (event) => {
  byId("error").textContent = `This page failed: ${event.message}`;
  byId("error").hidden = false;
});

const data = JSON.parse(byId("sweep-data").textContent);
const report = { data, filters: [], rankShare: rankShares(), colours: [] };
const selection = createSelection("trials", "trial", showSelected);
const rows = createTable();

// 0 for the best trial, 1 for the worst; undefined without a result.
function rankShares() {
  const sign = data.mode === "min" ? 1 : -1;
  const ranked = data.trials.map((_, trial) => trial).filter((trial) => data.trials[trial].value !== null);
  ranked.sort((a, b) => sign * (data.trials[a].value - data.trials[b].value));
  const shares = data.trials.map(() => undefined);
  ranked.forEach((trial, rank) => (shares[trial] = ranked.length > 1 ? rank / (ranked.length - 1) : 0));
  return shares.map((share) => share ?? 1);
}

function settingsText({ settings }) {
  return data.parameters.map(({ name }, i) => `${name}=${settings[i]}`).join(", ");
}

function resultText({ value, state, iterations, seconds }) {
  const result = value === null ? "no result" : `${data.metric} ${numberText(value)}`;
  return `${result}, ${state} after ${plural(iterations, "iteration")} in ${durationText(seconds)}`;
}

function createTable() {
  const table = byId("trials");
  const last = (value) => (value === null ? Infinity : value);
  const columns = [
    { title: "trial", value: (trial) => data.trials[trial].name, text: ({ name }) => name },
    { title: "status", value: (trial) => data.trials[trial].state, text: () => "", kind: "state" },
    { title: data.metric, value: (trial) => last(data.trials[trial].value), text: ({ value }) => numberText(value ?? NaN) },
    { title: "iterations", value: (trial) => data.trials[trial].iterations, text: ({ iterations }) => iterations },
    { title: "duration", value: (trial) => data.trials[trial].seconds, text: ({ seconds }) => durationText(seconds) },
    ...data.parameters.map(({ short, name }, i) => ({
      title: short,
      label: name,
      value: (trial) => data.trials[trial].drawn[i],
      text: ({ settings }) => settings[i],
      kind: "long",
    })),
  ];
  if (data.trials.some(({ fault }) => fault)) {
    columns.push({ title: "reason", value: (trial) => data.trials[trial].fault, text: ({ fault }) => fault, kind: "reason" });
  }
  const created = data.trials.map((trial, number) => {
    const row = element("tr", "", number === data.best ? "best" : "");
    row.dataset.trial = number;
    row.tabIndex = number ? -1 : 0;
    for (const { text, kind = "" } of columns) {
      const cell = element("td", text(trial), kind);
      if (kind) cell.title = text(trial);
      if (kind === "state") cell.append(element("span", trial.state, trial.state));
      row.append(cell);
    }
    row.cells[0].prepend(element("i", "", "swatch"));
    return row;
  });
  table.tBodies[0].append(...created);
  addSorting(table, columns, created);
  columns.forEach(({ kind = "" }, i) => table.tHead.rows[0].cells[i].classList.add(...(kind ? [kind] : [])));
  addRowEvents(table, "trial", selection);
  return created;
}

function showSelected(highlighted) {
  for (const chart of document.querySelectorAll("#parallel .lines, #curves")) {
    chart.classList.toggle("dimmed", highlighted >= 0);
  }
  for (const node of document.querySelectorAll("[data-trial]")) {
    node.classList.toggle("highlighted", Number(node.dataset.trial) === highlighted);
  }
  for (const line of document.querySelectorAll("svg .trial.highlighted")) line.parentElement.append(line); // on top
  const trial = data.trials[highlighted];
  if (!trial) {
    byId("selected").textContent = "Point at a trial in a chart or in the table for its settings; a click keeps it.";
    return;
  }
  byId("selected").replaceChildren(element("b", trial.name), ` ${resultText(trial)}: ${settingsText(trial)}`);
  if (trial.fault) byId("selected").append(element("span", ` ${trial.fault}`, "fault"));
}

function showFilters() {
  for (const node of document.querySelectorAll("[data-trial]")) {
    node.classList.toggle("filtered", !report.passes(Number(node.dataset.trial)));
  }
  byId("clear").hidden = !report.filters.some(Boolean);
}

function hover(event) {
  const trial = Number(event.target.closest?.("[data-trial]")?.dataset.trial ?? -1);
  selection.hover(trial);
  if (trial < 0) return showTooltip(event);
  const found = data.trials[trial];
  const lines = data.parameters.map(({ short }, i) => element("p", `${short} = ${found.settings[i]}`, "muted"));
  return showTooltip(event, element("b", found.name), element("p", resultText(found)), ...lines);
}

function addChartEvents(chart) {
  chart.addEventListener("pointermove", hover);
  chart.addEventListener("pointerleave", (event) => {
    selection.hover(-1);
    showTooltip(event);
  });
  chart.addEventListener("click", (event) => {
    const trial = event.target.closest("[data-trial]");
    if (trial) selection.togglePin(Number(trial.dataset.trial));
  });
}

function showFailures() {
  const failed = data.trials.flatMap((trial, i) => (["failed", "hung"].includes(trial.state) ? [i] : []));
  byId("failures").hidden = !failed.length;
  byId("failure-list").replaceChildren(
    ...failed.map((i) => {
      const { name, state, fault } = data.trials[i];
      const item = element("li");
      item.dataset.trial = i;
      item.append(element("b", name), ` ${state}: ${fault}`, element("p", settingsText(data.trials[i])));
      return item;
    }),
  );
}

function showScale() {
  const values = data.trials.map(({ value }) => value).filter((value) => value !== null).sort((a, b) => a - b);
  if (data.mode === "max") values.reverse();
  byId("scale-best").textContent = values.length ? `best ${numberText(values[0])}` : "";
  byId("scale-worst").textContent = values.length ? numberText(values.at(-1)) : "";
  const stops = [0, 0.25, 0.5, 0.75, 1].map(shareColour);
  byId("scale").style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
}

function draw() {
  report.colours = report.rankShare.map(shareColour);
  rows.forEach((row, trial) => {
    row.querySelector(".swatch").style.background = data.trials[trial].value === null ? "var(--error)" : report.colours[trial];
  });
  drawParallel(report, showFilters);
  drawImportance(report);
  drawCurves(report);
  showScale();
  showFilters();
  showSelected(selection.highlighted);
}

byId("train").hidden = data.best === null;
byId("command").textContent = data.command ?? "";
byId("curves-key").textContent = curvesKey(report);
byId("clear").addEventListener("click", () => {
  report.filters = [];
  draw();
});
showFailures();
for (const id of ["parallel", "curves", "importance", "failure-list"]) addChartEvents(byId(id));
addEventListener("keydown", (event) => {
  if (event.key === "Escape") selection.pin(-1);
});
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
document.documentElement.dataset.ready = "yes";
