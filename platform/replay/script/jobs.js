// The job table.

import { byId, element } from "./dom.js";
import { addRowEvents, addSorting } from "./table.js";

export function createJobTable(replay, jobs, selection) {
  const table = byId("jobs");
  const columns = jobs.columns(replay);
  const longest = Math.max(...replay.policies.flatMap((policy) => policy.jct.filter(Number.isFinite)), 0.001);
  const rows = replay.jobs.name.map((_, job) => createJobRow(replay, jobs, columns, job, longest));
  table.tBodies[0].append(...rows);
  if (rows.length) rows[0].tabIndex = 0;
  addSorting(table, columns, rows);
  replay.policies.forEach(({ name }, i) => {
    const column = columns.findIndex(({ title }) => title === name);
    if (column >= 0) table.tHead.rows[0].cells[column].firstChild.className = `policy-${i}`;
  });
  const bars = element("th");
  bars.setAttribute("aria-label", "JCT as bars");
  table.tHead.rows[0].append(bars);
  addRowEvents(table, "job", selection);
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
