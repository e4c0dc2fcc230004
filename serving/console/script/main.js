// Entry module of the console: which system is selected, what is loaded, what is shown.

import { createActions } from "./actions.js";
import { request, systemPath, token } from "./api.js";
import { createCharts } from "./charts.js";
import { addShortcuts, createHelpDialog, createThemeButton, createTokenDialog } from "./controls.js";
import { createFeed } from "./decisions.js";
import { announce, byId, setText } from "./dom.js";
import { duration, utc } from "./format.js";
import { showState, showTiles } from "./overview.js";
import { showPanels } from "./panels.js";
import { createPoller } from "./poller.js";
import { createSystems } from "./systems.js";

addEventListener("error", (event) => showPageError(event.message));
addEventListener("unhandledrejection", (event) => showPageError(event.reason?.message ?? event.reason));

function showPageError(message) {
  setText(byId("banner-text"), `The console failed: ${message}. Reload the page.`);
  byId("banner").hidden = false;
}

let selected = readFragment();
let service = { tokens: false };
let current = null; // the status on the page
let cached = { system: null, history: null, loadedAt: 0 };

createThemeButton();
createHelpDialog();
const systems = createSystems(selectSystem);
const charts = createCharts();
const feed = createFeed();
const actions = createActions(showResult);
const openTokenDialog = createTokenDialog(() => poll());
const poll = createPoller(load, show);

// #decima selects that system.
function readFragment() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

async function load() {
  const listing = await request("v1/systems");
  const names = listing.systems.map(({ system }) => system);
  if (!names.includes(selected)) selected = names[0];
  const system = selected;
  if (system === undefined) return { listing };
  const [status, { decisions }, history] = await Promise.all([
    request(systemPath(system, "status")),
    request(systemPath(system, "decisions?limit=50")),
    loadHistory(system),
  ]);
  return { listing, system, status, decisions, history };
}

// The history changes once an interval and is not requested more often.
async function loadHistory(system) {
  const expired = cached.system !== system || Date.now() - cached.loadedAt >= 1000 * cached.history.interval_s;
  if (expired) cached = { system, history: await request(systemPath(system, "history")), loadedAt: Date.now() };
  return cached.history;
}

function show(data) {
  if (data === null) {
    if (current) actions.show(current, service, false);
    return;
  }
  service = data.listing.service;
  setText(byId("service"), `decision service ${service.version} · up ${duration(service.uptime_s)}`);
  byId("service").title = `started ${utc(new Date(service.started_at))}`;
  setText(byId("token-button"), token.read() ? "token: set" : service.tokens ? "token: none" : "no token needed");
  systems.show(data.listing.systems, selected);
  if (data.system === undefined) return;
  byId("main").hidden = false;
  showStatus(data.status, data.history);
  charts.show(data.history, data.status);
  feed.show(data.decisions);
  document.documentElement.dataset.ready = "yes";
}

function showStatus(status, history) {
  const previous = current;
  current = status;
  showState(status);
  showTiles(status, history);
  showPanels(status);
  actions.show(status, service, true);
  if (previous?.system === status.system && previous.acting !== status.acting) {
    announce(`${status.system}: ${byId("headline").textContent}. ${status.acting_because}`);
  }
}

function selectSystem(name) {
  if (name === selected) return;
  selected = name;
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  feed.clear();
  charts.clear();
  poll();
}

function showResult(system, status) {
  if (system === selected) showStatus(status, cached.history);
  poll();
}

addEventListener("hashchange", () => {
  if (systems.names().includes(readFragment())) selectSystem(readFragment());
});
addShortcuts({ systems, selectSystem, feed, actions, openTokenDialog });
poll();
