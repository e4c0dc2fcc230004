// The head of a system: who acts and why, and the figures that an operator reads first.

const LIFECYCLE = ["OFFLINE", "ONLINE", "SERVING"];

function versionOf(policy) {
  return element("code", { title: policy.version }, policy.version.slice(0, 12));
}

function showActing(status) {
  const byPolicy = status.acting === "policy";
  const serving = status.policies.serving;
  byId("acting").dataset.acting = byPolicy ? "policy" : "rule";
  setText(byId("name"), status.system);
  setText(byId("summary"), status.summary);
  showIn(byId("headline"), [byPolicy, status.paused, serving, status.rule], () => {
    if (byPolicy) return ["The policy acts: ", element("span", { class: "actor" }, serving.name)];
    const lead = status.paused ? "Paused: the rule acts, not the policy: " : "The rule acts, not the policy: ";
    return [lead, element("span", { class: "actor" }, status.rule)];
  });
  setText(byId("because"), status.acting_because);
  byId("lifecycle").querySelectorAll("li").forEach((step, i) => {
    const here = LIFECYCLE[i] === status.lifecycle.state;
    step.toggleAttribute("data-here", here);
    if (here) step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
  });
  byId("lifecycle").dataset.lifecycle = status.lifecycle.state;
  const { since, why } = status.lifecycle;
  const told = status.acting_because.includes(why ?? ""); // no need to say it twice
  showIn(byId("lifecycle-why"), [since, why, told], () => ["since ", moment(since), told ? "" : `: ${why}`]);
  document.title = `${byPolicy ? "" : "▲ rule acts · "}${status.system} · Loadmaster console`;
}

const largest = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]).filter(([, n]) => n > 0);

function showTiles(status, history) {
  const { decisions, shadow, rewards, drift, policies } = status;
  const last = history ? lastWhole(history) : undefined;
  const rate = last ? last.decisions / history.interval_s : NaN;
  setText(byId("decisions-total"), count(decisions.total));
  setText(byId("decisions-rate"), `${figure(rate)} a second now`);

  const causes = largest(decisions.by_cause);
  setText(byId("fallback-rate"), percent(decisions.total ? decisions.fallback / decisions.total : NaN));
  setText(byId("fallback-why"), causes.length ? `${count(decisions.fallback)}, mostly ${causes[0][0]}` : "none so far");

  const { p50, p99 } = status.latency_ms;
  setText(byId("latency"), `${figure(p50)} · ${milliseconds(p99)}`);
  byId("latency").classList.toggle("late", known(p99) && p99 > status.deadline_ms);
  showIn(byId("latency-bar"), [p50, p99, status.deadline_ms], () => latencyBar(byId("latency-bar"), p50, p99, status.deadline_ms));

  setText(byId("reward"), figure(rewards.policy.mean));
  setText(byId("reward-beside"), `rule ${figure(rewards.rule.mean)}, ${count(rewards.policy.count)} told`);

  setText(byId("shadow-agreement"), policies.shadow ? percent(shadow.agreement) : NONE);
  const faults = shadow.faults ? `, ${plural(shadow.faults, "fault")}` : "";
  setText(byId("shadow-beside"), policies.shadow ? `of ${count(shadow.decisions)}${faults}` : "nothing in shadow");

  const inputs = Object.values(drift.inputs).reduce((sum, { count: seen }) => sum + seen, 0);
  const moments = [drift.rewards.last, ...Object.values(drift.inputs).map(({ last: at }) => at)].filter(Boolean).sort();
  setText(byId("drift-count"), count(drift.rewards.count + inputs));
  showIn(byId("drift-beside"), moments.at(-1) ?? null, (at) => (at ? ["last at ", moment(at)] : ["none seen"]));
}

// p50 and p99 on a rule that ends at the deadline; past it, the bar turns loud.
function latencyBar(bar, p50, p99, deadline) {
  bar.setAttribute("viewBox", "0 0 160 16");
  bar.setAttribute("aria-label", `p50 ${milliseconds(p50)}, p99 ${milliseconds(p99)}, deadline ${milliseconds(deadline)}`);
  const most = Math.max(deadline, p99 ?? 0) || 1;
  const x = (value) => (known(value) ? (value / most) * 100 : 0);
  const late = known(p99) && p99 > deadline ? "late" : null;
  return [
    drawn("rect", { class: "track", x: 0, y: 6, width: 100, height: 4, rx: 2 }),
    drawn("rect", { class: `p99 ${late ?? ""}`, x: 0, y: 6, width: x(p99), height: 4, rx: 2 }),
    drawn("rect", { class: "p50", x: Math.max(0, x(p50) - 1), y: 3, width: 2, height: 10 }),
    drawn("rect", { class: "deadline", x: x(deadline) - 1, y: 1, width: 1.5, height: 14 }),
    drawn("text", { x: 106, y: 12 }, `of ${milliseconds(deadline)}`),
  ];
}
