// Colour theme and keyboard shortcuts.

import { openDialog } from "./dialogs.js";
import { byId, setText } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "loadmaster.theme";

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  setText(byId("theme-button"), `theme: ${theme}`);
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  showTheme(next);
  try {
    localStorage.setItem(THEME_KEY, next);
  } catch {
    // Storage is disabled: the theme applies to this page only.
  }
}

export function createThemeButton() {
  let saved = null;
  try {
    saved = localStorage.getItem(THEME_KEY);
  } catch {
    // Storage is disabled.
  }
  showTheme(THEMES.includes(saved) ? saved : "auto");
  byId("theme-button").addEventListener("click", nextTheme);
}

// Single-key shortcuts, inactive in input fields and while a dialog is open.
export function addShortcuts({ systems, selectSystem, feed, actions, openTokenDialog }) {
  const keys = {
    "?": () => openDialog(byId("help-dialog")),
    j: () => feed.move(1),
    k: () => feed.move(-1),
    p: () => actions.open(byId("resume").hidden ? "pause" : "resume"),
    t: openTokenDialog,
    d: nextTheme,
    Escape: () => feed.closeAll(),
  };
  addEventListener("keydown", (event) => {
    const busy = document.querySelector("dialog[open]") ?? event.target.closest?.("input, select");
    if (busy || event.ctrlKey || event.metaKey || event.altKey) return;
    const name = /^[1-9]$/.test(event.key) ? systems.names()[Number(event.key) - 1] : null;
    if (!name && !keys[event.key]) return;
    event.preventDefault();
    if (name) selectSystem(name);
    else keys[event.key]();
  });
}
