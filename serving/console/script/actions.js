// Pause, resume, promote, roll back: each says what will happen, asks, and shows a refusal.

const named = (policy) => (policy ? [policy.name, " ", versionOf(policy)] : [NONE]);

const ACTIONS = {
  pause: {
    title: "Pause",
    says: ({ rule }) => `The rule ${rule} decides from the next request on, until somebody resumes.`,
    facts: () => [],
    takesReason: true,
    can: () => true,
  },
  resume: {
    title: "Resume",
    says: () => "The policy decides again, if its lifecycle allows.",
    facts: () => [],
    takesReason: true,
    can: () => true,
  },
  promote: {
    title: "Promote",
    says: () => "The bundle in shadow becomes the serving one. Rolling back undoes it.",
    facts: ({ policies, shadow }) => [
      ["serving now", named(policies.serving)],
      ["then", named(policies.shadow)],
      ["in shadow", [`agreed in ${percent(shadow.agreement)} of ${plural(shadow.decisions, "decision")}, ${plural(shadow.faults, "fault")}`]],
    ],
    can: ({ policies }) => policies.shadow !== null,
    cannot: "nothing in shadow",
  },
  rollback: {
    title: "Roll back",
    says: () => "The bundle that served before serves again.",
    facts: ({ policies }) => [["serving now", named(policies.serving)], ["then", named(policies.previous)]],
    can: ({ policies }) => policies.previous !== null,
    cannot: "no previous bundle",
  },
};

// Why the buttons are off, in words; null where they are on. The service tells the token's scope.
function withheld(service, fresh) {
  if (!fresh) return "The buttons wait for the service.";
  if (!service.tokens) return null;
  if (!token.read()) return "The buttons need an admin token.";
  return service.scope === "read" ? "This token may read; the buttons need an admin token." : null;
}

function createActions(done) {
  const dialog = byId("action-dialog");
  const go = byId("action-go");
  let asked = null; // { name, system }
  let status = null;

  function open(name) {
    if (byId(name).disabled || byId(name).hidden) return;
    const action = ACTIONS[name];
    asked = { name, system: status.system };
    setText(byId("action-title"), `${action.title} ${status.system}?`);
    setText(byId("action-says"), action.says(status));
    byId("action-facts").replaceChildren(...action.facts(status).map(([term, parts]) =>
      element("div", {}, element("dt", {}, term), element("dd", {}, ...parts))));
    byId("action-reason-label").hidden = !action.takesReason;
    byId("action-reason").value = "";
    setText(byId("action-fault"), "");
    setText(go, action.title);
    go.disabled = false;
    openDialog(dialog);
    (action.takesReason ? byId("action-reason") : go).focus();
  }

  byId("action-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const { name, system } = asked;
    const reason = byId("action-reason").value.trim();
    go.disabled = true; // one click, one request
    try {
      const answer = await ask(address(system, name), ACTIONS[name].takesReason && reason ? { reason } : {});
      dialog.close();
      done(system, answer);
    } catch (error) {
      setText(byId("action-fault"), error.message);
      go.disabled = false;
    }
  });
  for (const name of Object.keys(ACTIONS)) byId(name).addEventListener("click", () => open(name));

  return {
    open,
    show(now, service, fresh) {
      status = now;
      const why = withheld(service, fresh);
      byId("pause").hidden = status.paused;
      byId("resume").hidden = !status.paused;
      for (const [name, action] of Object.entries(ACTIONS)) {
        byId(name).disabled = why !== null || !action.can(status);
        byId(name).title = why ?? (action.can(status) ? "" : action.cannot);
      }
      byId("needs").hidden = why === null;
      setText(byId("needs"), why ?? "");
    },
  };
}
