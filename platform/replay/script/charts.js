// The charts besides the Gantt: the ruler, the marks of arrivals and completions, the step chart.

const MARKS_ROW = 14;
const STEPS_HEIGHT = 120;
const CROWD = 5; // marks closer than this many pixels are drawn as one, with their number

function paintGrid(context, view, theme, height) {
  context.fillStyle = theme.line;
  for (const tick of ticks(view, 90)) context.fillRect(Math.round(secondsToX(view, tick.at)), 0, 1, height);
}

function paintRuler(canvas, view, theme) {
  const context = openCanvas(canvas, view.gutter + view.width, 22);
  context.font = theme.font;
  context.textBaseline = "middle";
  const right = view.gutter + view.width;
  for (const tick of ticks(view, 90)) {
    const x = secondsToX(view, tick.at);
    context.fillStyle = theme.line;
    context.fillRect(Math.round(x), 0, 1, 5);
    context.fillStyle = theme.muted;
    const half = context.measureText(tick.label).width / 2;
    context.textAlign = "left";
    context.fillText(tick.label, Math.min(Math.max(x - half, view.gutter - half), right - 2 * half), 13);
  }
  context.fillText(isNarrow(view) ? view.unit.name : `time, ${view.unit.name}`, 0, 13);
}

// A row of marks is a kind of thing that befalls jobs: [{ job, s }], and how one is drawn.
function arrivalMarks(replay) {
  const marks = replay.jobs.arrival_s.map((s, job) => ({ job, s }));
  return { title: "arrive", short: "in", marks, draw: drawArrival };
}

function completionMarks(policy) {
  const marks = policy.completion.map((s, job) => ({ job, s }));
  return { title: "finish", short: "out", marks, draw: drawCompletion };
}

// Arrivals above, completions below; the lit job's stay is the line between its two marks.
function paintMarks(canvas, replay, policy, view, theme, lit) {
  const height = 2 + MARKS_ROW * policy.marks.length;
  const context = openCanvas(canvas, view.gutter + view.width, height);
  const toY = (row) => 8 + MARKS_ROW * row;
  context.font = theme.font;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillStyle = theme.muted;
  policy.marks.forEach(({ title, short }, row) => {
    context.fillText(isNarrow(view) ? short : title, view.gutter - 10, toY(row));
  });
  if (lit >= 0) {
    const from = Math.max(view.gutter, secondsToX(view, replay.jobs.arrival_s[lit]));
    const to = secondsToX(view, Math.min(policy.completion[lit], policy.end_s));
    context.fillStyle = css(theme.jobs[lit], 0.45);
    if (to > from) context.fillRect(from, 12, to - from, 6);
  }
  context.save();
  context.beginPath();
  context.rect(view.gutter - 6, 0, view.width + 12, height);
  context.clip();
  policy.marks.forEach((kind, row) => paintCrowd(context, kind, toY(row), view, theme, lit));
  context.restore();
}

function paintCrowd(context, { marks: all, draw }, y, view, theme, lit) {
  const marks = all
    .map(({ job, s }) => ({ job, x: secondsToX(view, s) }))
    .filter(({ x }) => x >= view.gutter - 1 && x <= view.gutter + view.width + 1)
    .sort((a, b) => a.x - b.x);
  const crowds = [];
  for (const mark of marks) {
    if (crowds.length && mark.x - crowds.at(-1)[0].x < CROWD) crowds.at(-1).push(mark);
    else crowds.push([mark]);
  }
  const faint = lit < 0 ? 1 : 0.2;
  if (crowds.length > view.width / CROWD / 4 && crowds.length < marks.length) {
    drawRug(context, marks, y, theme, faint); // too many for shapes
  } else {
    crowds.forEach((crowd, i) => {
      const alone = crowd.length === 1;
      context.globalAlpha = faint;
      context.fillStyle = alone ? css(theme.jobs[crowd[0].job]) : theme.muted;
      draw(context, crowd[0].x, y);
      if (alone || crowds[i + 1]?.[0].x - crowd[0].x < 24) return;
      context.textAlign = "left";
      context.fillText(crowd.length, crowd[0].x + 7, y + 0.5);
    });
  }
  context.globalAlpha = 1;
  for (const { x } of marks.filter(({ job }) => job === lit)) {
    context.fillStyle = css(theme.jobs[lit]);
    draw(context, x, y);
  }
}

function drawRug(context, marks, y, theme, alpha) {
  for (const { job, x } of marks) {
    context.fillStyle = css(theme.jobs[job], alpha);
    context.fillRect(x - 1, y - 5, 2, 10);
  }
}

function drawArrival(context, x, y) {
  context.beginPath();
  context.moveTo(x - 4.5, y - 4);
  context.lineTo(x + 4.5, y - 4);
  context.lineTo(x, y + 4);
  context.fill();
}

function drawCompletion(context, x, y) {
  context.beginPath();
  context.arc(x, y, 4, 0, 2 * Math.PI);
  context.fill();
}

function paintSteps(canvas, replay, view, theme) {
  const context = openCanvas(canvas, view.gutter + view.width, STEPS_HEIGHT);
  const bottom = STEPS_HEIGHT - 8;
  const top = 8;
  const most = Math.max(1, ...replay.policies.flatMap((policy) => policy.steps.count));
  const toY = (count) => bottom - (count / most) * (bottom - top);
  context.font = theme.font;
  context.textAlign = "right";
  context.textBaseline = "middle";
  paintGrid(context, view, theme, STEPS_HEIGHT);
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000].find((step) => most / step <= 5);
  for (let count = 0; count <= most; count += every ?? most) {
    context.fillStyle = theme.line;
    context.fillRect(view.gutter, Math.round(toY(count)), view.width, 1);
    context.fillStyle = theme.muted;
    context.fillText(number(count, 0), view.gutter - 8, toY(count));
  }
  context.save();
  context.beginPath();
  context.rect(view.gutter, 0, view.width, STEPS_HEIGHT);
  context.clip();
  replay.policies.forEach((policy, i) => {
    const { time, count } = policy.steps;
    context.beginPath();
    context.moveTo(secondsToX(view, 0), toY(0));
    for (let step = 0; step < time.length; step++) {
      context.lineTo(secondsToX(view, time[step]), toY(step ? count[step - 1] : 0));
      context.lineTo(secondsToX(view, time[step]), toY(count[step]));
    }
    context.lineTo(secondsToX(view, Math.max(policy.end_s, time.at(-1))), toY(count.at(-1)));
    context.strokeStyle = theme.policies[i];
    context.lineWidth = 2;
    context.stroke();
    context.lineTo(secondsToX(view, Math.max(policy.end_s, time.at(-1))), toY(0));
    context.fillStyle = theme.policies[i];
    context.globalAlpha = 0.1;
    context.fill();
    context.globalAlpha = 1;
  });
  context.restore();
}
