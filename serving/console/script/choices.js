// What a decision weighed: a bar an option, and a whisker where its score is uncertain.

const MOST_CHOICES = 12;

function choiceGroup(name, all) {
  const choices = all.slice(0, MOST_CHOICES);
  const uncertain = choices.some((choice) => known(choice.uncertainty));
  const byChance = !uncertain && choices.some((choice) => known(choice.probability));
  const value = (choice) => (byChance ? choice.probability : choice.score);
  const reach = (choice) => (uncertain ? choice.uncertainty ?? 0 : 0);
  // Probabilities lie on their whole range, so that a doubtful choice looks doubtful.
  const ends = byChance ? [0, 1] : [0, ...choices.flatMap((choice) => [value(choice) - reach(choice), value(choice) + reach(choice)])];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const x = (number) => (high > low ? ((number - low) / (high - low)) * 100 : 0);
  const rows = choices.map((choice) => element("tr", {},
    element("td", { title: choice.name }, choice.name),
    element("td", { class: "bar-cell" }, choiceBar(x, value(choice) ?? 0, reach(choice))),
    element("td", {}, byChance ? percent(choice.probability) : scoreWords(choice)),
    element("td", { class: "second" }, byChance ? figure(choice.score) : known(choice.probability) ? percent(choice.probability) : "")));
  const told = byChance ? "probability, score" : uncertain ? "score ± deviation" : "score";
  const caption = element("caption", {}, element("b", {}, name), ` ${told}`);
  const more = all.length > choices.length ? element("p", { class: "note" }, `and ${count(all.length - choices.length)} more`) : null;
  return [element("table", { class: "choices" }, caption, element("tbody", {}, ...rows)), more];
}

const scoreWords = ({ score, uncertainty }) => (known(uncertainty) ? `${figure(score)} ± ${figure(uncertainty)}` : figure(score));

function choiceBar(x, value, reach) {
  const [from, to] = [Math.min(x(0), x(value)), Math.max(x(0), x(value))];
  const [low, high] = [x(value - reach), x(value + reach)];
  return drawn("svg", { class: "choice-bar", viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { class: "bar", x: from, y: 2, width: Math.max(0.4, to - from), height: 8 }),
    reach ? drawn("path", { class: "whisker", d: `M${low} 6H${high}M${low} 3V9M${high} 3V9` }) : null);
}

// The two decisions beside each other; rows that differ are marked.
function comparison(decision, shadow) {
  const [ours, theirs] = [new Map(rowsOf(decision)), new Map(rowsOf(shadow?.decision ?? {}))];
  const names = [...new Set([...ours.keys(), ...(shadow ? theirs.keys() : [])])].filter((name) => name || ours.size === 1);
  const rows = names.map((name) => {
    const differs = shadow && ours.get(name) !== theirs.get(name);
    return element("tr", { class: differs ? "differs" : null },
      element("td", {}, name || "decision"), element("td", {}, ours.get(name) ?? NONE),
      shadow ? element("td", {}, theirs.get(name) ?? NONE) : null);
  });
  const head = element("tr", {}, element("th", { scope: "col" }, ""), element("th", { scope: "col" }, "decided"),
    shadow ? element("th", { scope: "col" }, "shadow") : null);
  return element("table", { class: "compared" }, element("thead", {}, head), element("tbody", {}, ...rows));
}
