// Tables with sortable columns, and the highlighted item: the hovered or focused one, else the one
// pinned by a click. `key` is the name of the data attribute with the number of a row's item.

import { byId, element } from "./dom.js";

export function createSelection(tableId, key, changed) {
  let hovered = -1;
  const selection = { pinned: -1, highlighted: -1 };
  const update = () => {
    const highlighted = hovered >= 0 ? hovered : selection.pinned;
    if (highlighted === selection.highlighted) return;
    selection.highlighted = highlighted;
    changed(highlighted);
  };
  selection.hover = (item) => {
    hovered = item;
    update();
  };
  selection.pin = (item) => {
    selection.pinned = item;
    const table = byId(tableId);
    table.querySelectorAll("tr.pinned").forEach((row) => row.classList.remove("pinned"));
    table.querySelector(`tr[data-${key}="${item}"]`)?.classList.add("pinned");
    update();
  };
  selection.togglePin = (item) => selection.pin(selection.pinned === item ? -1 : item);
  return selection;
}

// Adds a head cell for each column { title, label, value(item) }; a click sorts the rows by it.
// rows[item] is the row of an item; they are in the order of the first column.
export function addSorting(table, columns, rows) {
  const head = table.tHead.rows[0];
  let sorted = { column: columns[0], descending: false };
  const sort = (column) => {
    sorted = { column, descending: sorted.column === column && !sorted.descending };
    const sign = sorted.descending ? -1 : 1;
    const order = [...rows.keys()].sort((a, b) => {
      const [one, two] = [column.value(a), column.value(b)];
      return one === two ? a - b : sign * (one < two ? -1 : 1);
    });
    table.tBodies[0].append(...order.map((item) => rows[item]));
    for (const cell of head.cells) cell.removeAttribute("aria-sort");
    head.cells[columns.indexOf(column)].setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
  };
  for (const column of columns) {
    const button = element("button", column.title);
    button.type = "button";
    button.title = `sort by ${column.label ?? column.title}`;
    button.addEventListener("click", () => sort(column));
    const cell = element("th");
    cell.scope = "col";
    cell.append(button);
    head.append(cell);
  }
  head.cells[0].setAttribute("aria-sort", "ascending");
}

// Hovering or focusing a row highlights its item; a click, Enter or space pins it.
export function addRowEvents(table, key, selection) {
  const body = table.tBodies[0];
  const itemOf = (event) => Number(event.target.closest("tr")?.dataset[key] ?? -1);
  for (const type of ["pointerover", "focusin"]) body.addEventListener(type, (event) => selection.hover(itemOf(event)));
  for (const type of ["pointerleave", "focusout"]) body.addEventListener(type, () => selection.hover(-1));
  body.addEventListener("click", (event) => selection.togglePin(itemOf(event)));
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (next) {
      row.tabIndex = -1; // one tab stop for the whole table; arrow keys move within it
      next.tabIndex = 0;
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") selection.togglePin(itemOf(event));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
