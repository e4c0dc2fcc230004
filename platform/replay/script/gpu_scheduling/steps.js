// Stepping through the decisions of a learned policy.

function startExtras(replay, player, selection) {
  const studied = replay.policies.filter(({ case: study }) => study?.steps.length);
  const section = document.getElementById("decisions");
  section.hidden = studied.length === 0;
  if (section.hidden) return null;
  const at = (id) => document.getElementById(id);
  const scroll = at("step-scroll");
  const body = at("step-jobs").tBodies[0];
  let policy = studied[0];
  let place = 0;
  let shown = null; // the decision on show
  let theme = null;
  let cell = 0;

  const steps = () => policy.case.steps;
  const draw = () => {
    if (!theme) return;
    const machines = replay.machines.rack.length;
    const racks = replay.machines.rack.at(-1) * 6;
    const room = scroll.clientWidth - (isNarrowPage() ? 280 : 430) - racks;
    cell = Math.min(CELL.most, Math.max(CELL.least, Math.floor(room / machines)));
    shown = readStep(steps()[place]);
    body.replaceChildren(
      ...shown.rows.map((row, i) =>
        createStepRow(replay, shown, row, row.heeded ? i + 1 : "", theme, cell),
      ),
    );
    paintMapHead(at("map-head"), replay, shown, theme, cell);
    paintStepMarks(at("step-marks"), steps(), theme);
    at("step").value = place;
    at("step").setAttribute("aria-valuetext", `decision ${place + 1} of ${steps().length}`);
    at("step-place").textContent = `${place + 1} of ${steps().length}`;
    const [situation, outcome] = stepWords(replay, shown);
    at("step-words").replaceChildren(
      element("span", `${momentText(replay.unit, shown.time_s)} · `, "when"),
      `${situation} `,
      element("b", outcome),
    );
    paintKey(at("step-key"), shown, theme);
    at("step-back").disabled = place === 0;
    at("step-on").disabled = place === steps().length - 1;
  };
  const go = (wanted) => {
    place = Math.min(steps().length - 1, Math.max(0, wanted));
    draw();
    player.seek(steps()[place].time_s);
  };
  const choose = (chosen) => {
    policy = chosen;
    const { decisions, choices } = policy.case;
    const kept = steps().length;
    at("decisions-policy").textContent = policy.name;
    at("decisions-policy").className = `policy-${replay.policies.indexOf(policy)}`;
    at("decisions-about").textContent =
      `${plural(decisions, "decision")}, ${number(choices, 0)} with a choice` +
      (kept < choices ? `; ${number(kept, 0)} of these are kept here, spread over the episode` : "");
    at("step").max = kept - 1;
    at("step-stop").hidden = !steps().some((step) => step.stopped.length);
    place = 0;
  };
  const nextStop = () => {
    const ring = [...steps().keys()].map((i) => (place + 1 + i) % steps().length);
    go(ring.find((i) => steps()[i].stopped.length) ?? place);
  };

  at("step-back").addEventListener("click", () => go(place - 1));
  at("step-on").addEventListener("click", () => go(place + 1));
  at("step-stop").addEventListener("click", nextStop);
  at("step").addEventListener("input", (event) => go(Number(event.target.value)));
  at("step-policy").hidden = studied.length < 2;
  at("step-policy").addEventListener("click", () => {
    choose(studied[(studied.indexOf(policy) + 1) % studied.length]);
    follow(player.time);
    draw();
  });
  const far = 10;
  const keys = {
    ArrowLeft: () => go(place - 1),
    ArrowRight: () => go(place + 1),
    PageUp: () => go(place - far),
    PageDown: () => go(place + far),
    Home: () => go(0),
    End: () => go(steps().length - 1),
  };
  section.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation(); // elsewhere these keys move the time
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
    if (event.key === "n") go(place + 1);
    if (event.key === "p") go(place - 1);
  });

  const rowOf = (event) => shown.rows.find(({ job }) => job === Number(event.target.closest("tr")?.dataset.job));
  const tip = at("tip");
  body.addEventListener("pointermove", (event) => {
    const row = rowOf(event);
    selection.hover(row ? row.job : -1);
    const words = row ? tipWords(event, row) : null;
    tip.hidden = !words;
    if (!words) return;
    tip.replaceChildren(
      element("b", jobTitle(replay, row.job)),
      ...words.map((text, i) => element("p", text, i ? "" : "what")),
    );
    moveTip(event);
  });
  const tipWords = (event, row) => {
    if (event.target.closest(".priority")) return priorityTip(shown, row);
    const canvas = event.target.closest("canvas");
    if (!canvas) return [jobFacts(replay, row.job)];
    const machine = machineAt(replay, cell, event.clientX - canvas.getBoundingClientRect().left);
    return machine < 0 ? null : cellTip(replay, shown, row, machine);
  };
  body.addEventListener("pointerleave", () => {
    tip.hidden = true;
    selection.hover(-1);
  });
  body.addEventListener("click", (event) => {
    const row = rowOf(event);
    if (row) selection.keep(selection.kept === row.job ? -1 : row.job);
  });

  // The decision that holds at a moment: the last one up to it.
  function follow(seconds) {
    const all = steps();
    if (Math.abs(all[place].time_s - seconds) < 1e-6) return;
    let low = 0;
    let high = all.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (all[middle].time_s <= seconds + 1e-6) low = middle;
      else high = middle - 1;
    }
    if (low === place) return;
    place = low;
    draw();
  }

  const jump = element("button", "decisions ↓");
  jump.type = "button";
  jump.addEventListener("click", () => {
    section.scrollIntoView();
    section.focus({ preventScroll: true });
  });
  at("gap").before(jump);
  choose(policy);
  addEventListener("resize", draw);
  return {
    follow,
    repaint: (now) => {
      theme = now;
      draw();
    },
    // #decision=12 opens the page at a decision.
    read: (wish) => {
      const wanted = Number(wish.get("decision"));
      if (!wanted) return;
      go(wanted - 1);
      requestAnimationFrame(() => section.scrollIntoView()); // once the charts have their height
    },
  };
}

function isNarrowPage() {
  return innerWidth <= 640;
}

function paintStepMarks(canvas, steps, theme) {
  const width = canvas.clientWidth;
  const context = openCanvas(canvas, width, 10);
  const colours = { placing: theme.muted, again: theme.muted, reconsidering: theme.line };
  steps.forEach((step, i) => {
    const x = 8 + ((width - 16) * i) / Math.max(1, steps.length - 1);
    const stops = step.stopped.length > 0;
    context.fillStyle = stops ? theme.fault : colours[step.kind];
    context.fillRect(x - 1, stops ? 0 : 3, stops ? 2 : 1, stops ? 10 : 5);
  });
}

function paintKey(key, step, theme) {
  const entry = (className, text) => {
    const made = element("span");
    made.append(element("i", "", `sample ${className}`), text);
    return made;
  };
  if (step.kind === "reconsidering") {
    key.replaceChildren(
      entry("held-sample", "a running job on its machine"),
      entry("struck-sample", "must give way"),
      entry("heir-sample", "starts there next"),
      entry("free-sample", "share of the machine's GPUs in use"),
    );
    return;
  }
  const heat = entry("heat-sample", "affinity, from the machine a job likes least to its favourite");
  const colours = [0, 0.25, 0.5, 0.75, 1].map((share) => css(heatColour(share, theme.scheme)));
  heat.firstChild.style.background = `linear-gradient(90deg, ${colours.join(", ")})`;
  key.replaceChildren(
    heat,
    entry("ring-sample", "placed here"),
    entry("hatch-sample", "no room"),
    entry("free-sample", "share of the machine's GPUs in use"),
  );
}
