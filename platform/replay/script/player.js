// Moving through time: scrubber, playback, keyboard, and wheel, drag and click on the charts.

import { byId } from "./dom.js";
import { isWhole, pan, showWindow, xToSeconds, zoom } from "./view.js";

const ICONS = { play: "M4 2.5v11l9.5-5.5z", pause: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z" };

export function createPlayer(end, changed) {
  const player = { time: 0, playing: false };
  const button = byId("play");
  let lastFrame = 0;

  player.seek = (seconds) => {
    player.time = Math.min(end, Math.max(0, seconds));
    changed(player.time);
  };
  const frame = (now) => {
    if (!player.playing) return;
    // The value of the speed control is the length of the whole playback in seconds.
    player.seek(player.time + (((now - lastFrame) / 1000) * end) / Number(byId("speed").value));
    lastFrame = now;
    if (player.time >= end) player.toggle();
    else requestAnimationFrame(frame);
  };
  player.toggle = () => {
    player.playing = !player.playing;
    button.setAttribute("aria-pressed", player.playing);
    button.setAttribute("aria-label", player.playing ? "Pause" : "Play");
    button.querySelector("path").setAttribute("d", ICONS[player.playing ? "pause" : "play"]);
    if (!player.playing) return;
    if (player.time >= end) player.time = 0;
    lastFrame = performance.now();
    requestAnimationFrame(frame);
  };
  button.addEventListener("click", player.toggle);
  return player;
}

export function addControls(player, view, selection, repaint) {
  const span = () => view.to - view.from;
  // Zoom about the cursor if it is visible, else about the middle.
  const zoomBy = (factor) => {
    const visible = player.time >= view.from && player.time <= view.to;
    zoom(view, factor, visible ? player.time : (view.from + view.to) / 2);
  };
  const seekBy = (sign) => (far) => player.seek(player.time + (sign * span()) / (far ? 10 : 100));
  const buttons = {
    "zoom-in": () => zoomBy(1.6),
    "zoom-out": () => zoomBy(1 / 1.6),
    "zoom-all": () => showWindow(view, 0, view.end),
    "pan-left": () => pan(view, -span() / 4),
    "pan-right": () => pan(view, span() / 4),
  };
  const keys = {
    " ": () => player.toggle(),
    ArrowLeft: seekBy(-1),
    ArrowRight: seekBy(1),
    Home: () => player.seek(0),
    End: () => player.seek(view.end),
    "+": buttons["zoom-in"],
    "=": buttons["zoom-in"],
    "-": buttons["zoom-out"],
    0: buttons["zoom-all"],
    Escape: () => selection.pin(-1),
  };
  for (const [id, act] of Object.entries(buttons)) {
    byId(id).addEventListener("click", () => {
      act();
      repaint();
    });
  }
  byId("scrubber").addEventListener("input", (event) => player.seek(Number(event.target.value)));
  document.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("select") || (event.key === " " && event.target.closest("button"))) return;
    event.preventDefault();
    act(event.shiftKey);
    repaint();
  });
}

// The wheel zooms about the pointer, a drag pans, a click moves the cursor. `onHover` receives
// pointer events, and null during a drag; `onClick` receives clicks.
export function addPlotEvents(canvas, player, view, repaint, onHover = () => {}, onClick = () => {}) {
  let drag = null;
  const xOf = (event) => event.clientX - canvas.getBoundingClientRect().left;
  const zoomOrPan = (event) => {
    const horizontal = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    // Already zoomed out: the page scrolls instead.
    if (isWhole(view) && (horizontal || event.deltaY > 0)) return;
    event.preventDefault();
    const delta = horizontal && event.deltaX === 0 ? event.deltaY : event.deltaX;
    if (horizontal) pan(view, (delta / view.width) * (view.to - view.from));
    else zoom(view, Math.exp(-event.deltaY / 400), xToSeconds(view, xOf(event)));
    onHover(event);
    repaint();
  };
  canvas.addEventListener("wheel", zoomOrPan, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return onHover(event);
    const shift = event.clientX - drag.x;
    if (Math.abs(shift) > 3 && !isWhole(view)) drag.moved = true;
    if (!drag.moved) return undefined;
    canvas.parentElement.classList.add("dragging");
    onHover(null);
    const seconds = (-shift / view.width) * (drag.to - drag.from);
    showWindow(view, drag.from + seconds, drag.to + seconds);
    return repaint();
  });
  const release = (event) => {
    if (drag && !drag.moved && event.type === "pointerup") {
      player.seek(xToSeconds(view, xOf(event)));
      onClick(event);
    }
    drag = null;
    canvas.parentElement.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => onHover(null));
}
