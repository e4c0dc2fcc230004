// Entry module of the replay of DAG scheduling.

import { jobMarkRows } from "../charts.js";
import { number } from "../format.js";
import { startSchedulePage } from "../schedule_page.js";
import { columns, HINT, jobText, jobTitle, plotLabel, rowText } from "./format.js";
import { paintPlot, plotShape, rowAt } from "./gantt.js";
import { countJobs, figuresAt, totals, unpackSchedule } from "./schedule.js";

startSchedulePage({
  schedule: { unpackSchedule, countJobs, totals, figuresAt, markRows: jobMarkRows },
  plot: { plotShape, paintPlot, plotLabel, rowAt, rowText, initialEnd: (replay) => replay.end },
  jobs: {
    hint: HINT,
    title: jobTitle,
    text: jobText,
    columns,
    cellText: (seconds) => number(seconds, seconds < 1000 ? 1 : 0),
    barShare: (seconds, longest) => seconds / longest,
    index: (replay, id) => Number(id) - 1,
  },
});
