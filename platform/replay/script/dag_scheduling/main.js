// Entry module of the replay of DAG scheduling.

import { arrivalMarks, completionMarks } from "../charts.js";
import { number } from "../format.js";
import { startPage } from "../page.js";
import { columns, HINT, jobText, jobTitle, plotLabel, rowText } from "./format.js";
import { paintPlot, plotShape, rowAt } from "./gantt.js";
import { countJobs, figuresAt, totals, unpackSchedule } from "./schedule.js";

startPage({
  unpackSchedule,
  countJobs,
  markRows: (replay, policy) => [arrivalMarks(replay), completionMarks(policy)],
  totals,
  figuresAt,
  plotShape,
  paintPlot,
  plotLabel,
  rowAt,
  rowText,
  initialEnd: (replay) => replay.end,
  columns,
  cellText: (seconds) => number(seconds, seconds < 1000 ? 1 : 0),
  barShare: (seconds, longest) => seconds / longest,
  hint: HINT,
  jobTitle,
  jobText,
  jobIndex: (replay, id) => id - 1,
});
