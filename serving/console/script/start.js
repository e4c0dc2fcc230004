// Puts the console together: which system is looked at, what is asked, what is shown.

addEventListener("error", (event) => complainOfPage(event.message));
addEventListener("unhandledrejection", (event) => complainOfPage(event.reason?.message ?? event.reason));

function complainOfPage(message) {
  setText(byId("banner-text"), `The console failed: ${message}. Load the page anew.`);
  byId("banner").hidden = false;
}

let chosen = readFragment();
let service = { tokens: false };
let current = null; // the status on show
let past = { system: null, history: null, asked: 0 };

const systems = createSystems(choose);
const charts = createCharts();
const feed = createFeed();
const actions = createActions(acted);
const askToken = createTokenDialog(() => beat());
const beat = createHeartbeat(look, show);

// #decima opens that system.
function readFragment() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

async function look() {
  const listed = await ask("v1/systems");
  const names = listed.systems.map(({ system }) => system);
  if (!names.includes(chosen)) chosen = names[0];
  const system = chosen;
  if (system === undefined) return { listed };
  const [status, { decisions }, history] = await Promise.all([
    ask(address(system, "status")),
    ask(address(system, "decisions?limit=50")),
    readHistory(system),
  ]);
  return { listed, system, status, decisions, history };
}

// An hour of history changes once an interval: it is not asked for more often.
async function readHistory(system) {
  const due = past.system !== system || Date.now() - past.asked >= 1000 * past.history.interval_s;
  if (due) past = { system, history: await ask(address(system, "history")), asked: Date.now() };
  return past.history;
}

function show(picture) {
  if (picture === null) {
    if (current) actions.show(current, service, false);
    return;
  }
  service = picture.listed.service;
  setText(byId("service"), `decision service ${service.version} · up ${duration(service.uptime_s)}`);
  byId("service").title = `started ${utc(new Date(service.started_at))}`;
  setText(byId("token-button"), token.read() ? "token: held" : service.tokens ? "token: none" : "no token needed");
  systems.show(picture.listed.systems, chosen);
  if (picture.system === undefined) return;
  byId("picture").hidden = false;
  showStatus(picture.status, picture.history);
  charts.show(picture.history, picture.status);
  feed.show(picture.decisions);
  document.documentElement.dataset.ready = "yes";
}

function showStatus(status, history) {
  const before = current;
  current = status;
  showActing(status);
  showTiles(status, history);
  showPanels(status);
  actions.show(status, service, true);
  const same = before?.system === status.system;
  if (same && before.acting !== status.acting) say(`${status.system}: ${byId("headline").textContent}. ${status.acting_because}`);
}

function choose(name) {
  if (name === chosen) return;
  chosen = name;
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  feed.clear();
  charts.clear();
  beat();
}

function acted(system, status) {
  if (system === chosen) showStatus(status, past.history);
  beat();
}

addEventListener("hashchange", () => {
  if (systems.names().includes(readFragment())) choose(readFragment());
});
listenToKeys({ systems, choose, feed, actions, askToken });
beat();
