// Recent decisions, newest first. While one is expanded the list is not updated; it shows how many
// newer decisions there are.

import { choiceTable, decisionTable } from "./choices.js";
import { byId, element, setText } from "./dom.js";
import { count, milliseconds, timeElement, valueText, versionElement } from "./format.js";

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
    decisionTable(decision, shadow),
    shadow ? element("p", { class: "note" }, element("span", { class: "role by-shadow" }, "shadow"), ` ${shadow.policy.name} `,
      versionElement(shadow.policy), shadow.agrees ? " agrees" : " differs") : null,
    ...Object.entries(reason.choices).flatMap(([name, choices]) => choiceTable(name, choices)),
    guard.length ? element("ul", { class: "guard-lines" }, ...guard.map((text) => element("li", {}, text))) : null,
    element("p", { class: "note" }, `${policy.name} `, versionElement(policy), ` · mode ${mode} · `, element("code", {}, id)),
  ].filter(Boolean);
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
      element("span", { class: "row-decision" }, valueText(decision.decision)),
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
