// Entry module of the console: which system is selected, what is loaded, what is shown.

import { createActions } from "./actions.js";
import { request, systemPath, tenantQuery, token } from "./api.js";
import { createCharts } from "./charts.js";
import { addShortcuts, createHelpDialog, createThemeButton, createTokenDialog } from "./controls.js";
import { createFeed } from "./decisions.js";
import { announce, byId, setText } from "./dom.js";
import { duration, utc } from "./format.js";
import { showState, showTiles } from "./overview.js";
import { showPanels } from "./panels.js";
import { createPoller } from "./poller.js";
import { createSystems } from "./systems.js";
import { createTenants, DEFAULT_TENANT } from "./tenants.js";

addEventListener("error", (event) => showPageError(event.message));
addEventListener("unhandledrejection", (event) => showPageError(event.reason?.message ?? event.reason));

function showPageError(message) {
  setText(byId("banner-text"), `The console failed: ${message}. Reload the page.`);
  byId("banner").hidden = false;
}

let { system: selected, tenant: selectedTenant } = readFragment();
let service = { tokens: false };
let current = null; // the status on the page
let cached = { path: null, history: null, loadedAt: 0 };

createThemeButton();
createHelpDialog();
const systems = createSystems((name) => select(name, selectedTenant));
const tenants = createTenants((name) => select(selected, name));
const charts = createCharts();
const feed = createFeed();
const actions = createActions(showResult);
const openTokenDialog = createTokenDialog(() => poll());
const poll = createPoller(load, show);

// #decima selects that system, #decima/a its tenant a.
function readFragment() {
  const [system, tenant] = location.hash.slice(1).split("/").map(decode);
  return { system, tenant: tenant || DEFAULT_TENANT };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

async function load() {
  const isDefault = selectedTenant === DEFAULT_TENANT; // then the service chooses one that the token may use
  const listing = await request(isDefault ? "v1/systems" : `v1/systems?${tenantQuery(selectedTenant)}`);
  const allowed = listing.service.tenants;
  if (allowed && !allowed.includes(selectedTenant)) selectedTenant = allowed[0];
  const names = listing.systems.map(({ system }) => system);
  if (!names.includes(selected)) selected = names[0];
  const [system, query] = [selected, tenantQuery(selectedTenant)];
  if (system === undefined) return { listing };
  const [status, { decisions }, history] = await Promise.all([
    request(systemPath(system, `status?${query}`)),
    request(systemPath(system, `decisions?limit=50&${query}`)),
    loadHistory(systemPath(system, `history?${query}`)),
  ]);
  return { listing, system, status, decisions, history };
}

// The history changes once an interval and is not requested more often.
async function loadHistory(path) {
  const expired = cached.path !== path || Date.now() - cached.loadedAt >= 1000 * cached.history.interval_s;
  if (expired) cached = { path, history: await request(path), loadedAt: Date.now() };
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
  tenants.show(selectedTenant, data.status?.tenants);
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
  if (previous?.system === status.system && previous.tenant === status.tenant && previous.acting !== status.acting) {
    announce(`${status.system}: ${byId("headline").textContent}. ${status.acting_because}`);
  }
}

function select(system, tenant) {
  if (system === selected && tenant === selectedTenant) return;
  [selected, selectedTenant] = [system, tenant];
  const suffix = tenant === DEFAULT_TENANT ? "" : `/${encodeURIComponent(tenant)}`;
  history.replaceState(null, "", `#${encodeURIComponent(system)}${suffix}`);
  feed.clear();
  charts.clear();
  poll();
}

function showResult(system, status) {
  if (system === selected && status.tenant === selectedTenant) showStatus(status, cached.history);
  poll();
}

addEventListener("hashchange", () => {
  const { system, tenant } = readFragment();
  if (systems.names().includes(system)) select(system, tenant);
});
addShortcuts({ systems, selectSystem: (name) => select(name, selectedTenant), feed, actions, openTokenDialog });
poll();
