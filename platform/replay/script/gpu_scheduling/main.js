// Entry module of the replay of GPU scheduling.

import { durationText } from "../format.js";
import { startPage } from "../page.js";
import { createDecisionPanel } from "./decision_panel.js";
import { columns, HINT, jobText, jobTitle, plotLabel, rowText } from "./format.js";
import { initialEnd, markRows, paintPlot, plotShape, rowAt } from "./machines.js";
import { countJobs, figuresAt, totals, unpackSchedule } from "./schedule.js";

startPage({
  unpackSchedule,
  countJobs,
  markRows,
  totals,
  figuresAt,
  plotShape,
  paintPlot,
  plotLabel,
  rowAt,
  rowText,
  initialEnd,
  columns,
  cellText: durationText,
  // Logarithmic: jobs last from seconds to days.
  barShare: (seconds, longest) => Math.log1p(seconds / 10) / Math.log1p(longest / 10),
  hint: HINT,
  jobTitle,
  jobText,
  jobIndex: (replay, id) => replay.jobs.name.indexOf(String(id)),
  createDecisionPanel,
});
