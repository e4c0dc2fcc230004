// Light, dark, or as the system says. Kept for the next visit where the browser lets us.

const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "loadmaster.theme";

function readTheme() {
  try {
    const kept = localStorage.getItem(THEME_KEY);
    return THEMES.includes(kept) ? kept : "auto";
  } catch {
    return "auto";
  }
}

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
    // Storage is off: the theme holds for this page.
  }
}

showTheme(readTheme());
byId("theme-button").addEventListener("click", nextTheme);
