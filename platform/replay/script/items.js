// The table of the items of a page: its jobs, or the tasks of a streaming job.

import { byId, element } from "./dom.js";
import { addRowEvents, addSorting } from "./table.js";

export function createItemTable(replay, items, selection) {
  const table = byId(`${items.key}s`);
  const columns = items.columns(replay);
  const shares = items.barShares(replay);
  const rows = items.names(replay).map((_, item) => createItemRow(replay, items, columns, item, shares));
  table.tBodies[0].append(...rows);
  if (rows.length) rows[0].tabIndex = 0;
  addSorting(table, columns, rows);
  replay.policies.forEach(({ name }, i) => {
    const column = columns.findIndex(({ title }) => title === name);
    if (column >= 0) table.tHead.rows[0].cells[column].firstChild.className = `policy-${i}`;
  });
  const bars = element("th");
  bars.setAttribute("aria-label", items.barsLabel);
  table.tHead.rows[0].append(bars);
  addRowEvents(table, items.key, selection);
  return rows;
}

// shares(policy, item): the length of a bar.
function createItemRow(replay, items, columns, item, shares) {
  const row = element("tr");
  row.dataset[items.key] = item;
  row.tabIndex = -1;
  for (const { text, value } of columns) {
    row.append(element("td", text ? text(item) : items.cellText(value(item))));
  }
  row.cells[0].title = items.names(replay)[item];
  if (items.coloured) row.cells[0].prepend(element("i", "", "swatch"));
  const bars = element("td", "", "bars");
  replay.policies.forEach((policy, i) => {
    const bar = element("i", "", `policy-${i}`);
    bar.style.width = `${100 * shares(policy, item)}%`;
    bars.append(bar);
  });
  row.append(bars);
  return row;
}
