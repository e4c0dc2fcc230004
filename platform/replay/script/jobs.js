// The job list, and the one job that is lit: hovered, focused, or kept by a click.

function createSelection(changed) {
  const selection = { kept: -1, hovered: -1, lit: -1 };
  const settle = () => {
    const lit = selection.hovered >= 0 ? selection.hovered : selection.kept;
    if (lit === selection.lit) return;
    selection.lit = lit;
    changed(lit);
  };
  selection.hover = (job) => {
    selection.hovered = job;
    settle();
  };
  selection.keep = (job) => {
    selection.kept = job;
    document.querySelectorAll("#jobs tr.kept").forEach((row) => row.classList.remove("kept"));
    document.querySelector(`#jobs tr[data-job="${job}"]`)?.classList.add("kept");
    settle();
  };
  return selection;
}

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// The tip beside the pointer, wherever there is room for it.
function moveTip(event) {
  const tip = document.getElementById("tip");
  const flip = event.clientX + tip.offsetWidth + 24 > innerWidth;
  tip.style.left = `${Math.max(4, event.clientX + (flip ? -tip.offsetWidth - 14 : 14))}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}

function createJobTable(replay, selection) {
  const table = document.getElementById("jobs");
  const body = table.tBodies[0];
  const columns = columnsOf(replay);
  const longest = Math.max(
    ...replay.policies.flatMap((policy) => policy.jct.filter(Number.isFinite)),
    0.001,
  );
  const rows = replay.jobs.name.map((_, job) => createJobRow(replay, columns, job, longest));
  body.append(...rows);
  if (rows.length) rows[0].tabIndex = 0;

  let sorted = { title: "job", down: false };
  const head = table.tHead.rows[0];
  const sort = (column) => {
    sorted = { title: column.title, down: sorted.title === column.title && !sorted.down };
    const sign = sorted.down ? -1 : 1;
    const order = [...rows.keys()].sort((a, b) => {
      const [one, two] = [column.value(a), column.value(b)];
      return one === two ? a - b : sign * (one < two ? -1 : 1);
    });
    body.append(...order.map((job) => rows[job]));
    columns.forEach((other, i) => {
      head.cells[i].removeAttribute("aria-sort");
      if (other !== column) return;
      head.cells[i].setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    });
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

  const jobOf = (event) => Number(event.target.closest("tr")?.dataset.job ?? -1);
  body.addEventListener("pointerover", (event) => selection.hover(jobOf(event)));
  body.addEventListener("pointerleave", () => selection.hover(-1));
  body.addEventListener("focusin", (event) => selection.hover(jobOf(event)));
  body.addEventListener("focusout", () => selection.hover(-1));
  const toggle = (job) => selection.keep(selection.kept === job ? -1 : job);
  body.addEventListener("click", (event) => toggle(jobOf(event)));
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (next) {
      row.tabIndex = -1; // one tab stop for the whole list; the arrows move within it
      next.tabIndex = 0;
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") toggle(jobOf(event));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return rows;
}

function createJobRow(replay, columns, job, longest) {
  const row = element("tr");
  row.dataset.job = job;
  row.tabIndex = -1;
  for (const column of columns) {
    row.append(element("td", column.text ? column.text(job) : cellText(column.value(job))));
  }
  row.cells[0].title = replay.jobs.name[job];
  row.cells[0].prepend(element("i", "", "swatch"));
  const bars = element("td", "", "bars");
  replay.policies.forEach((policy, i) => {
    const bar = element("i", "", `policy-${i}`);
    const stay = Math.min(policy.jct[job], longest);
    bar.style.width = `${100 * barShare(stay, longest)}%`;
    bars.append(bar);
  });
  row.append(bars);
  return row;
}
