// The episode data as the page builder packed them, back in typed arrays.
//
// A schedule travels as stints: an executor's uninterrupted tasks in one stage of one job. Numbers
// are LEB128 (seven bits a byte, low bits first), so that most columns cost one byte an entry.

function unpack(text, count) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const numbers = new Float64Array(count);
  let at = 0;
  for (let i = 0; i < count; i++) {
    let factor = 1;
    while (bytes[at] > 127) {
      numbers[i] += (bytes[at++] - 128) * factor;
      factor *= 128;
    }
    numbers[i] += bytes[at++] * factor;
  }
  return numbers;
}

// Rows are sorted by executor, then time; rows of executor e: first[e] .. first[e + 1].
function unpackSchedule(packed, executors) {
  const { stints, rows } = packed;
  const executor = unpack(packed.executor, stints);
  const gap = unpack(packed.gap_ms, stints);
  const stintJob = unpack(packed.job, stints);
  const kind = unpack(packed.kind, stints);
  const length = unpack(packed.length, stints);
  const duration = unpack(packed.duration_ms, rows);
  const schedule = {
    first: new Int32Array(executors + 1),
    start: new Float64Array(rows), // ms
    end: new Float64Array(rows), // ms
    job: new Int32Array(rows),
    stage: new Int32Array(rows),
    moving: new Uint8Array(rows),
  };
  let row = 0;
  let clock = 0;
  for (let stint = 0; stint < stints; stint++) {
    if (stint > 0 && executor[stint] !== executor[stint - 1]) clock = 0;
    clock += gap[stint];
    for (let last = row + length[stint]; row < last; row++) {
      schedule.start[row] = clock;
      clock += duration[row];
      schedule.end[row] = clock;
      schedule.job[row] = stintJob[stint];
      schedule.stage[row] = kind[stint] >> 1;
      schedule.moving[row] = kind[stint] & 1;
    }
    schedule.first[executor[stint] + 1] = row;
  }
  for (let e = 1; e <= executors; e++) {
    schedule.first[e] = Math.max(schedule.first[e], schedule.first[e - 1]); // some never worked
  }
  return schedule;
}

function readReplay() {
  const replay = JSON.parse(document.getElementById("replay-data").textContent);
  for (const policy of replay.policies) {
    policy.schedule = unpackSchedule(policy.schedule, replay.executors);
    // A job the episode's end cut off (null) never completes.
    policy.completion = policy.completion_s.map((s) => s ?? Infinity);
    policy.jct = policy.completion.map((s, job) => s - replay.jobs.arrival_s[job]);
  }
  replay.end = Math.max(...replay.policies.map((policy) => policy.end_s), 0.001);
  return replay;
}

// The first row of an executor that ends after `ms`; first[executor + 1] where there is none.
function firstRowAfter(schedule, executor, ms) {
  let low = schedule.first[executor];
  let high = schedule.first[executor + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (schedule.end[middle] > ms) high = middle;
    else low = middle + 1;
  }
  return low;
}
