// Live decisions, newest first. While one is open the list stands still and counts what is newer.

const FILTERS = {
  all: () => true,
  fallback: (decision) => decision.source === "fallback",
  guarded: (decision) => decision.guard.length > 0,
  differs: (decision) => decision.shadow !== null && !decision.shadow.agrees,
};

function decisionTags(decision) {
  const byPolicy = decision.source === "policy";
  const tag = (text, kind) => element("span", { class: `tag ${kind}` }, text);
  return [
    tag(byPolicy ? "policy" : `rule: ${decision.cause ?? "fallback"}`, byPolicy ? "by-policy" : "by-rule"),
    decision.guard.length ? tag("guard", "by-guard") : null,
    decision.shadow && !decision.shadow.agrees ? tag("≠ shadow", "by-shadow") : null,
  ].filter(Boolean);
}

function decisionMore(decision) {
  const { reason, shadow, policy, guard } = decision;
  const shadowWords = shadow ? (shadow.agrees ? "agrees" : "would have done otherwise") : "";
  return [
    element("p", { class: "reason" }, reason.summary),
    comparison(decision.decision, shadow),
    shadow ? element("p", { class: "note" }, element("span", { class: "role by-shadow" }, "shadow"), ` ${shadow.policy.name} `, versionOf(shadow.policy), ` ${shadowWords}`) : null,
    ...Object.entries(reason.choices).flatMap(([name, choices]) => choiceGroup(name, choices)),
    guard.length ? element("ul", { class: "guard-lines" }, ...guard.map((text) => element("li", {}, text))) : null,
    element("p", { class: "note" }, `${policy.name} `, versionOf(policy), ` · mode ${decision.mode} · `, element("code", {}, decision.id)),
  ].filter(Boolean);
}

function createFeed() {
  const list = byId("decisions");
  const entries = new Map(); // by id: { entry, row, more }
  const open = new Set();
  let latest = [];
  let drawnIds = new Set();

  function createEntry(decision) {
    const row = element("button", { type: "button", class: "row", "aria-expanded": "false" },
      element("span", { class: "row-time" }, moment(decision.time)),
      element("span", { class: "row-what" }, plain(decision.decision)),
      element("span", { class: "row-latency" }, milliseconds(decision.latency_ms)),
      element("span", { class: "row-why" }, ...decisionTags(decision), decision.reason.summary));
    const more = element("div", { class: "more", hidden: true });
    const entry = element("li", { "data-id": decision.id, "data-source": decision.source }, row, more);
    row.addEventListener("click", () => {
      if (more.hidden && !more.hasChildNodes()) more.append(...decisionMore(decision));
      more.hidden = !more.hidden;
      row.setAttribute("aria-expanded", !more.hidden);
      if (more.hidden) open.delete(decision.id);
      else open.add(decision.id);
      if (open.size === 0) draw();
    });
    return { entry, row, more };
  }

  // Nodes that stay are not moved: focus and marked text survive a newer decision.
  function draw() {
    const wanted = latest.filter(FILTERS[byId("feed-filter").value]);
    const ids = new Set(wanted.map(({ id }) => id));
    for (const [id, { entry }] of entries) {
      if (ids.has(id)) continue;
      entry.remove();
      entries.delete(id);
      open.delete(id);
    }
    wanted.forEach((decision, i) => {
      if (!entries.has(decision.id)) entries.set(decision.id, createEntry(decision));
      const { entry } = entries.get(decision.id);
      if (drawnIds.size && !drawnIds.has(decision.id)) entry.classList.add("new");
      if (list.children[i] !== entry) list.insertBefore(entry, list.children[i] ?? null);
    });
    drawnIds = new Set(latest.map(({ id }) => id));
    byId("feed-newer").hidden = true;
    byId("feed-empty").hidden = wanted.length > 0;
    setText(byId("feed-empty"), latest.length ? "None of the last decisions is of this kind." : "No decision has been asked for yet.");
    setText(byId("feed-count"), wanted.length ? `the last ${count(wanted.length)}` : "");
  }

  function move(step) {
    const rows = [...entries.values()].map(({ row }) => row).sort((a, b) => (a.compareDocumentPosition(b) & 4 ? -1 : 1));
    const here = rows.findIndex((row) => row.closest("li").contains(document.activeElement));
    const next = rows[Math.min(rows.length - 1, Math.max(0, here < 0 ? 0 : here + step))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }

  byId("feed-filter").addEventListener("change", draw);
  byId("feed-newer").addEventListener("click", draw);
  return {
    show(decisions) {
      latest = decisions;
      const newer = latest.filter(({ id }) => !drawnIds.has(id)).length;
      if (open.size === 0) return draw();
      byId("feed-newer").hidden = newer === 0;
      setText(byId("feed-newer"), `${newer === latest.length ? `${newer} or more` : newer} newer, show them`);
    },
    clear() {
      for (const { entry } of entries.values()) entry.remove();
      entries.clear();
      open.clear();
      latest = [];
      drawnIds = new Set();
      draw();
    },
    move,
    closeAll() {
      for (const { row } of entries.values()) if (row.getAttribute("aria-expanded") === "true") row.click();
    },
  };
}
