// Decisions of AWARE: the reason, the margins that the actor set, and the nearest known applications.

import { createStepper, createTrack, legendEntry } from "../decision_panel.js";
import { byId, element } from "../dom.js";
import { number, plural } from "../format.js";
import { latencyText } from "./format.js";

const BAR = 96; // width of a similarity of 1, in pixels
const MEANINGS = {
  load: "factor of the forecast load",
  spread: "factor of the forecast's deviation",
  latency: "factor of the p99",
  oom: "reward that pods killed for their memory cost",
  change: "reward a step that other replicas have to gain",
  restart: "reward a step that smaller memory has to gain",
};

// Returns null if no policy of the replay has decisions.
export function createDecisionPanel(replay, player) {
  const body = byId("decision-margins").tBodies[0];
  const stepper = createStepper(replay, player, {
    decisionsOf: ({ case: record }) => record?.steps,
    countText: ({ case: { count, changes, steps } }) =>
      `${plural(count, "decision")}, ${number(changes, 0)} change the plan` +
      (steps.length < count ? `; ${number(steps.length, 0)} are shown` : ""),
    show(decision) {
      body.replaceChildren(...decision.margins.map(createRow));
      byId("decision-margins").hidden = decision.margins.length === 0;
      showKnown(replay.policies.find(({ case: record }) => record?.steps.includes(decision)));
      return { texts: decisionTexts(decision), legend: legend(decision) };
    },
    isNotable: ({ changed }) => changed,
    markOf: ({ changed }, theme) => ({ colour: changed ? theme.error : theme.muted, tall: changed }),
  });
  return stepper;
}

function decisionTexts({ plan, why, expected, earned, decided, notes }) {
  const outcome = `${plan.charAt(0).toUpperCase()}${plan.slice(1)}.`;
  const parts = [decided && `Decided by ${decided}`, why];
  if (expected !== null) parts.push(`reward expected ${number(expected, 3)}, earned ${number(earned ?? NaN, 3)}`);
  else if (earned !== null) parts.push(`reward of the step ${number(earned, 3)}`);
  parts.push(...notes);
  const text = parts.filter(Boolean).join("; ");
  return [text && `${text.charAt(0).toUpperCase()}${text.slice(1)}.`, outcome];
}

const signed = (value) => `${value >= 0.005 ? "+" : ""}${number(value, 2)}`;

function createRow({ name, action, value, rule }) {
  const row = element("tr");
  row.dataset.margin = name;
  const scale = (at) => `${50 + 50 * Math.min(1, Math.max(-1, at))}%`;
  row.append(
    element("td", name),
    createTrack("action", { mean: action, std: 0 }, scale, signed(action)),
    element("td", value || "–"),
    element("td", rule || "–"),
    element("td", MEANINGS[name] ?? "", "meaning"),
  );
  return row;
}

function showKnown({ known, application }) {
  byId("known").hidden = known.length === 0;
  if (!known.length) return;
  byId("known-title").textContent = `Nearest known applications to ${application}`;
  byId("known-count").textContent =
    `cosine similarity of the embedding to those of ${plural(known.length, "training application")}: ` +
    `${number(known.at(-1).similarity, 2)} to ${number(known[0].similarity, 2)}`;
  byId("known-applications").tBodies[0].replaceChildren(...known.map((each) => createKnownRow(each, application)));
}

function createKnownRow({ name, similarity, cpu_ms, io_ms, memory_mib, slo_ms }, application) {
  const row = element("tr");
  const bar = element("i");
  bar.style.width = `${Math.round(BAR * Math.max(0, similarity))}px`;
  const near = element("td", "", "similarity");
  near.append(bar, element("span", number(similarity, 3)));
  const label = element("td", name === application ? `${name} (this one)` : name);
  label.title = name;
  row.append(
    label, near,
    element("td", `${number(cpu_ms, 0)} ms`), element("td", `${number(io_ms, 0)} ms`),
    element("td", `${number(memory_mib, 0)} MiB`), element("td", latencyText(slo_ms / 1000)),
  );
  return row;
}

function legend({ margins }) {
  return margins.length ? [legendEntry("action-sample", "action of the actor from −1 to 1; 0 is the margin of the rule")] : [];
}
