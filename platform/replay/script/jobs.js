// The job table, and the highlighted job: the hovered or focused one, else the one pinned by a click.

import { byId, element } from "./dom.js";

export function createSelection(changed) {
  let hovered = -1;
  const selection = { pinned: -1, highlighted: -1 };
  const update = () => {
    const highlighted = hovered >= 0 ? hovered : selection.pinned;
    if (highlighted === selection.highlighted) return;
    selection.highlighted = highlighted;
    changed(highlighted);
  };
  selection.hover = (job) => {
    hovered = job;
    update();
  };
  selection.pin = (job) => {
    selection.pinned = job;
    document.querySelectorAll("#jobs tr.pinned").forEach((row) => row.classList.remove("pinned"));
    document.querySelector(`#jobs tr[data-job="${job}"]`)?.classList.add("pinned");
    update();
  };
  selection.togglePin = (job) => selection.pin(selection.pinned === job ? -1 : job);
  return selection;
}

export function createJobTable(replay, jobs, selection) {
  const table = byId("jobs");
  const columns = jobs.columns(replay);
  const longest = Math.max(...replay.policies.flatMap((policy) => policy.jct.filter(Number.isFinite)), 0.001);
  const rows = replay.jobs.name.map((_, job) => createJobRow(replay, jobs, columns, job, longest));
  table.tBodies[0].append(...rows);
  if (rows.length) rows[0].tabIndex = 0;
  addSorting(table, replay, columns, rows);
  addRowEvents(table.tBodies[0], selection);
  return rows;
}

function createJobRow(replay, jobs, columns, job, longest) {
  const row = element("tr");
  row.dataset.job = job;
  row.tabIndex = -1;
  for (const { text, value } of columns) {
    row.append(element("td", text ? text(job) : jobs.cellText(value(job))));
  }
  row.cells[0].title = replay.jobs.name[job];
  row.cells[0].prepend(element("i", "", "swatch"));
  const bars = element("td", "", "bars");
  replay.policies.forEach((policy, i) => {
    const bar = element("i", "", `policy-${i}`);
    bar.style.width = `${100 * jobs.barShare(Math.min(policy.jct[job], longest), longest)}%`;
    bars.append(bar);
  });
  row.append(bars);
  return row;
}

function addSorting(table, replay, columns, rows) {
  const head = table.tHead.rows[0];
  let sorted = { column: columns[0], descending: false };
  const sort = (column) => {
    sorted = { column, descending: sorted.column === column && !sorted.descending };
    const sign = sorted.descending ? -1 : 1;
    const order = [...rows.keys()].sort((a, b) => {
      const [one, two] = [column.value(a), column.value(b)];
      return one === two ? a - b : sign * (one < two ? -1 : 1);
    });
    table.tBodies[0].append(...order.map((job) => rows[job]));
    for (const cell of head.cells) cell.removeAttribute("aria-sort");
    head.cells[columns.indexOf(column)].setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
  };
  for (const column of columns) {
    const button = element("button", column.title);
    button.type = "button";
    button.title = `sort by ${column.label ?? column.title}`;
    const policy = replay.policies.findIndex(({ name }) => name === column.title);
    if (policy >= 0) button.className = `policy-${policy}`;
    button.addEventListener("click", () => sort(column));
    const cell = element("th");
    cell.scope = "col";
    cell.append(button);
    head.append(cell);
  }
  const bars = element("th");
  bars.setAttribute("aria-label", "JCT as bars");
  head.append(bars);
  head.cells[0].setAttribute("aria-sort", "ascending");
}

function addRowEvents(body, selection) {
  const jobOf = (event) => Number(event.target.closest("tr")?.dataset.job ?? -1);
  for (const type of ["pointerover", "focusin"]) body.addEventListener(type, (event) => selection.hover(jobOf(event)));
  for (const type of ["pointerleave", "focusout"]) body.addEventListener(type, () => selection.hover(-1));
  body.addEventListener("click", (event) => selection.togglePin(jobOf(event)));
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (next) {
      row.tabIndex = -1; // one tab stop for the whole table; arrow keys move within it
      next.tabIndex = 0;
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") selection.togglePin(jobOf(event));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
