// The episode data as the page builder packed them, back in typed arrays. Numbers are LEB128 (seven
// bits a byte, low bits first), so that most columns cost one byte an entry.

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const count = bytes.reduce((ends, byte) => ends + (byte < 128), 0);
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

// Schedules count whole milliseconds: what happens at one moment must be at one number.
function wholeMs(seconds) {
  return Math.round(seconds * 1000) / 1000;
}

function readReplay() {
  const replay = JSON.parse(document.getElementById("replay-data").textContent);
  replay.jobs.arrival_s = replay.jobs.arrival_s.map(wholeMs);
  for (const policy of replay.policies) {
    policy.schedule = unpackSchedule(policy.schedule, replay);
    // A job the episode's end cut off (null) never completes.
    policy.completion = policy.completion_s.map((s) => (s === null ? Infinity : wholeMs(s)));
    policy.jct = policy.completion.map((s, job) => s - replay.jobs.arrival_s[job]);
  }
  replay.end = Math.max(...replay.policies.map((policy) => policy.end_s), 0.001);
  return replay;
}
