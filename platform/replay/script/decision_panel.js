// The panel that steps through the decisions of a learned policy.

import { firstAbove } from "./data.js";
import { byId, element, openCanvas } from "./dom.js";
import { timeText } from "./format.js";

// decisionsOf(policy): [{ time_s, ... }] or undefined; countText(policy);
// show(decision, theme) draws a decision and returns { texts: [situation, outcome], legend };
// isNotable(decision): the button to the next one of these leads there;
// markOf(decision, theme) -> { colour, tall } on the line of all decisions.
// Returns null if no policy of the replay has decisions.
export function createStepper(replay, player, { decisionsOf, countText, show, isNotable, markOf }) {
  const recorded = replay.policies.filter((each) => decisionsOf(each)?.length);
  const section = byId("decisions");
  section.hidden = recorded.length === 0;
  if (section.hidden) return null;
  const notable = section.querySelector(".notable");
  let policy = null;
  let decisions = []; // of the policy
  let index = 0;
  let theme = null;

  function draw() {
    if (!theme) return;
    const { texts: [situation, outcome], legend } = show(decisions[index], theme);
    paintDecisionMarks(byId("decision-marks"), decisions, theme, markOf);
    const position = `${index + 1} of ${decisions.length}`;
    byId("decision-slider").value = index;
    byId("decision-slider").setAttribute("aria-valuetext", `decision ${position}`);
    byId("decision-position").textContent = position;
    byId("decision-text").replaceChildren(
      element("span", `${timeText(replay.unit, decisions[index].time_s)} · `, "when"),
      `${situation} `,
      element("b", outcome),
    );
    byId("decision-key").replaceChildren(...legend);
    byId("decision-previous").disabled = index === 0;
    byId("decision-next").disabled = index === decisions.length - 1;
  }

  function goTo(wanted) {
    index = Math.min(decisions.length - 1, Math.max(0, wanted));
    draw();
    player.seek(decisions[index].time_s);
  }

  function selectPolicy(selected) {
    policy = selected;
    decisions = decisionsOf(policy);
    index = 0;
    byId("decisions-policy").textContent = policy.name;
    byId("decisions-policy").className = `policy-${replay.policies.indexOf(policy)}`;
    byId("decisions-count").textContent = countText(policy);
    byId("decision-slider").max = decisions.length - 1;
    notable.hidden = !decisions.some(isNotable);
  }

  // Shows the last decision up to a time.
  function follow(seconds) {
    if (Math.abs(decisions[index].time_s - seconds) < 1e-6) return;
    const last = Math.max(0, firstAbove(decisions.map(({ time_s }) => time_s), seconds + 1e-6) - 1);
    if (last === index) return;
    index = last;
    draw();
  }

  notable.addEventListener("click", () => {
    const following = [...decisions.keys()].map((i) => (index + 1 + i) % decisions.length);
    goTo(following.find((i) => isNotable(decisions[i])) ?? index);
  });
  const buttons = {
    "decision-previous": () => goTo(index - 1),
    "decision-next": () => goTo(index + 1),
    "decision-policy": () => {
      selectPolicy(recorded[(recorded.indexOf(policy) + 1) % recorded.length]);
      follow(player.time);
      draw();
    },
  };
  for (const [id, act] of Object.entries(buttons)) byId(id).addEventListener("click", act);
  byId("decision-policy").hidden = recorded.length < 2;
  byId("decision-slider").addEventListener("input", (event) => goTo(Number(event.target.value)));
  const keys = {
    ArrowLeft: () => goTo(index - 1),
    ArrowRight: () => goTo(index + 1),
    PageUp: () => goTo(index - 10),
    PageDown: () => goTo(index + 10),
    Home: () => goTo(0),
    End: () => goTo(decisions.length - 1),
  };
  section.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation(); // outside the panel these keys move the time
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
    if (event.key === "n") goTo(index + 1);
    if (event.key === "p") goTo(index - 1);
  });

  const jump = element("button", "decisions ↓");
  jump.type = "button";
  jump.addEventListener("click", () => {
    section.scrollIntoView();
    section.focus({ preventScroll: true });
  });
  byId("gap").before(jump);
  selectPolicy(recorded[0]);
  addEventListener("resize", draw);
  return {
    follow,
    repaint(newTheme) {
      theme = newTheme;
      draw();
    },
    // #decision=12 shows that decision.
    readFragment(fragment) {
      const wanted = Number(fragment.get("decision"));
      if (!wanted) return;
      goTo(wanted - 1);
      requestAnimationFrame(() => section.scrollIntoView()); // once the charts have their height
    },
  };
}

function paintDecisionMarks(canvas, decisions, theme, markOf) {
  const width = canvas.clientWidth;
  const context = openCanvas(canvas, width, 10, theme);
  decisions.forEach((decision, i) => {
    const x = 8 + ((width - 16) * i) / Math.max(1, decisions.length - 1);
    const { colour, tall } = markOf(decision, theme);
    context.fillStyle = colour;
    context.fillRect(x - 1, tall ? 0 : 3, tall ? 2 : 1, tall ? 10 : 5);
  });
}

// An entry of the legend below a decision, with a sample of that class.
export function legendEntry(className, text) {
  const node = element("span");
  node.append(element("i", "", `sample ${className}`), text);
  return node;
}

// A cell with a mean and one standard deviation on a common scale, as priorities have.
export function createTrack(className, { mean, std }, scale, text) {
  const cell = element("td", "", className);
  const track = element("div", "", "track");
  const band = element("i");
  band.style.left = scale(mean - std);
  band.style.right = `calc(100% - ${scale(mean + std)})`;
  const mark = element("b");
  mark.style.left = scale(mean);
  track.append(band, mark);
  cell.append(track, element("span", text));
  return cell;
}
