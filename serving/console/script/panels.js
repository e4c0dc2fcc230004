// Panels of a system: policies, fallback causes, guard, rewards, drift, retraining, log.

import { byId, element, renderInto, setText, svgElement } from "./dom.js";
import { bytes, count, decimal, isNumber, largestFirst, NONE, plural, timeElement, versionElement } from "./format.js";

function table(heads, rows, classes = "") {
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  return element("table", { class: classes }, element("thead", {}, head), element("tbody", {}, ...body));
}

function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.map(([name, value, kind]) =>
    element("div", {}, element("dt", {}, name), element("dd", { class: kind ?? null }, value))));
}

const role = (name, kind) => element("span", { class: `role ${kind}` }, name);

function bars(rows, kind) {
  if (!rows.length) return [element("p", { class: "empty" }, "none so far")];
  const largest = Math.max(1, ...rows.map(([, n]) => n));
  return [element("dl", { class: "bars" }, ...rows.map(([name, n]) => {
    const bar = element("i", { class: kind });
    bar.style.setProperty("--share", n / largest);
    return element("div", { "data-none": n === 0 }, element("dt", {}, name), element("dd", {}, bar, count(n)));
  }))];
}

function policyRows({ policies, rule }) {
  const kinds = { serving: "by-policy", shadow: "by-shadow", previous: "" };
  const rows = Object.entries(kinds).map(([name, kind]) => {
    const policy = policies[name];
    if (!policy) return [role(name, kind), element("span", { class: "none" }, "none"), "", ""];
    return [role(name, kind), policy.name, versionElement(policy), timeElement(policy.since)];
  });
  return [table(["", "bundle", "version", "since"], [...rows, [role("rule", "by-rule"), rule, "", ""]], "policies")];
}

// Means and standard deviations on one scale, with the thresholds of the lifecycle.
function rewardRows({ policy, rule, thresholds, converged }) {
  const sources = [["policy", policy, "by-policy"], ["rule", rule, "by-rule"]];
  const lines = [["online", thresholds.online], ["serving", thresholds.serving]].filter(([, value]) => isNumber(value));
  const ends = sources.flatMap(([, { mean, std }]) => (isNumber(mean) ? [mean - (std ?? 0), mean + (std ?? 0)] : []));
  const all = [...ends, ...lines.map(([, value]) => value)];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (value) => (high > low ? ((value - low) / (high - low)) * 100 : 50);
  const mark = (kind, from, to, y1, y2) => svgElement("line", { class: kind, x1: x(from), x2: x(to), y1, y2 });
  const rows = sources.map(([name, { mean, std, count: number }, kind]) => {
    const scale = svgElement("svg", { class: `interval ${kind}`, viewBox: "0 0 100 16", preserveAspectRatio: "none", "aria-hidden": "true" },
      ...lines.map(([, value]) => mark("threshold", value, value, 0, 16)),
      isNumber(mean) ? mark("spread", mean - (std ?? 0), mean + (std ?? 0), 8, 8) : null,
      isNumber(mean) ? mark("mean", mean, mean, 2, 14) : null);
    return [role(name, kind), scale, `${decimal(mean)} ± ${decimal(std)}`, count(number)];
  });
  const named = [...lines, ["deviation at most", thresholds.deviation], ["converged", converged]].filter(([, value]) => isNumber(value));
  const note = named.map(([name, value]) => `${name} ${decimal(value)}`).join(" · ");
  return [table(["", "", "mean", "count"], rows, "rewards"), element("p", { class: "note" }, `thresholds: ${note || NONE}`)];
}

function driftRows({ rewards, inputs }) {
  const cells = (detector) => [
    element("span", { class: detector.count ? "by-drift detected" : "none" }, count(detector.count)),
    detector.last ? timeElement(detector.last) : element("span", { class: "none" }, "never"),
  ];
  const rows = Object.entries(inputs).map(([name, detector]) => [name, decimal(detector.mean), ...cells(detector)]);
  return [table(["input", "mean", "drifts", "last"], [["rewards", "", ...cells(rewards)], ...rows], "drift")];
}

function retrainingRows(retraining) {
  if (!retraining) return [element("p", { class: "empty" }, "No retraining job.")];
  const { job, status, submitted_at: submitted, why, bundle, verdict } = retraining;
  return [
    element("p", { class: "retraining-head" }, element("b", {}, "Retraining "),
      element("span", { class: "chip", "data-job": status }, status), " ", element("code", {}, job)),
    facts([["submitted", timeElement(submitted)], ["reason", why ?? NONE], ["bundle", bundle ?? "not yet"], ["comparison", verdict ?? "not yet"]]),
  ];
}

function logRows({ log, breaker }) {
  return [facts([
    ["rows", count(log.rows)],
    ["on disk", bytes(log.bytes)],
    ["dropped", count(log.dropped), log.dropped ? "bad" : null],
    ["error", log.fault ?? "none", log.fault ? "bad" : null],
    ["circuit breaker", breaker, breaker === "open" ? "bad" : null],
  ])];
}

export function showPanels(status) {
  renderInto(byId("policies"), { policies: status.policies, rule: status.rule }, policyRows);
  renderInto(byId("causes"), status.decisions.by_cause, (counts) => bars(largestFirst(counts), "by-rule"));
  renderInto(byId("guard"), status.guard, (counts) => bars(Object.entries(counts), "by-guard"));
  setText(byId("guard-count"), plural(Object.values(status.guard).reduce((sum, n) => sum + n, 0), "action"));
  renderInto(byId("rewards"), status.rewards, rewardRows);
  renderInto(byId("drift"), status.drift, driftRows);
  renderInto(byId("retraining"), status.retraining, retrainingRows);
  renderInto(byId("log"), { log: status.log, breaker: status.breaker }, logRows);
}
