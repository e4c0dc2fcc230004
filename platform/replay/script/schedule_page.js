// Pages about jobs that are scheduled: what they read, and what they count.

import { paintCounts } from "./charts.js";
import { firstAbove, readData } from "./data.js";
import { startPage } from "./page.js";

// Schedules count whole milliseconds: simultaneous events must have equal times.
const wholeMs = (seconds) => Math.round(seconds * 1000) / 1000;

// The arguments are what differs between environments:
// schedule: unpackSchedule(packed, replay), countJobs(replay, policy), markRows(replay, policy),
//   totals(policy), figuresAt(replay, policy, seconds) -> { count, texts }
// plot, createDecisionPanel: as in page.js; the rows of a schedule have a column `job`
// jobs: as the items in page.js, with barShare(seconds, longest)
export function startSchedulePage({ schedule, plot, jobs, createDecisionPanel }) {
  startPage({
    read: () => readReplay(schedule),
    panel: {
      totals: schedule.totals,
      figuresAt(...place) {
        const { count, texts } = schedule.figuresAt(...place);
        return { texts, values: { counts: count } };
      },
    },
    plot: { ...plot, itemOf: (policy, row) => policy.schedule.job[row] },
    items: {
      ...jobs,
      key: "job",
      coloured: true,
      names: (replay) => replay.jobs.name,
      barsLabel: "JCT as bars",
      barShares: (replay) => barShares(replay, jobs.barShare),
    },
    charts: [{ id: "counts", paint: paintCounts }],
    createDecisionPanel,
  });
}

function readReplay(adapter) {
  const replay = readData();
  replay.jobs.arrival_s = replay.jobs.arrival_s.map(wholeMs);
  for (const policy of replay.policies) {
    policy.schedule = adapter.unpackSchedule(policy.schedule, replay);
    // null: the episode ended before the job completed.
    policy.completion = policy.completion_s.map((s) => (s === null ? Infinity : wholeMs(s)));
    policy.jct = policy.completion.map((s, job) => s - replay.jobs.arrival_s[job]);
    policy.counts = adapter.countJobs(replay, policy);
    policy.markRows = adapter.markRows(replay, policy);
    policy.lifetime = (job) => ({
      from: replay.jobs.arrival_s[job],
      to: Math.min(policy.completion[job], policy.end_s),
    });
  }
  replay.end = Math.max(...replay.policies.map((policy) => policy.end_s), 0.001);
  replay.gap = widestGap(replay);
  return replay;
}

function barShares(replay, barShare) {
  const longest = Math.max(...replay.policies.flatMap((policy) => policy.jct.filter(Number.isFinite)), 0.001);
  return (policy, job) => barShare(Math.min(policy.jct[job], longest), longest);
}

// The middle of the longest period with the largest difference between the counts of two policies,
// both above zero. With one policy, the middle of the episode.
function widestGap(replay) {
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
