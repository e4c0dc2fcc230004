// Asks every two seconds while somebody looks. What fails is told in a banner; the last picture
// stays, greyed where it may no longer be true.

const EVERY_MS = 2000;

function createHeartbeat(look, show) {
  let timer = 0;
  let round = 0; // a beat that was overtaken by another shows nothing
  let lastSeen = null;

  async function beat() {
    clearTimeout(timer);
    if (document.hidden) return pulse("held", "held while hidden");
    const mine = ++round;
    let wait = EVERY_MS;
    try {
      const picture = await look();
      if (mine !== round) return;
      lastSeen = new Date();
      byId("banner").hidden = true;
      delete document.body.dataset.stale;
      pulse("live", "live");
      show(picture);
    } catch (error) {
      if (mine !== round) return;
      if (!(error instanceof Refusal || error instanceof Gone)) throw error;
      wait = Math.max(wait, 1000 * (error.waitSeconds ?? 0));
      complain(error, wait);
    } finally {
      if (mine === round) timer = setTimeout(beat, wait);
    }
  }

  function complain(error, wait) {
    const busy = error.status === 429;
    const noToken = error.status === 401 || error.status === 403;
    if (!busy) document.body.dataset.stale = "";
    pulse(busy ? "busy" : "gone", busy ? "asked to wait" : noToken ? "not let in" : "no picture");
    const since = lastSeen ? `What you see is from ${clockTime.format(lastSeen)}.` : "There is no picture yet.";
    const next = noToken ? "" : `Asking again ${wait > EVERY_MS ? `in ${duration(wait / 1000)}` : "every 2 s"}.`;
    const lead = error instanceof Gone ? error.message : `The service says: ${error.message}.`;
    setText(byId("banner-text"), [lead, since, next].filter(Boolean).join(" "));
    byId("banner-token").hidden = !noToken;
    byId("banner").hidden = false;
    if (!busy) show(null);
  }

  document.addEventListener("visibilitychange", beat);
  return beat;
}

function pulse(state, words) {
  byId("pulse").dataset.state = state;
  setText(byId("pulse").lastElementChild, words);
}
