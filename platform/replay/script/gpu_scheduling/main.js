// Entry module of the replay of GPU scheduling.

import { durationText } from "../format.js";
import { startSchedulePage } from "../schedule_page.js";
import { createDecisionPanel } from "./decision_panel.js";
import { columns, HINT, jobText, jobTitle, plotLabel, rowText } from "./format.js";
import { initialEnd, markRows, paintPlot, plotShape, rowAt } from "./machines.js";
import { countJobs, figuresAt, totals, unpackSchedule } from "./schedule.js";

startSchedulePage({
  schedule: { unpackSchedule, countJobs, totals, figuresAt, markRows },
  plot: { plotShape, paintPlot, plotLabel, rowAt, rowText, initialEnd },
  jobs: {
    hint: HINT,
    title: jobTitle,
    text: jobText,
    columns,
    cellText: durationText,
    // Logarithmic: jobs last from seconds to days.
    barShare: (seconds, longest) => Math.log1p(seconds / 10) / Math.log1p(longest / 10),
    index: (replay, id) => replay.jobs.name.indexOf(id),
  },
  createDecisionPanel,
});
