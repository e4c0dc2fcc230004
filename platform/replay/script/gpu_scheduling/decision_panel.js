// Decisions of a learned policy: its jobs in order, with a map of machines.

import { createStepper, legendEntry } from "../decision_panel.js";
import { byId, element, showTooltip } from "../dom.js";
import { number, plural } from "../format.js";
import { heatGradient } from "../palette.js";
import { cellText, cellWidth, createRow, machineAt, paintMapHead, priorityText } from "./decision_table.js";
import { decisionText, unpackDecision } from "./decisions.js";
import { jobText, jobTitle } from "./format.js";

// Returns null if no policy of the replay has decisions.
export function createDecisionPanel(replay, player, selection) {
  const body = byId("decision-jobs").tBodies[0];
  let shown = null; // the unpacked decision
  let cell = 0; // width of a machine's cells in pixels
  const stepper = createStepper(replay, player, {
    decisionsOf: ({ case: record }) => record?.steps,
    countText,
    show(decision, theme) {
      cell = cellWidth(replay, byId("decision-scroll").clientWidth - (innerWidth <= 640 ? 280 : 430));
      shown = unpackDecision(decision);
      body.replaceChildren(...shown.rows.map((row, i) => createRow(replay, shown, row, i, theme, cell)));
      paintMapHead(byId("map-head"), replay, shown, theme, cell);
      return { texts: decisionText(replay, shown), legend: legend(shown, theme) };
    },
    isNotable: ({ stopped }) => stopped.length > 0,
    markOf({ stopped, kind }, theme) {
      if (stopped.length) return { colour: theme.error, tall: true };
      return { colour: kind === "reconsidering" ? theme.line : theme.muted, tall: false };
    },
  });
  if (!stepper) return null;

  const rowOf = (event) => shown.rows.find(({ job }) => job === Number(event.target.closest("tr")?.dataset.job));
  const tooltipTexts = (event, row) => {
    if (event.target.closest(".priority")) return priorityText(shown, row);
    const canvas = event.target.closest("canvas");
    if (!canvas) return [jobText(replay, row.job)];
    const machine = machineAt(replay, cell, event.clientX - canvas.getBoundingClientRect().left);
    return machine < 0 ? [] : cellText(replay, shown, row, machine);
  };
  body.addEventListener("pointermove", (event) => {
    const row = rowOf(event);
    selection.hover(row ? row.job : -1);
    const texts = row ? tooltipTexts(event, row) : [];
    if (!texts.length) return showTooltip(event);
    const paragraphs = texts.map((text, i) => element("p", text, i ? "" : "muted"));
    return showTooltip(event, element("b", jobTitle(replay, row.job)), ...paragraphs);
  });
  body.addEventListener("pointerleave", (event) => {
    showTooltip(event);
    selection.hover(-1);
  });
  body.addEventListener("click", (event) => {
    const row = rowOf(event);
    if (row) selection.togglePin(row.job);
  });
  return stepper;
}

function countText({ case: { decisions, choices, steps } }) {
  return (
    `${plural(decisions, "decision")}, ${number(choices, 0)} with a choice` +
    (steps.length < choices ? `; a sample of ${number(steps.length, 0)} is shown` : "")
  );
}

function legend({ kind }, theme) {
  const usage = legendEntry("usage-sample", "share of the machine's GPUs in use");
  if (kind === "reconsidering") {
    return [
      legendEntry("held-sample", "a running job on its machine"),
      legendEntry("stop-sample", "stopped"),
      legendEntry("next-sample", "starts there next"),
      usage,
    ];
  }
  const heat = legendEntry("heat-sample", "affinity of a job, from its lowest to its highest");
  heat.firstChild.style.background = heatGradient(theme.scheme);
  return [heat, legendEntry("placed-sample", "placed here"), legendEntry("hatch-sample", "does not fit"), usage];
}
