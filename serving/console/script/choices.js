// The options that a decision scored: one bar an option, with a whisker where scores are uncertain.

import { element, svgElement } from "./dom.js";
import { count, decimal, flatten, isNumber, NONE, percent } from "./format.js";

const MAX_CHOICES = 12;

export function choiceTable(name, all) {
  const choices = all.slice(0, MAX_CHOICES);
  const uncertain = choices.some((choice) => isNumber(choice.uncertainty));
  const byProbability = !uncertain && choices.some((choice) => isNumber(choice.probability));
  const value = (choice) => (byProbability ? choice.probability : choice.score);
  const error = (choice) => (uncertain ? choice.uncertainty ?? 0 : 0);
  // Probabilities are drawn on the whole range from 0 to 1.
  const ends = byProbability ? [0, 1] : [0, ...choices.flatMap((choice) => [value(choice) - error(choice), value(choice) + error(choice)])];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const x = (number) => (high > low ? ((number - low) / (high - low)) * 100 : 0);
  const rows = choices.map((choice) => element("tr", {},
    element("td", { title: choice.name }, choice.name),
    element("td", { class: "bar-cell" }, choiceBar(x, value(choice) ?? 0, error(choice))),
    element("td", {}, byProbability ? percent(choice.probability) : scoreText(choice)),
    byProbability ? element("td", { class: "second" }, decimal(choice.score)) : null));
  const columns = byProbability ? "probability, score" : uncertain ? "score ± standard deviation" : "score";
  const caption = element("caption", {}, element("b", {}, name), ` ${columns}`);
  const more = all.length > choices.length ? element("p", { class: "note" }, `and ${count(all.length - choices.length)} more`) : null;
  return [element("table", { class: "choices" }, caption, element("tbody", {}, ...rows)), more];
}

const scoreText = ({ score, uncertainty }) => (isNumber(uncertainty) ? `${decimal(score)} ± ${decimal(uncertainty)}` : decimal(score));

function choiceBar(x, value, error) {
  const [from, to] = [Math.min(x(0), x(value)), Math.max(x(0), x(value))];
  const [low, high] = [x(value - error), x(value + error)];
  return svgElement("svg", { class: "choice-bar", viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    svgElement("rect", { class: "bar", x: from, y: 2, width: Math.max(0.4, to - from), height: 8 }),
    error ? svgElement("path", { class: "whisker", d: `M${low} 6H${high}M${low} 3V9M${high} 3V9` }) : null);
}

// The decision beside that of the shadow policy; rows that differ are marked.
export function decisionTable(decision, shadow) {
  const [active, other] = [new Map(flatten(decision)), new Map(flatten(shadow?.decision ?? {}))];
  const names = [...new Set([...active.keys(), ...(shadow ? other.keys() : [])])].filter((name) => name || active.size === 1);
  const rows = names.map((name) => {
    const differs = shadow && active.get(name) !== other.get(name);
    return element("tr", { class: differs ? "differs" : null },
      element("td", {}, name || "decision"), element("td", {}, active.get(name) ?? NONE),
      shadow ? element("td", {}, other.get(name) ?? NONE) : null);
  });
  const head = ["", "decided", ...(shadow ? ["shadow"] : [])].map((text) => element("th", { scope: "col" }, text));
  return element("table", { class: "compared" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}
