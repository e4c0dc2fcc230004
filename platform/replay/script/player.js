// Moving through time: the scrubber, play and pause, the keyboard, wheel and drag on the charts.

function createPlayer(end, changed) {
  const player = { time: 0, playing: false };
  const button = document.getElementById("play");
  const speed = document.getElementById("speed");
  const shapes = { play: "M4 2.5v11l9.5-5.5z", pause: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z" };
  let stamp = 0;

  player.seek = (seconds) => {
    player.time = Math.min(end, Math.max(0, seconds));
    changed(player.time);
  };
  const frame = (now) => {
    if (!player.playing) return;
    // The speed's value is how many seconds the whole episode takes to play.
    player.seek(player.time + (((now - stamp) / 1000) * end) / Number(speed.value));
    stamp = now;
    if (player.time >= end) player.toggle();
    else requestAnimationFrame(frame);
  };
  player.toggle = () => {
    player.playing = !player.playing;
    button.setAttribute("aria-pressed", player.playing);
    button.setAttribute("aria-label", player.playing ? "Pause" : "Play");
    button.querySelector("path").setAttribute("d", shapes[player.playing ? "pause" : "play"]);
    if (!player.playing) return;
    if (player.time >= end) player.time = 0;
    stamp = performance.now();
    requestAnimationFrame(frame);
  };
  button.addEventListener("click", player.toggle);
  return player;
}

function listenToControls(player, view, selection, repaint) {
  const on = (id, act) =>
    document.getElementById(id).addEventListener("click", () => {
      act();
      repaint();
    });
  // Buttons and keys zoom about the cursor where it is in sight, else about the middle.
  const centre = () =>
    player.time >= view.from && player.time <= view.to ? player.time : (view.from + view.to) / 2;
  const span = () => view.to - view.from;
  const zoomIn = () => zoom(view, 1.6, centre());
  const zoomOut = () => zoom(view, 1 / 1.6, centre());
  const zoomAll = () => showWindow(view, 0, view.end);
  on("zoom-in", zoomIn);
  on("zoom-out", zoomOut);
  on("zoom-all", zoomAll);
  on("pan-back", () => pan(view, -span() / 4));
  on("pan-on", () => pan(view, span() / 4));

  document.getElementById("scrubber").addEventListener("input", (event) => {
    player.seek(Number(event.target.value));
  });

  const keys = {
    " ": () => player.toggle(),
    ArrowLeft: (far) => player.seek(player.time - span() / (far ? 10 : 100)),
    ArrowRight: (far) => player.seek(player.time + span() / (far ? 10 : 100)),
    Home: () => player.seek(0),
    End: () => player.seek(view.end),
    "+": zoomIn,
    "=": zoomIn,
    "-": zoomOut,
    0: zoomAll,
    Escape: () => selection.keep(-1),
  };
  document.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("select") || (event.key === " " && event.target.closest("button"))) return;
    event.preventDefault();
    act(event.shiftKey);
    repaint();
  });
}

// Wheel zooms about the pointer, drag pans, a click moves the cursor. `hovers` hears where the
// pointer is, and null while it drags; `picks` hears of a click.
function listenToPlot(canvas, player, view, repaint, hovers, picks) {
  let drag = null;
  const xOf = (event) => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener(
    "wheel",
    (event) => {
      const across = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      // Zoomed out already: let the page scroll on.
      if (isWhole(view) && (across || event.deltaY > 0)) return;
      event.preventDefault();
      const delta = across && event.deltaX === 0 ? event.deltaY : event.deltaX;
      if (across) pan(view, (delta / view.width) * (view.to - view.from));
      else zoom(view, Math.exp(-event.deltaY / 400), xToSeconds(view, xOf(event)));
      hovers(event);
      repaint();
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hovers(event);
    const shift = event.clientX - drag.x;
    if (Math.abs(shift) > 3 && !isWhole(view)) drag.moved = true;
    if (!drag.moved) return undefined;
    canvas.parentElement.classList.add("dragging");
    hovers(null);
    const seconds = (-shift / view.width) * (drag.to - drag.from);
    showWindow(view, drag.from + seconds, drag.to + seconds);
    return repaint();
  });
  const release = (event) => {
    if (drag && !drag.moved && event.type === "pointerup") {
      player.seek(xToSeconds(view, xOf(event)));
      picks(event);
    }
    drag = null;
    canvas.parentElement.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
}
