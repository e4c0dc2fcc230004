// The episode data that the page builder packed, and counts of jobs over time.

// Decodes LEB128 numbers: seven bits a byte, low bits first.
export function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const numbers = new Float64Array(bytes.reduce((ends, byte) => ends + (byte < 128), 0));
  let at = 0;
  for (let i = 0; i < numbers.length; i++) {
    let factor = 1;
    while (bytes[at] > 127) {
      numbers[i] += (bytes[at++] - 128) * factor;
      factor *= 128;
    }
    numbers[i] += bytes[at++] * factor;
  }
  return numbers;
}

// Schedules count whole milliseconds: simultaneous events must have equal times.
const wholeMs = (seconds) => Math.round(seconds * 1000) / 1000;

export function readReplay(adapter) {
  const replay = JSON.parse(document.getElementById("replay-data").textContent);
  replay.jobs.arrival_s = replay.jobs.arrival_s.map(wholeMs);
  for (const policy of replay.policies) {
    policy.schedule = adapter.unpackSchedule(policy.schedule, replay);
    // null: the episode ended before the job completed.
    policy.completion = policy.completion_s.map((s) => (s === null ? Infinity : wholeMs(s)));
    policy.jct = policy.completion.map((s, job) => s - replay.jobs.arrival_s[job]);
    policy.counts = adapter.countJobs(replay, policy);
    policy.markRows = adapter.markRows(replay, policy);
  }
  replay.end = Math.max(...replay.policies.map((policy) => policy.end_s), 0.001);
  return replay;
}

// Sums [time, change] pairs, in any order: count[i] holds from time[i] on.
export function accumulate(changes) {
  const time = [0];
  const count = [0];
  for (const [s, change] of changes.sort((a, b) => a[0] - b[0])) {
    if (s > time.at(-1)) {
      time.push(s);
      count.push(count.at(-1));
    }
    count[count.length - 1] += change;
  }
  return { time, count };
}

// The first index from `low` on whose value in the sorted `values` exceeds `limit`, or `high`.
export function firstAbove(values, limit, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Jobs in the system and completed jobs at a time.
export function jobsAt(replay, policy, seconds) {
  let inSystem = 0;
  let completed = 0;
  let total = 0;
  replay.jobs.arrival_s.forEach((arrival, job) => {
    if (policy.completion[job] <= seconds) {
      completed++;
      total += policy.jct[job];
    } else if (arrival <= seconds) inSystem++;
  });
  return { inSystem, completed, jctSoFar: total / completed };
}

// The middle of the longest period with the largest difference between the counts of two policies,
// both above zero. With one policy, the middle of the episode.
export function widestGap(replay) {
  const [one, two] = replay.policies.map((policy) => policy.counts);
  if (!two) return replay.end / 2;
  const countAt = ({ time, count }, seconds) => count[firstAbove(time, seconds) - 1];
  const times = [...new Set([...one.time, ...two.time])].sort((a, b) => a - b);
  let best = { gap: -1, length: 0, middle: replay.end / 2 };
  times.forEach((from, i) => {
    const length = (times[i + 1] ?? replay.end) - from;
    const counts = [countAt(one, from), countAt(two, from)];
    const gap = Math.min(...counts) > 0 ? Math.abs(counts[0] - counts[1]) : -1;
    if (gap > best.gap || (gap === best.gap && length > best.length)) {
      best = { gap, length, middle: from + length / 2 };
    }
  });
  return best.middle;
}
