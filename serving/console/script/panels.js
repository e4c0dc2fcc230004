// The panels below: policies, causes, guard, rewards, drift, retraining, log.

function table(heads, rows, classes = "") {
  const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  return element("table", { class: classes }, element("thead", {}, head), element("tbody", {}, ...body));
}

function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.map(([name, value, kind]) =>
    element("div", {}, element("dt", {}, name), element("dd", { class: kind ?? null }, value))));
}

// Counts as bars beside their names, the largest first; `kept` keeps the order and the zeros.
function bars(counts, kind, kept = false) {
  const rows = kept ? Object.entries(counts) : largest(counts);
  if (!rows.length) return [element("p", { class: "empty" }, "none so far")];
  const most = Math.max(1, ...rows.map(([, n]) => n));
  return [element("dl", { class: "bars" }, ...rows.map(([name, n]) => {
    const bar = element("i", { class: kind });
    bar.style.setProperty("--share", n / most);
    return element("div", { "data-none": n === 0 }, element("dt", {}, name), element("dd", {}, bar, count(n)));
  }))];
}

function policyRows({ policies, rule }) {
  const role = (name, kind) => element("span", { class: `role ${kind}` }, name);
  const rows = ["serving", "shadow", "previous"].map((name) => {
    const policy = policies[name];
    const kind = { serving: "by-policy", shadow: "by-shadow", previous: "" }[name];
    if (!policy) return [role(name, kind), element("span", { class: "none" }, "none"), "", ""];
    return [role(name, kind), policy.name, versionOf(policy), moment(policy.since)];
  });
  return [table(["", "bundle", "version", "since"], [...rows, [role("rule", "by-rule"), rule, "", ""]], "policies")];
}

// Means with their deviations on one scale, and the thresholds that the lifecycle looks at.
function rewardRows({ policy, rule, thresholds }) {
  const told = [["policy", policy, "by-policy"], ["rule", rule, "by-rule"]];
  const lines = [["online", thresholds.online], ["serving", thresholds.serving]].filter(([, at]) => known(at));
  const ends = told.flatMap(([, { mean, std }]) => (known(mean) ? [mean - (std ?? 0), mean + (std ?? 0)] : []));
  const all = [...ends, ...lines.map(([, at]) => at)];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const share = (value) => (high > low ? ((value - low) / (high - low)) * 100 : 50);
  const rows = told.map(([name, { mean, std, count: many }, kind]) => {
    const scale = drawn("svg", { class: `interval ${kind}`, viewBox: "0 0 100 16", preserveAspectRatio: "none", "aria-hidden": "true" },
      ...lines.map(([, at]) => drawn("line", { class: "threshold", x1: share(at), x2: share(at), y1: 0, y2: 16 })),
      known(mean) ? drawn("line", { class: "spread", x1: share(mean - (std ?? 0)), x2: share(mean + (std ?? 0)), y1: 8, y2: 8 }) : null,
      known(mean) ? drawn("line", { class: "mean", x1: share(mean), x2: share(mean), y1: 2, y2: 14 }) : null);
    return [element("span", { class: `role ${kind}` }, name), scale, `${figure(mean)} ± ${figure(std)}`, count(many)];
  });
  const words = [...lines, ["deviation at most", thresholds.deviation]].filter(([, at]) => known(at));
  const note = words.map(([name, at]) => `${name} ${figure(at)}`).join(" · ");
  return [table(["", "", "mean", "told"], rows, "rewards"), element("p", { class: "note" }, `thresholds: ${note || NONE}`)];
}

function driftRows({ rewards, inputs }) {
  const seen = (what) => element("span", { class: what.count ? "by-drift seen" : "none" }, count(what.count));
  const last = (what) => (what.last ? moment(what.last) : element("span", { class: "none" }, "never"));
  const rows = Object.entries(inputs).map(([name, what]) => [name, figure(what.mean), seen(what), last(what)]);
  return [table(["input", "mean", "drifts", "last"], [["rewards", "", seen(rewards), last(rewards)], ...rows], "drift")];
}

function retrainingRows(retraining) {
  if (!retraining) return [element("p", { class: "empty" }, "No retraining is under way.")];
  const { job, status, submitted_at: at, why, bundle, verdict } = retraining;
  return [
    element("p", { class: "retraining-head" }, element("b", {}, "Retraining "),
      element("span", { class: "chip", "data-job": status }, status), " ", element("code", {}, job)),
    facts([["submitted", moment(at)], ["why", why ?? NONE], ["bundle", bundle ?? "not yet"], ["verdict", verdict ?? "not yet"]]),
  ];
}

function logRows({ log, breaker }) {
  return [facts([
    ["rows", count(log.rows)],
    ["on disk", bytes(log.bytes)],
    ["dropped", count(log.dropped), log.dropped ? "wrong" : null],
    ["fault", log.fault ?? "none", log.fault ? "wrong" : null],
    ["breaker", breaker, breaker === "open" ? "wrong" : null],
  ])];
}

function showPanels(status) {
  showIn(byId("policies"), { policies: status.policies, rule: status.rule }, policyRows);
  showIn(byId("causes"), status.decisions.by_cause, (counts) => bars(counts, "by-rule"));
  showIn(byId("guard"), status.guard, (counts) => bars(counts, "by-guard", true));
  const guarded = Object.values(status.guard).reduce((sum, n) => sum + n, 0);
  setText(byId("guard-key"), plural(guarded, "action"));
  showIn(byId("rewards"), status.rewards, rewardRows);
  showIn(byId("drift"), status.drift, driftRows);
  showIn(byId("retraining"), status.retraining, retrainingRows);
  showIn(byId("log"), { log: status.log, breaker: status.breaker }, logRows);
}
