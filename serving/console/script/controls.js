// Dialogs, colour theme and keyboard shortcuts.

import { token } from "./api.js";
import { byId, setText } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "loadmaster.theme";
const TOKEN_PATTERN = /^[\x21-\x7e]+$/; // what a header value may contain

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

// Native dialogs: the browser traps the focus, closes them on Escape and restores the focus.
export function openDialog(dialog) {
  if (!document.querySelector("dialog[open]")) dialog.showModal();
}

export function createHelpDialog() {
  for (const button of document.querySelectorAll("dialog [data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  byId("help-button").addEventListener("click", () => openDialog(byId("help-dialog")));
}

export function createTokenDialog(changed) {
  const dialog = byId("token-dialog");
  const field = byId("token-field");
  const finish = () => {
    dialog.close();
    changed();
  };
  const open = () => {
    field.value = "";
    setText(byId("token-error"), "");
    byId("token-remove").hidden = !token.read();
    openDialog(dialog);
    field.focus();
  };
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!TOKEN_PATTERN.test(text)) {
      setText(byId("token-error"), text ? "A token contains only visible ASCII characters." : "Enter a token.");
      return;
    }
    token.save(text);
    finish();
  });
  byId("token-remove").addEventListener("click", () => {
    token.remove();
    finish();
  });
  dialog.addEventListener("close", () => {
    if (!dialog.open) field.value = ""; // the event comes late: it may be open again
  });
  byId("token-button").addEventListener("click", open);
  byId("banner-token").addEventListener("click", open);
  return open;
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
