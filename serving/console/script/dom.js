// Making and changing nodes. Data only ever enters as text or as a plain attribute's value.

const byId = (id) => document.getElementById(id);

// Fills an element in: attributes that are null or false are left out, strings become text.
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Text is set only where it changed: what somebody has marked for copying stays marked.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const shown = new WeakMap();

// Builds the children of a node anew, only if what they tell has changed.
function showIn(node, data, build) {
  const told = JSON.stringify(data);
  if (shown.get(node) === told) return;
  shown.set(node, told);
  node.replaceChildren(...[build(data)].flat().filter((child) => child !== null));
}

// For screen readers: what an operator would want to be interrupted for, not every decision.
function say(text) {
  setText(byId("said"), text);
}
