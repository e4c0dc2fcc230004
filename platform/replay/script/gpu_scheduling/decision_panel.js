// The panel that steps through the decisions of a learned policy.

import { firstAbove } from "../data.js";
import { byId, element, openCanvas, showTooltip } from "../dom.js";
import { number, plural, timeText } from "../format.js";
import { css } from "../palette.js";
import { cellText, cellWidth, createRow, heatColour, machineAt, paintMapHead, priorityText } from "./decision_table.js";
import { decisionText, unpackDecision } from "./decisions.js";
import { jobText, jobTitle } from "./format.js";

// Returns null if no policy of the replay has decisions.
export function createDecisionPanel(replay, player, selection) {
  const recorded = replay.policies.filter(({ case: record }) => record?.steps.length);
  const section = byId("decisions");
  section.hidden = recorded.length === 0;
  if (section.hidden) return null;
  const body = byId("decision-jobs").tBodies[0];
  let policy = null;
  let decisions = []; // of the policy, packed
  let index = 0;
  let shown = null; // the unpacked decision at `index`
  let theme = null;
  let cell = 0; // width of a machine's cells in pixels

  function draw() {
    if (!theme) return;
    cell = cellWidth(replay, byId("decision-scroll").clientWidth - (innerWidth <= 640 ? 280 : 430));
    shown = unpackDecision(decisions[index]);
    body.replaceChildren(...shown.rows.map((row, i) => createRow(replay, shown, row, i, theme, cell)));
    paintMapHead(byId("map-head"), replay, shown, theme, cell);
    paintDecisionMarks(byId("decision-marks"), decisions, theme);
    const position = `${index + 1} of ${decisions.length}`;
    byId("decision-slider").value = index;
    byId("decision-slider").setAttribute("aria-valuetext", `decision ${position}`);
    byId("decision-position").textContent = position;
    const [situation, outcome] = decisionText(replay, shown);
    byId("decision-text").replaceChildren(
      element("span", `${timeText(replay.unit, shown.time_s)} · `, "when"),
      `${situation} `,
      element("b", outcome),
    );
    byId("decision-key").replaceChildren(...legend(shown, theme));
    byId("decision-previous").disabled = index === 0;
    byId("decision-next").disabled = index === decisions.length - 1;
  }

  function goTo(wanted) {
    index = Math.min(decisions.length - 1, Math.max(0, wanted));
    draw();
    player.seek(decisions[index].time_s);
  }

  function selectPolicy(selected) {
    policy = selected;
    decisions = policy.case.steps;
    index = 0;
    const { decisions: total, choices } = policy.case;
    byId("decisions-policy").textContent = policy.name;
    byId("decisions-policy").className = `policy-${replay.policies.indexOf(policy)}`;
    byId("decisions-count").textContent =
      `${plural(total, "decision")}, ${number(choices, 0)} with a choice` +
      (decisions.length < choices ? `; a sample of ${number(decisions.length, 0)} is shown` : "");
    byId("decision-slider").max = decisions.length - 1;
    byId("decision-stop").hidden = !decisions.some(({ stopped }) => stopped.length);
  }

  // Shows the last decision up to a time.
  function follow(seconds) {
    if (Math.abs(decisions[index].time_s - seconds) < 1e-6) return;
    const last = Math.max(0, firstAbove(decisions.map(({ time_s }) => time_s), seconds + 1e-6) - 1);
    if (last === index) return;
    index = last;
    draw();
  }

  const buttons = {
    "decision-previous": () => goTo(index - 1),
    "decision-next": () => goTo(index + 1),
    "decision-stop": () => {
      const following = [...decisions.keys()].map((i) => (index + 1 + i) % decisions.length);
      goTo(following.find((i) => decisions[i].stopped.length) ?? index);
    },
    "decision-policy": () => {
      selectPolicy(recorded[(recorded.indexOf(policy) + 1) % recorded.length]);
      follow(player.time);
      draw();
    },
  };
  for (const [id, act] of Object.entries(buttons)) byId(id).addEventListener("click", act);
  byId("decision-policy").hidden = recorded.length < 2;
  byId("decision-slider").addEventListener("input", (event) => goTo(Number(event.target.value)));
  const keys = {
    ArrowLeft: () => goTo(index - 1),
    ArrowRight: () => goTo(index + 1),
    PageUp: () => goTo(index - 10),
    PageDown: () => goTo(index + 10),
    Home: () => goTo(0),
    End: () => goTo(decisions.length - 1),
  };
  section.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation(); // outside the panel these keys move the time
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
    if (event.key === "n") goTo(index + 1);
    if (event.key === "p") goTo(index - 1);
  });

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

  const jump = element("button", "decisions ↓");
  jump.type = "button";
  jump.addEventListener("click", () => {
    section.scrollIntoView();
    section.focus({ preventScroll: true });
  });
  byId("gap").before(jump);
  selectPolicy(recorded[0]);
  addEventListener("resize", draw);
  return {
    follow,
    repaint(newTheme) {
      theme = newTheme;
      draw();
    },
    // #decision=12 shows that decision.
    readFragment(fragment) {
      const wanted = Number(fragment.get("decision"));
      if (!wanted) return;
      goTo(wanted - 1);
      requestAnimationFrame(() => section.scrollIntoView()); // once the charts have their height
    },
  };
}

function paintDecisionMarks(canvas, decisions, theme) {
  const width = canvas.clientWidth;
  const context = openCanvas(canvas, width, 10, theme);
  decisions.forEach(({ stopped, kind }, i) => {
    const x = 8 + ((width - 16) * i) / Math.max(1, decisions.length - 1);
    const stops = stopped.length > 0;
    context.fillStyle = stops ? theme.error : kind === "reconsidering" ? theme.line : theme.muted;
    context.fillRect(x - 1, stops ? 0 : 3, stops ? 2 : 1, stops ? 10 : 5);
  });
}

function legend({ kind }, theme) {
  const entry = (className, text) => {
    const node = element("span");
    node.append(element("i", "", `sample ${className}`), text);
    return node;
  };
  const usage = entry("usage-sample", "share of the machine's GPUs in use");
  if (kind === "reconsidering") {
    return [
      entry("held-sample", "a running job on its machine"),
      entry("stop-sample", "stopped"),
      entry("next-sample", "starts there next"),
      usage,
    ];
  }
  const heat = entry("heat-sample", "affinity of a job, from its lowest to its highest");
  const colours = [0, 0.25, 0.5, 0.75, 1].map((share) => css(heatColour(share, theme.scheme)));
  heat.firstChild.style.background = `linear-gradient(90deg, ${colours.join(", ")})`;
  return [heat, entry("placed-sample", "placed here"), entry("hatch-sample", "does not fit"), usage];
}
