// Schedules of machines. One travels as bars: a stretch of a job on some of a machine's GPUs.

// Bars are sorted by machine, then start; those of machine m: first[m] .. first[m + 1].
function unpackSchedule(packed, replay) {
  const count = packed.bars;
  const machines = replay.machines.rack.length;
  const machine = unpack(packed.machine);
  const gap = unpack(packed.gap_ms);
  const duration = unpack(packed.duration_ms);
  const job = unpack(packed.job);
  const schedule = {
    machine,
    first: new Int32Array(machines + 1),
    start: new Float64Array(count), // s
    end: new Float64Array(count), // s
    job: job.map((value) => value >> 1),
    stopped: job.map((value) => value & 1), // whether the job was stopped at the end of the bar
    from: unpack(packed.first), // percent of a GPU, from the machine's first one on
    height: unpack(packed.height), // percent
  };
  let clock = 0;
  for (let bar = 0; bar < count; bar++) {
    if (bar > 0 && machine[bar] !== machine[bar - 1]) clock = 0;
    clock += gap[bar];
    schedule.start[bar] = clock / 1000;
    schedule.end[bar] = (clock + duration[bar]) / 1000;
    schedule.first[machine[bar] + 1] = bar + 1;
  }
  for (let m = 1; m <= machines; m++) {
    schedule.first[m] = Math.max(schedule.first[m], schedule.first[m - 1]); // some were never used
  }
  schedule.stretches = stretchesOf(schedule);
  return schedule;
}

// A gang's bars from one start to one end are one stretch.
function stretchesOf(schedule) {
  const seen = new Map();
  schedule.job.forEach((job, bar) => {
    const [start, end] = [schedule.start[bar], schedule.end[bar]];
    seen.set(`${job} ${start}`, { job, start, end, stopped: schedule.stopped[bar] === 1 });
  });
  return [...seen.values()].sort((a, b) => a.start - b.start);
}
