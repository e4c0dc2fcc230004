// Creating and updating nodes. Data enters only as text or as the value of a plain attribute.

export const byId = (id) => document.getElementById(id);

// Attributes that are null, undefined or false are left out; strings become text nodes.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Unchanged text is not written again, so that a text selection survives.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const rendered = new WeakMap();

// Rebuilds the children of a node if `data` has changed since the last call.
export function renderInto(node, data, build) {
  const key = JSON.stringify(data);
  if (rendered.get(node) === key) return;
  rendered.set(node, key);
  node.replaceChildren(...[build(data)].flat().filter((child) => child !== null));
}

// Text for screen readers.
export function announce(text) {
  setText(byId("announcement"), text);
}
