// The systems as tabs: each tells its lifecycle and who acts, so that one glance covers all.

function createTab(name, choose) {
  const [title, lifecycle, acting, decisions] = ["b", "span", "span", "span"].map((tag) => element(tag));
  const tab = element("button", { type: "button", role: "tab", "aria-controls": "system", class: "tab" },
    element("span", { class: "tab-head" }, title, lifecycle),
    element("span", { class: "tab-acting" }, acting, decisions),
  );
  decisions.className = "tab-count";
  setText(title, name);
  tab.addEventListener("click", () => choose(name));
  return { name, tab, lifecycle, acting, decisions };
}

function actingWords(system) {
  if (system.paused) return "paused: rule acts";
  return system.acting === "policy" ? "policy acts" : "rule acts";
}

function showTab(parts, system, selected) {
  const here = system.system === selected;
  parts.tab.setAttribute("aria-selected", here);
  parts.tab.tabIndex = here ? 0 : -1;
  parts.tab.dataset.acting = system.acting === "policy" ? "policy" : "rule";
  parts.lifecycle.className = "chip";
  parts.lifecycle.dataset.lifecycle = system.lifecycle;
  parts.acting.className = "who-acts";
  setText(parts.lifecycle, system.lifecycle);
  setText(parts.acting, actingWords(system));
  parts.tab.title = system.summary;
  setText(parts.decisions, plural(system.decisions, "decision"));
}

function createSystems(choose) {
  const list = byId("systems");
  let tabs = [];
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = tabs.findIndex(({ tab }) => tab === document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const next = tabs[(at + step + tabs.length) % tabs.length];
    next.tab.focus();
    choose(next.name);
  });
  return {
    names: () => tabs.map(({ name }) => name),
    show(systems, selected) {
      const names = systems.map(({ system }) => system);
      if (names.join("\n") !== tabs.map(({ name }) => name).join("\n")) {
        tabs = names.map((name) => createTab(name, choose));
        list.replaceChildren(...tabs.map(({ tab }) => tab));
      }
      systems.forEach((system, i) => showTab(tabs[i], system, selected));
    },
  };
}
