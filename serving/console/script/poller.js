// Polls the service every two seconds while the tab is visible. Errors appear in the banner; the
// last data stay on the page, greyed out.

import { ConnectionError, ServiceError } from "./api.js";
import { byId, setText } from "./dom.js";
import { clockTime, duration } from "./format.js";

const POLL_MS = 2000;

// `show` receives what `load` resolves to, or null when the data on the page are out of date.
export function createPoller(load, show) {
  let timer = 0;
  let latest = 0; // results of a poll are dropped once a later poll has started
  let lastSuccess = null;

  async function poll() {
    clearTimeout(timer);
    if (document.hidden) return showConnection("paused", "paused while hidden");
    const number = ++latest;
    let wait = POLL_MS;
    try {
      const data = await load();
      if (number !== latest) return;
      lastSuccess = new Date();
      byId("banner").hidden = true;
      delete document.body.dataset.stale;
      showConnection("live", "live");
      show(data);
    } catch (error) {
      if (number !== latest) return;
      if (!(error instanceof ServiceError || error instanceof ConnectionError)) throw error;
      wait = Math.max(wait, 1000 * (error.retryAfterSeconds ?? 0));
      showError(error, wait);
    } finally {
      if (number === latest) timer = setTimeout(poll, wait);
    }
  }

  function showError(error, wait) {
    const rateLimited = error.status === 429;
    const needsToken = error.status === 401 || error.status === 403;
    if (!rateLimited) document.body.dataset.stale = "";
    if (rateLimited) showConnection("limited", "rate limited");
    else showConnection("error", needsToken ? "token required" : "no data");
    const cause = error instanceof ConnectionError ? error.message : `Service error: ${error.message}.`;
    const age = lastSuccess ? `Showing data from ${clockTime.format(lastSuccess)}.` : "No data yet.";
    const next = needsToken ? "" : `Retrying ${wait > POLL_MS ? `in ${duration(wait / 1000)}` : "every 2 s"}.`;
    setText(byId("banner-text"), [cause, age, next].filter(Boolean).join(" "));
    byId("banner-token").hidden = !needsToken;
    byId("banner").hidden = false;
    if (!rateLimited) show(null);
  }

  document.addEventListener("visibilitychange", poll);
  return poll;
}

function showConnection(state, text) {
  byId("connection").dataset.state = state;
  setText(byId("connection").lastElementChild, text);
}
