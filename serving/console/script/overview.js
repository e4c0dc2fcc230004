// The head of a system: what decides and why, and the main figures.

import { byId, element, renderInto, setText, svgElement } from "./dom.js";
import { count, decimal, isNumber, largestFirst, milliseconds, NONE, percent, plural, timeElement } from "./format.js";

export function showState(status) {
  const byPolicy = status.acting === "policy";
  const serving = status.policies.serving;
  byId("state").dataset.source = byPolicy ? "policy" : "rule";
  setText(byId("name"), status.system);
  setText(byId("summary"), status.summary);
  renderInto(byId("headline"), [byPolicy, status.paused, serving, status.rule], () => {
    const lead = byPolicy ? "The policy decides: " : "The rule decides, not the policy: ";
    const name = byPolicy ? serving.name : status.rule;
    return [status.paused ? `Paused. ${lead}` : lead, element("span", { class: "source" }, name)];
  });
  setText(byId("reason"), status.acting_because);
  showSteering(status.steering);
  const { state, since, why, evidence, estimate, profile } = status.lifecycle;
  for (const step of byId("lifecycle").children) {
    const isCurrent = step.textContent === state;
    step.toggleAttribute("data-current", isCurrent);
    if (isCurrent) step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
  }
  byId("lifecycle").dataset.lifecycle = state;
  const repeated = status.acting_because.includes(why ?? "");
  const more = [evidence === why ? null : evidence, estimateText(estimate), profile?.stakes === "high" ? "high stakes" : null].filter(Boolean);
  renderInto(byId("lifecycle-note"), [since, why, repeated, ...more], () => [
    "since ", timeElement(since), repeated ? "" : `: ${why}`, ...more.flatMap((text) => [element("br"), text])]);
  document.title = `${byPolicy ? "" : "▲ rule decides · "}${status.system} · Loadmaster console`;
}

// The engine that `loadmaster steer` connects with this tenant, and its last step.
function showSteering(steering) {
  byId("steering").hidden = !steering;
  if (!steering) return;
  const { engine, mode, result, line, time } = steering;
  renderInto(byId("steering"), [engine, mode, result, line, time], () => [
    element("b", {}, engine), ` in mode ${mode}: `, element("span", { class: "chip", "data-result": result }, result), " ", timeElement(time), line ? `: ${line}` : ""]);
}

const estimateText = (estimate) => estimate
  && `estimated reward ${decimal(estimate.mean)}, at least ${decimal(estimate.lower)} (${estimate.source}, ${plural(estimate.episodes, "episode")})`;

// The last interval is still being filled: current figures come from the one before it.
export const lastComplete = ({ intervals }) => intervals.at(-2) ?? intervals.at(-1);

export function showTiles(status, history) {
  const { decisions, shadow, rewards, drift, policies } = status;
  const last = history ? lastComplete(history) : undefined;
  const rate = last ? last.decisions / history.interval_s : NaN;
  setText(byId("decisions-total"), count(decisions.total));
  setText(byId("decisions-rate"), `${decimal(rate)} per second now`);

  const causes = largestFirst(decisions.by_cause);
  setText(byId("fallback-rate"), percent(decisions.total ? decisions.fallback / decisions.total : NaN));
  setText(byId("fallback-note"), causes.length ? `${count(decisions.fallback)}, mostly ${causes[0][0]}` : "none so far");

  const { p50, p99 } = status.latency_ms;
  setText(byId("latency"), `${decimal(p50)} · ${milliseconds(p99)}`);
  byId("latency").classList.toggle("late", isNumber(p99) && p99 > status.deadline_ms);
  renderInto(byId("latency-bar"), [p50, p99, status.deadline_ms], latencyBar);

  setText(byId("reward"), decimal(rewards.policy.mean));
  setText(byId("reward-note"), `rule ${decimal(rewards.rule.mean)}, ${plural(rewards.policy.count, "reward")}`);

  setText(byId("shadow-agreement"), policies.shadow ? percent(shadow.agreement) : NONE);
  const faults = shadow.faults ? `, ${plural(shadow.faults, "fault")}` : "";
  setText(byId("shadow-note"), policies.shadow ? `of ${count(shadow.decisions)}${faults}` : "no shadow policy");

  const detectors = [drift.rewards, ...Object.values(drift.inputs)];
  const times = detectors.map(({ last: time }) => time).filter(Boolean).sort();
  setText(byId("drift-count"), count(detectors.reduce((sum, detector) => sum + detector.count, 0)));
  renderInto(byId("drift-note"), times.at(-1) ?? null, (time) => (time ? ["last at ", timeElement(time)] : ["none detected"]));
}

// p50 and p99 on a scale that ends at the deadline, or at p99 where that is later.
function latencyBar([p50, p99, deadline]) {
  byId("latency-bar").setAttribute("aria-label", `p50 ${milliseconds(p50)}, p99 ${milliseconds(p99)}, deadline ${milliseconds(deadline)}`);
  const longest = Math.max(deadline, p99 ?? 0) || 1;
  const x = (value) => (isNumber(value) ? (value / longest) * 100 : 0);
  const late = isNumber(p99) && p99 > deadline ? "late" : "";
  return [
    svgElement("rect", { class: "track", x: 0, y: 6, width: 100, height: 4, rx: 2 }),
    svgElement("rect", { class: `p99 ${late}`, x: 0, y: 6, width: x(p99), height: 4, rx: 2 }),
    svgElement("rect", { class: "p50", x: Math.max(0, x(p50) - 1), y: 3, width: 2, height: 10 }),
    svgElement("rect", { class: "deadline", x: x(deadline) - 1, y: 1, width: 1.5, height: 14 }),
    svgElement("text", { x: 106, y: 12 }, `of ${milliseconds(deadline)}`),
  ];
}
