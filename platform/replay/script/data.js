// The episode data that the page builder packed, and counts over time.

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

export function readData() {
  return JSON.parse(document.getElementById("replay-data").textContent);
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
