// Elements, canvases and the tooltip.

export const byId = (id) => document.getElementById(id);

export function element(tag, text = "", className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}

// Sizes a canvas in device pixels, clears it, and scales its context to CSS pixels.
export function openCanvas(canvas, width, height, theme) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = theme.font;
  context.textBaseline = "middle";
  return context;
}

// Draws inside a box [x, y, width, height] and restores the context.
export function clipTo(context, box, draw) {
  context.save();
  context.beginPath();
  context.rect(...box);
  context.clip();
  draw();
  context.restore();
}

// Shows the tooltip beside the pointer, inside the window; without nodes it is hidden.
export function showTooltip(event, ...nodes) {
  const tip = byId("tip");
  tip.hidden = nodes.length === 0;
  if (tip.hidden) return;
  tip.replaceChildren(...nodes);
  const flip = event.clientX + tip.offsetWidth + 24 > innerWidth;
  tip.style.left = `${Math.max(4, event.clientX + (flip ? -tip.offsetWidth - 14 : 14))}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}
