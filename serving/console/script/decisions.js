// Recent decisions, newest first. While one is expanded the list is not updated; it shows how many
// newer decisions there are.

import { byId, element, setText, svgElement } from "./dom.js";
import { count, decimal, flatten, isNumber, milliseconds, NONE, percent } from "./format.js";
import { timeElement, valueText, versionElement } from "./format.js";

const MAX_CHOICES = 12; // shown of each group
const REPEATED = "requirements"; // part of a decision that repeats the others for another API
const FILTERS = {
  all: () => true,
  fallback: (decision) => decision.source === "fallback",
  guarded: (decision) => decision.guard.length > 0,
  differs: (decision) => decision.shadow !== null && !decision.shadow.agrees,
};

function decisionTags({ source, cause, guard, shadow }) {
  const byPolicy = source === "policy";
  const tag = (text, kind) => element("span", { class: `tag ${kind}` }, text);
  return [
    tag(byPolicy ? "policy" : `rule: ${cause ?? "fallback"}`, byPolicy ? "by-policy" : "by-rule"),
    guard.length ? tag("guard", "by-guard") : null,
    shadow && !shadow.agrees ? tag("≠ shadow", "by-shadow") : null,
  ].filter(Boolean);
}

function decisionDetails({ id, decision, reason, shadow, policy, guard, mode }) {
  return [
    element("p", { class: "summary" }, reason.summary),
    ...(reason.notes ?? []).map((text) => element("p", { class: "note" }, text)),
    decisionTable(decision, shadow),
    shadow ? element("p", { class: "note" }, element("span", { class: "role by-shadow" }, "shadow"), ` ${shadow.policy.name} `,
      versionElement(shadow.policy), shadow.agrees ? " agrees" : ` differs${closeness(shadow)}`) : null,
    ...Object.entries(reason.choices).flatMap(([name, choices]) => choiceTable(name, choices)),
    guard.length ? element("ul", { class: "guard-lines" }, ...guard.map((text) => element("li", {}, text))) : null,
    element("p", { class: "note" }, `${policy.name} `, versionElement(policy), ` · mode ${mode} · `, element("code", {}, id)),
  ].filter(Boolean);
}

const shownPart = (decision) => Object.fromEntries(Object.entries(decision).filter(([name]) => name !== REPEATED));

// Systems that set quantities also say how close two decisions are.
const closeness = ({ agreement }) => (agreement > 0 ? `, ${percent(agreement)} alike` : "");

// The options that a decision scored: a bar each, with a whisker where scores are uncertain.
function choiceTable(name, all) {
  const choices = all.slice(0, MAX_CHOICES);
  const uncertain = choices.some((choice) => isNumber(choice.uncertainty));
  const byProbability = !uncertain && choices.some((choice) => isNumber(choice.probability));
  const value = (choice) => (byProbability ? choice.probability : choice.score);
  const error = (choice) => (uncertain ? choice.uncertainty ?? 0 : 0);
  // Probabilities are drawn on the whole range from 0 to 1.
  const ends = byProbability ? [0, 1] : [0, ...choices.flatMap((choice) => [value(choice) - error(choice), value(choice) + error(choice)])];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const x = (number) => (high > low ? ((number - low) / (high - low)) * 100 : 0);
  const rows = choices.map((choice) => element("tr", {},
    element("td", { title: choice.name }, choice.name),
    element("td", { class: "bar-cell" }, choiceBar(x, value(choice) ?? 0, error(choice))),
    element("td", {}, byProbability ? percent(choice.probability) : scoreText(choice)),
    byProbability ? element("td", { class: "second" }, decimal(choice.score)) : null));
  const columns = byProbability ? "probability, score" : uncertain ? "score ± standard deviation" : "score";
  const caption = element("caption", {}, element("b", {}, name), ` ${columns}`);
  const more = all.length > choices.length ? element("p", { class: "note" }, `and ${count(all.length - choices.length)} more`) : null;
  return [element("table", { class: "choices" }, caption, element("tbody", {}, ...rows)), more];
}

const scoreText = ({ score, uncertainty }) => (isNumber(uncertainty) ? `${decimal(score)} ± ${decimal(uncertainty)}` : decimal(score));

function choiceBar(x, value, error) {
  const [from, to] = [Math.min(x(0), x(value)), Math.max(x(0), x(value))];
  const [low, high] = [x(value - error), x(value + error)];
  return svgElement("svg", { class: "choice-bar", viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    svgElement("rect", { class: "bar", x: from, y: 2, width: Math.max(0.4, to - from), height: 8 }),
    error ? svgElement("path", { class: "whisker", d: `M${low} 6H${high}M${low} 3V9M${high} 3V9` }) : null);
}

// The decision beside that of the shadow policy; rows that differ are marked.
function decisionTable(decision, shadow) {
  const [active, other] = [new Map(flatten(shownPart(decision))), new Map(flatten(shownPart(shadow?.decision ?? {})))];
  const names = [...new Set([...active.keys(), ...(shadow ? other.keys() : [])])].filter((name) => name || active.size === 1);
  const rows = names.map((name) => {
    const differs = shadow && active.get(name) !== other.get(name);
    return element("tr", { class: differs ? "differs" : null },
      element("td", {}, name || "decision"), element("td", {}, active.get(name) ?? NONE),
      shadow ? element("td", {}, other.get(name) ?? NONE) : null);
  });
  const head = ["", "decided", ...(shadow ? ["shadow"] : [])].map((text) => element("th", { scope: "col" }, text));
  return element("table", { class: "compared" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

export function createFeed() {
  const list = byId("decisions");
  const entries = new Map(); // by decision id: { entry, row }
  const expanded = new Set();
  let latest = [];
  let shownIds = new Set();

  function createEntry(decision) {
    const row = element("button", { type: "button", class: "row", "aria-expanded": "false" },
      element("span", { class: "row-time" }, timeElement(decision.time)),
      element("span", { class: "row-decision" }, valueText(shownPart(decision.decision))),
      element("span", { class: "row-latency" }, milliseconds(decision.latency_ms)),
      element("span", { class: "row-reason" }, ...decisionTags(decision), decision.reason.summary));
    const details = element("div", { class: "details", hidden: true });
    const entry = element("li", { "data-id": decision.id, "data-source": decision.source }, row, details);
    row.addEventListener("click", () => {
      if (!details.hasChildNodes()) details.append(...decisionDetails(decision));
      details.hidden = !details.hidden;
      row.setAttribute("aria-expanded", !details.hidden);
      if (details.hidden) expanded.delete(decision.id);
      else expanded.add(decision.id);
      if (expanded.size === 0) draw();
    });
    return { entry, row };
  }

  // Nodes that stay are not moved, so that focus and text selection survive.
  function draw() {
    const wanted = latest.filter(FILTERS[byId("feed-filter").value]);
    const ids = new Set(wanted.map(({ id }) => id));
    for (const [id, { entry }] of entries) {
      if (ids.has(id)) continue;
      entry.remove();
      entries.delete(id);
      expanded.delete(id);
    }
    wanted.forEach((decision, i) => {
      if (!entries.has(decision.id)) entries.set(decision.id, createEntry(decision));
      const { entry } = entries.get(decision.id);
      if (shownIds.size && !shownIds.has(decision.id)) entry.classList.add("new");
      if (list.children[i] !== entry) list.insertBefore(entry, list.children[i] ?? null);
    });
    shownIds = new Set(latest.map(({ id }) => id));
    byId("feed-newer").hidden = true;
    byId("feed-empty").hidden = wanted.length > 0;
    setText(byId("feed-empty"), latest.length ? "No recent decision matches the filter." : "No decisions yet.");
    setText(byId("feed-count"), wanted.length ? `the last ${count(wanted.length)}` : "");
  }

  byId("feed-filter").addEventListener("change", draw);
  byId("feed-newer").addEventListener("click", draw);
  return {
    show(decisions) {
      latest = decisions;
      if (expanded.size === 0) return draw();
      const newer = latest.filter(({ id }) => !shownIds.has(id)).length;
      byId("feed-newer").hidden = newer === 0;
      setText(byId("feed-newer"), `Show ${newer === latest.length ? `${newer} or more` : newer} newer`);
    },
    clear() {
      expanded.clear();
      latest = [];
      draw();
    },
    // Moves the focus by `step` decisions.
    move(step) {
      const rows = [...list.querySelectorAll(".row")];
      const current = rows.findIndex((row) => row.closest("li").contains(document.activeElement));
      const next = rows[Math.min(rows.length - 1, Math.max(0, current < 0 ? 0 : current + step))];
      next?.focus();
      next?.scrollIntoView({ block: "nearest" });
    },
    closeAll() {
      for (const { row } of entries.values()) if (row.getAttribute("aria-expanded") === "true") row.click();
    },
  };
}
