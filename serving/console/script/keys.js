// Shortcuts of one key; never while somebody writes or a dialog asks.

function listenToKeys({ systems, choose, feed, actions, askToken }) {
  const keys = {
    "?": () => openDialog(byId("help-dialog")),
    j: () => feed.move(1),
    k: () => feed.move(-1),
    p: () => actions.open(byId("resume").hidden ? "pause" : "resume"),
    t: askToken,
    d: nextTheme,
    Escape: () => feed.closeAll(),
  };
  addEventListener("keydown", (event) => {
    const busy = document.querySelector("dialog[open]") ?? event.target.closest?.("input, select");
    if (busy || event.ctrlKey || event.metaKey || event.altKey) return;
    const name = /^[1-9]$/.test(event.key) ? systems.names()[Number(event.key) - 1] : null;
    if (!name && !keys[event.key]) return;
    event.preventDefault();
    if (name) choose(name);
    else keys[event.key]();
  });
}
