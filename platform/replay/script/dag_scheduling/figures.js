// What holds at one moment, and its words.

const ROOM = { completed: (jobs) => `${3.5 + String(jobs).length}em`, "jct-so-far": () => "5em" };

function figuresAt(replay, policy, seconds) {
  const { schedule } = policy;
  const ms = seconds * 1000;
  let busy = 0;
  let moving = 0;
  for (let executor = 0; executor < replay.executors; executor++) {
    const row = firstRowAfter(schedule, executor, ms);
    if (row === schedule.first[executor + 1] || schedule.start[row] > ms) continue;
    if (schedule.moving[row]) moving++;
    else busy++;
  }
  const fates = fatesAt(replay, policy, seconds);
  const idle = replay.executors - busy - moving;
  return {
    counted: fates.inSystem,
    texts: {
      "in-system": fates.inSystem,
      completed: `${fates.completed} of ${replay.jobs.name.length}`,
      "jct-so-far": secondsText(fates.jctSoFar),
      busy,
      moving,
      idle,
    },
  };
}

function totalTexts(policy) {
  return {
    jct: secondsText(policy.mean_jct_s ?? NaN),
    makespan: secondsText(policy.makespan_s ?? NaN),
    utilisation: `${number(100 * policy.utilisation, 0)}%`,
  };
}

// Jobs in the system.
function countedOf(replay, policy) {
  return stepsOf([
    ...replay.jobs.arrival_s.map((s) => [s, 1]),
    ...policy.completion.filter(Number.isFinite).map((s) => [s, -1]),
  ]);
}

function marksOf(replay, policy) {
  return [arrivalMarks(replay), completionMarks(policy)];
}

function secondsText(value) {
  return Number.isFinite(value) ? `${number(value)} s` : "–";
}

function cellText(seconds) {
  return number(seconds, seconds < 1000 ? 1 : 0);
}
