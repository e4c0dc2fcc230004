// Native dialogs: they trap focus, close with escape, and give focus back.

function openDialog(dialog) {
  if (!document.querySelector("dialog[open]")) dialog.showModal();
}

for (const button of document.querySelectorAll("dialog [data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}

byId("help-button").addEventListener("click", () => openDialog(byId("help-dialog")));

// Header values are visible ASCII; anything else would be refused by the browser with less words.
const TOKEN_FORM = /^[\x21-\x7e]+$/;

function createTokenDialog(changed) {
  const dialog = byId("token-dialog");
  const field = byId("token-field");
  const settle = () => {
    field.value = "";
    dialog.close();
    changed();
  };
  const show = () => {
    field.value = "";
    setText(byId("token-fault"), "");
    byId("token-forget").hidden = !token.read();
    openDialog(dialog);
    field.focus();
  };
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = field.value.trim();
    if (!TOKEN_FORM.test(given)) {
      setText(byId("token-fault"), given ? "A token has letters, digits and signs of ASCII alone." : "Enter a token, or cancel.");
      return;
    }
    token.keep(given);
    settle();
  });
  byId("token-forget").addEventListener("click", () => {
    token.forget();
    settle();
  });
  dialog.addEventListener("close", () => (field.value = ""));
  byId("token-button").addEventListener("click", show);
  byId("banner-token").addEventListener("click", show);
  return show;
}
