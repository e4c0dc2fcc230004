// Native dialogs: the browser traps the focus, closes them on Escape and restores the focus.

import { token } from "./api.js";
import { byId, setText } from "./dom.js";

export function openDialog(dialog) {
  if (!document.querySelector("dialog[open]")) dialog.showModal();
}

export function createHelpDialog() {
  for (const button of document.querySelectorAll("dialog [data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  byId("help-button").addEventListener("click", () => openDialog(byId("help-dialog")));
}

const TOKEN_PATTERN = /^[\x21-\x7e]+$/; // what a header value may contain

export function createTokenDialog(changed) {
  const dialog = byId("token-dialog");
  const field = byId("token-field");
  const finish = () => {
    dialog.close();
    changed();
  };
  const open = () => {
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
  dialog.addEventListener("close", () => (field.value = ""));
  byId("token-button").addEventListener("click", open);
  byId("banner-token").addEventListener("click", open);
  return open;
}
