// Schedules of executors. One travels as stints: an executor's uninterrupted tasks in one stage of
// one job.

// Rows are sorted by executor, then time; rows of executor e: first[e] .. first[e + 1].
function unpackSchedule(packed, replay) {
  const { executors } = replay;
  const { stints, rows } = packed;
  const executor = unpack(packed.executor);
  const gap = unpack(packed.gap_ms);
  const stintJob = unpack(packed.job);
  const kind = unpack(packed.kind);
  const length = unpack(packed.length);
  const duration = unpack(packed.duration_ms);
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
