// Puts the page together: reads the data, makes the panels, and repaints what changes.

addEventListener("error", (event) => {
  const fault = document.getElementById("fault");
  fault.textContent = `This page failed: ${event.message}`;
  fault.hidden = false;
});

const replay = readReplay();
for (const policy of replay.policies) {
  policy.steps = countedOf(replay, policy);
  policy.marks = marksOf(replay, policy);
}
const view = createView(replay.end, replay.unit);
const charts = document.getElementById("charts");
let theme = readTheme(replay.jobs.name.length);
let shape = plotShape(replay, 240);

const panels = replay.policies.map(createPanel);
const selection = createSelection(showSelected);
const jobRows = createJobTable(replay, selection);
const player = createPlayer(replay.end, showTime);
const extras = startExtras(replay, player, selection); // null where a scene has none
let painting = 0;

function createPanel(policy, i) {
  const panel = document.getElementById("panel").content.firstElementChild.cloneNode(true);
  const title = panel.querySelector("h2");
  title.textContent = policy.name;
  title.className = `policy-${i}`;
  // Every figure can be found by id, such as #jct-fair or #busy-fair.
  const figures = {};
  const totals = totalTexts(policy);
  panel.querySelectorAll("[data-figure]").forEach((node) => {
    node.id = `${node.dataset.figure}-${policy.name}`;
    figures[node.dataset.figure] = node;
    const { figure } = node.dataset;
    const room = ROOM[figure]?.(replay.jobs.name.length) ?? "2em";
    if (node.matches(".now dd")) node.style.setProperty("--room", room);
    if (figure in totals) node.textContent = totals[figure];
  });
  const gantt = panel.querySelector(".gantt");
  gantt.setAttribute("aria-label", plotLabel(policy));
  panel.setAttribute("aria-label", `Schedule of ${policy.name}`);
  document.getElementById("panels").append(panel);
  return { policy, figures, gantt, marks: panel.querySelector(".marks") };
}

function repaint() {
  if (!painting) painting = requestAnimationFrame(paint);
}

function paint() {
  painting = 0;
  view.gutter = theme.gutter;
  view.width = Math.max(50, panels[0].gantt.parentElement.clientWidth - view.gutter);
  shape = plotShape(replay, (innerHeight - 340) / panels.length - 130);
  paintRuler(document.getElementById("ruler"), view, theme);
  for (const { policy, gantt, marks } of panels) {
    paintMarks(marks, replay, policy, view, theme, selection.lit);
    paintPlot(gantt, replay, policy, view, theme, shape, selection.lit);
  }
  paintSteps(document.getElementById("steps"), replay, view, theme);
  charts.style.setProperty("--window-from", `${(100 * view.from) / view.end}%`);
  charts.style.setProperty("--window-to", `${(100 * view.to) / view.end}%`);
  placeCursor();
}

function placeCursor() {
  charts.style.setProperty("--cursor", secondsToX(view, player.time));
  charts.classList.toggle("outside", player.time < view.from || player.time > view.to);
}

function showTime(seconds) {
  const scrubber = document.getElementById("scrubber");
  scrubber.value = seconds;
  scrubber.setAttribute("aria-valuetext", momentText(view.unit, seconds));
  document.getElementById("time").textContent = momentText(view.unit, seconds);
  panels.forEach(({ policy, figures }, i) => {
    const now = figuresAt(replay, policy, seconds);
    for (const [figure, text] of Object.entries(now.texts)) figures[figure].textContent = text;
    document.getElementById("steps-key").children[i].lastChild.textContent = now.counted;
  });
  if (player.playing && (seconds > view.to || seconds < view.from)) {
    showWindow(view, seconds, seconds + view.to - view.from); // playing on: the window follows
    repaint();
  }
  placeCursor();
  extras?.follow(seconds);
}

function showSelected(lit) {
  const selected = document.getElementById("selected");
  jobRows.forEach((row, job) => row.classList.toggle("lit", job === lit));
  selected.textContent = "";
  if (lit < 0) selected.textContent = HINT;
  else selected.append(element("b", jobTitle(replay, lit)), `: ${jobFacts(replay, lit)}`);
  repaint();
}

function rowUnder(event, { gantt, policy }) {
  const box = gantt.getBoundingClientRect();
  return rowAt(replay, policy, view, shape, event.clientX - box.left, event.clientY - box.top);
}

function showTip(event, panel) {
  const row = event ? rowUnder(event, panel) : -1;
  const tip = document.getElementById("tip");
  const { schedule } = panel.policy;
  tip.hidden = row < 0;
  selection.hover(row < 0 ? -1 : schedule.job[row]);
  if (row < 0) return;
  tip.replaceChildren(
    element("p", rowWords(replay, panel.policy, row), "what"),
    element("b", jobTitle(replay, schedule.job[row])),
    element("p", jobFacts(replay, schedule.job[row])),
  );
  moveTip(event);
}

// #t=60&from=40&to=90&job=7 opens the page at a moment, a stretch of time and a job.
function readFragment() {
  const wish = new URLSearchParams(location.hash.slice(1));
  const given = (name) => (wish.has(name) && wish.get(name) !== "" ? Number(wish.get(name)) : NaN);
  const [t, from, to, job] = ["t", "from", "to", "job"].map(given);
  if (to > from) showWindow(view, from, to);
  const numbered = jobNumbered(replay, job);
  if (jobRows[numbered]) selection.keep(numbered);
  player.seek(Number.isFinite(t) ? t : widestGap(replay));
  extras?.read(wish);
}

function readColours() {
  theme = readTheme(replay.jobs.name.length);
  jobRows.forEach((row, job) => {
    row.querySelector(".swatch").style.background = css(theme.jobs[job]);
  });
  extras?.repaint(theme);
  repaint();
}

document.getElementById("scrubber").max = replay.end;
document.getElementById("steps-key").append(
  ...replay.policies.map((policy, i) => {
    const entry = element("span", `${policy.name} `, `policy-${i}`);
    entry.append(element("b"));
    return entry;
  }),
);
const gapButton = document.getElementById("gap");
gapButton.hidden = replay.policies.length < 2;
gapButton.addEventListener("click", () => player.seek(widestGap(replay)));
listenToControls(player, view, selection, repaint);
for (const panel of panels) {
  const hovers = (event) => showTip(event, panel);
  const picks = (event) => {
    const row = rowUnder(event, panel);
    selection.keep(row < 0 ? -1 : panel.policy.schedule.job[row]);
  };
  listenToPlot(panel.gantt, player, view, repaint, hovers, picks);
  panel.gantt.addEventListener("pointerleave", () => hovers(null));
}
listenToPlot(document.getElementById("steps"), player, view, repaint, () => {}, () => {});
addEventListener("resize", () => readColours()); // a narrow page has another gutter
addEventListener("hashchange", readFragment);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);
showSelected(-1);
showWindow(view, 0, openingEnd(replay));
readColours();
readFragment();
cancelAnimationFrame(painting);
paint();
document.documentElement.dataset.ready = "yes";
