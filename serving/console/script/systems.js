// The systems as tabs, each with its lifecycle state and whether its policy or its rule decides.

import { byId, element, setText } from "./dom.js";
import { plural } from "./format.js";

function createTab(name, select) {
  const lifecycle = element("span", { class: "chip" });
  const source = element("span", { class: "tab-source" });
  const decisions = element("span", { class: "tab-count" });
  const tab = element("button", { type: "button", role: "tab", "aria-controls": "system", class: "tab" },
    element("span", { class: "tab-line" }, element("b", {}, name), lifecycle),
    element("span", { class: "tab-line" }, source, decisions),
  );
  tab.addEventListener("click", () => select(name));
  return { name, tab, lifecycle, source, decisions };
}

function showTab({ tab, lifecycle, source, decisions }, system, isSelected) {
  const byPolicy = system.acting === "policy";
  tab.setAttribute("aria-selected", isSelected);
  tab.tabIndex = isSelected ? 0 : -1;
  tab.dataset.source = byPolicy ? "policy" : "rule";
  tab.title = system.summary;
  lifecycle.dataset.lifecycle = system.lifecycle;
  setText(lifecycle, system.lifecycle);
  setText(source, system.paused ? "paused: rule decides" : byPolicy ? "policy decides" : "rule decides");
  setText(decisions, plural(system.decisions, "decision"));
}

export function createSystems(select) {
  const list = byId("systems");
  let tabs = [];
  const names = () => tabs.map(({ name }) => name);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const index = tabs.findIndex(({ tab }) => tab === document.activeElement);
    if (!step || index < 0) return;
    event.preventDefault();
    const next = tabs[(index + step + tabs.length) % tabs.length];
    next.tab.focus();
    select(next.name);
  });
  return {
    names,
    show(systems, selected) {
      const current = systems.map(({ system }) => system);
      if (current.join("\n") !== names().join("\n")) {
        tabs = current.map((name) => createTab(name, select));
        list.replaceChildren(...tabs.map(({ tab }) => tab));
      }
      systems.forEach((system, i) => showTab(tabs[i], system, system.system === selected));
    },
  };
}
