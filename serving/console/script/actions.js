// Pause, resume, promote and roll back: a dialog describes each action and shows its error.

import { request, systemPath, token } from "./api.js";
import { openDialog } from "./controls.js";
import { byId, element, setText } from "./dom.js";
import { NONE, percent, plural, versionElement } from "./format.js";
import { DEFAULT_TENANT } from "./tenants.js";

const policyText = (policy) => (policy ? [policy.name, " ", versionElement(policy)] : [NONE]);

const ACTIONS = {
  pause: {
    title: "Pause",
    text: ({ rule }) => `The rule ${rule} decides from the next request on, until the system is resumed.`,
    takesReason: true,
  },
  resume: {
    title: "Resume",
    text: () => "The policy decides again if the lifecycle state allows it.",
    takesReason: true,
  },
  promote: {
    title: "Promote",
    text: () => "The shadow policy becomes the serving policy. Rolling back undoes this.",
    facts: ({ policies, shadow }) => [
      ["serving now", policyText(policies.serving)],
      ["after", policyText(policies.shadow)],
      ["in shadow", [`agreed in ${percent(shadow.agreement)} of ${plural(shadow.decisions, "decision")}, ${plural(shadow.faults, "fault")}`]],
    ],
    requires: "shadow",
  },
  rollback: {
    title: "Roll back",
    text: () => "The previous policy serves again.",
    facts: ({ policies }) => [["serving now", policyText(policies.serving)], ["after", policyText(policies.previous)]],
    requires: "previous",
  },
};

// Why all actions are disabled, or null.
function disabledReason(service, fresh) {
  if (!fresh) return "Actions are disabled until the service responds.";
  if (!service.tokens) return null;
  if (!token.read()) return "Actions need an admin token.";
  return service.scope === "read" ? "This token is read-only; actions need an admin token." : null;
}

// The tenant that is paused or resumed; null: the whole system.
function actionTenant(name, status, service) {
  if (name === "resume" && status.paused_scope === "system") return null;
  return status.tenant === DEFAULT_TENANT && !service.tenants && status.paused_scope !== "tenant" ? null : status.tenant;
}

export function createActions(done) {
  const dialog = byId("action-dialog");
  const submit = byId("action-submit");
  let pending = null; // { name, system } of the open dialog
  let status = null;
  let service = null;

  function open(name) {
    if (byId(name).disabled || byId(name).hidden) return;
    const { title, text, facts, takesReason = false } = ACTIONS[name];
    const tenant = takesReason ? actionTenant(name, status, service) : null;
    pending = { name, system: status.system, tenant };
    setText(byId("action-title"), tenant ? `${title} ${status.system} for tenant ${tenant}?` : `${title} ${status.system}?`);
    setText(byId("action-text"), text(status));
    byId("action-facts").replaceChildren(...(facts?.(status) ?? []).map(([term, parts]) =>
      element("div", {}, element("dt", {}, term), element("dd", {}, ...parts))));
    byId("action-reason-label").hidden = !takesReason;
    byId("action-reason").value = "";
    setText(byId("action-error"), "");
    setText(submit, title);
    submit.disabled = false;
    openDialog(dialog);
    (takesReason ? byId("action-reason") : submit).focus();
  }

  byId("action-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const { name, system, tenant } = pending;
    const reason = byId("action-reason").value.trim();
    submit.disabled = true; // one request per click
    try {
      const result = await request(systemPath(system, name), { ...(reason && { reason }), ...(tenant && { tenant }) });
      dialog.close();
      done(system, result);
    } catch (error) {
      setText(byId("action-error"), error.message);
      submit.disabled = false;
    }
  });
  for (const name of Object.keys(ACTIONS)) byId(name).addEventListener("click", () => open(name));

  return {
    open,
    show(newStatus, newService, fresh) {
      [status, service] = [newStatus, newService];
      const reason = disabledReason(service, fresh);
      byId("pause").hidden = status.paused;
      byId("resume").hidden = !status.paused;
      for (const [name, { requires }] of Object.entries(ACTIONS)) {
        const missing = requires && !status.policies[requires] ? `no ${requires} policy` : null;
        byId(name).disabled = (reason ?? missing) !== null;
        byId(name).title = reason ?? missing ?? "";
      }
      byId("actions-note").hidden = reason === null;
      setText(byId("actions-note"), reason ?? "");
    },
  };
}
