// Comparisons, learning curves and contributing samples; asked again every two seconds while the tab is shown.

import { ask, element } from "./ask.js";
import { lines } from "./draw.js";

const $ = (id) => document.getElementById(id);
const METRICS = ["rsum", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10"];
const NAMES = { rsum: "rsum", i2t_r1: "i2t R@1", i2t_r5: "i2t R@5", i2t_r10: "i2t R@10", t2i_r1: "t2i R@1", t2i_r5: "t2i R@5", t2i_r10: "t2i R@10" };
const DRAWN = 6, SHOWN = 8, EVERY = 2000, LIVE = 300;
const picked = new Map(); // name of a run -> whether a person wants it drawn
const curves = new Map(); // name -> what it had written by so many lines
let begun = false, timer = null, seen = "";

function begin() {
  begun = true;
  $("metric").replaceChildren(...METRICS.map((each) => element("option", { value: each }, NAMES[each])));
  for (const id of ["metric", "count"]) $(id).addEventListener("change", draw);
}

export async function show(_, about) {
  if (!begun) begin();
  clearTimeout(timer);
  if (about && !about.runs) {
    $("runs-note").textContent = "No folder of runs is served: tercet serve --runs FOLDER";
    return;
  }
  await refresh();
}

export function leave() {
  clearTimeout(timer);
}

let runs = [];

async function refresh() {
  clearTimeout(timer);
  try {
    const [found, comparisons] = await Promise.all([ask("/api/runs"), ask("/api/comparisons")]);
    runs = found;
    const live = runs.filter((each) => !each.finished && each.quiet < LIVE).length;
    $("runs-note").textContent = `${counted(runs.length, "run")}${live ? `, ${live} in training` : ""}, ${counted(comparisons.length, "comparison")}`;
    const now = JSON.stringify([runs.map(({ quiet, ...rest }) => [rest, quiet < LIVE]), comparisons]);
    if (now !== seen) { // what has not changed stays as it is, with its focus
      table();
      compared(comparisons);
      await draw();
      seen = now;
    }
  } catch (error) {
    $("runs-note").textContent = error.message;
    if (error.status === 404) return;
  }
  if (!$("tab-runs").hidden) timer = setTimeout(refresh, EVERY);
}

const counted = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
const drawn = () => {
  const chosen = runs.filter((each) => picked.get(each.name) === true);
  const rest = runs.filter((each) => !picked.has(each.name));
  return [...chosen, ...rest.slice(0, Math.max(0, DRAWN - chosen.length))].slice(0, SHOWN);
};
const colourOf = (n) => `var(--series-${n % 8})`;

function table() {
  const shown = drawn().map((each) => each.name);
  const head = ["run", "state", ...METRICS.map((each) => NAMES[each])];
  const rows = runs.map((run) => {
    const place = shown.indexOf(run.name);
    const box = element("input", { type: "checkbox", checked: place >= 0, onchange: async () => { picked.set(run.name, box.checked); table(); await draw(); } });
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = place >= 0 ? colourOf(place) : "transparent";
    const state = run.finished ? "finished" : run.quiet < LIVE ? element("span", { className: "live" }, `epoch ${run.epoch} of ${run.epochs}`) : `stopped at epoch ${run.epoch} of ${run.epochs}`;
    return element("tr", { title: run.name },
      element("th", { scope: "row" }, element("label", {}, box, " ", swatch, title(run))),
      element("td", {}, state),
      ...METRICS.map((each) => element("td", {}, run.metrics[each]?.toFixed(1) ?? "")));
  });
  const focused = document.activeElement?.closest?.("#runs-table tr")?.title;
  $("runs-table").replaceChildren(element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((each) => element("th", { scope: "col" }, each)))), element("tbody", {}, ...rows)));
  if (focused) $("runs-table").querySelector(`tr[title="${CSS.escape(focused)}"] input`)?.focus();
}

const title = (run) => `${run.data}, ${run.model}, ${run.objective}, seed ${run.seed}`;

function compared(comparisons) {
  $("comparisons").replaceChildren(...comparisons.map((each, n) => {
    const rows = each.rows.map((row) => element("tr", {}, element("th", { scope: "row" }, row.name), element("td", {}, String(row.runs)),
      ...METRICS.map((metric) => element("td", {}, (row.means[metric] ?? NaN).toFixed(1) + (metric in row.deviations ? ` \u00b1 ${row.deviations[metric].toFixed(1)}` : "")))));
    const head = ["objective", "runs", ...METRICS.map((metric) => NAMES[metric])];
    const content = element("table", {}, element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows));
    const report = each.report ? element("p", {}, element("a", { href: `/comparisons/${encodeURIComponent(each.name)}/report.html` }, "The whole report")) : null;
    return element("details", { className: "comparison", open: n === 0 }, element("summary", {}, each.title),
      element("p", { className: "verdict" }, each.verdict),
      element("div", { className: "wide", role: "region", tabIndex: 0, "aria-label": each.title }, content), report);
  }));
}

async function draw() {
  const shown = drawn();
  const found = await Promise.all(shown.map(async (run) => {
    const known = curves.get(run.name);
    if (known?.lines === run.lines) return known.content;
    const content = await ask(`/api/runs/${encodeURIComponent(run.name)}`).catch(() => ({ validation: [], counts: [] }));
    curves.set(run.name, { lines: run.lines, content });
    return content;
  }));
  const metric = $("metric").value, count = $("count").value;
  const series = (points) => found.map((each, n) => ({ name: title(shown[n]), colour: colourOf(n), points: points(each) }));
  $("curves").replaceChildren(lines(series((each) => each.validation.filter((line) => typeof line[metric] === "number").map((line) => [line.epoch, line[metric]])),
    { x: "epoch", y: `${NAMES[metric]}, validation`, label: `${NAMES[metric]} on validation over epochs of ${shown.length} runs` }));
  const mean = (line) => [line.i2t[count], line.t2i[count]].filter((value) => typeof value === "number");
  $("counts").replaceChildren(lines(series((each) => each.counts.filter((line) => mean(line).length).map((line) => [line.step, mean(line).reduce((a, b) => a + b) / mean(line).length])),
    { x: "step", y: $("count").selectedOptions[0].textContent, label: `${$("count").selectedOptions[0].textContent} over steps of ${shown.length} runs`, low: 0 }));
}
