// Runs tab: comparisons, learning curves and contributing samples. Refreshed every two seconds while the tab is shown.

import { element, fetchJson } from "./api.js";
import { lineChart } from "./charts.js";

const $ = (id) => document.getElementById(id);
const METRICS = ["rsum", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10"];
const NAMES = { rsum: "rsum", i2t_r1: "i2t R@1", i2t_r5: "i2t R@5", i2t_r10: "i2t R@10", t2i_r1: "t2i R@1", t2i_r5: "t2i R@5", t2i_r10: "t2i R@10" };
const DEFAULT_PLOTTED = 6, MAX_PLOTTED = 8;
const REFRESH_MS = 2000, MAX_IDLE_SECONDS = 300; // an unfinished run that is idle for longer has stopped
const checked = new Map(); // run name -> whether the user checked or unchecked it
const curves = new Map(); // run name -> { lines, content }: curves, valid while the run has this many lines
let initialized = false, timer = null, lastContent = "";
let runs = [];
let order = { column: null, descending: true }; // of the table; null: most recent first

function initialize() {
  initialized = true;
  $("metric").replaceChildren(...METRICS.map((metric) => element("option", { value: metric }, NAMES[metric])));
  for (const id of ["metric", "count"]) $(id).addEventListener("change", plot);
}

export async function show(_, about) {
  if (!initialized) initialize();
  clearTimeout(timer);
  if (about && !about.runs) {
    $("runs-status").textContent = "No runs folder is served: tercet serve --runs FOLDER";
    return;
  }
  await refresh();
}

export function leave() {
  clearTimeout(timer);
}

const isTraining = (run) => !run.finished && run.idle_seconds < MAX_IDLE_SECONDS;
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

async function refresh() {
  clearTimeout(timer);
  try {
    const [listed, comparisons] = await Promise.all([fetchJson("/api/runs"), fetchJson("/api/comparisons")]);
    runs = listed;
    const training = runs.filter(isTraining).length;
    $("runs-status").textContent = `${plural(runs.length, "run")}${training ? `, ${training} in training` : ""}, ${plural(comparisons.length, "comparison")}`;
    const content = JSON.stringify([runs.map(({ idle_seconds, ...rest }) => [rest, idle_seconds < MAX_IDLE_SECONDS]), comparisons]);
    if (content !== lastContent) { // otherwise keep the elements, and with them the focus
      showRuns();
      showComparisons(comparisons);
      await plot();
      lastContent = content;
    }
  } catch (error) {
    $("runs-status").textContent = error.message;
    if (error.status === 404) return;
  }
  if (!$("tab-runs").hidden) timer = setTimeout(refresh, REFRESH_MS);
}

/** Runs the user checked, then the most recent ones. */
function plottedRuns() {
  const chosen = runs.filter((run) => checked.get(run.name) === true);
  const rest = runs.filter((run) => !checked.has(run.name));
  return [...chosen, ...rest.slice(0, Math.max(0, DEFAULT_PLOTTED - chosen.length))].slice(0, MAX_PLOTTED);
}

const seriesColour = (n) => `var(--series-${n % 8})`;
const runTitle = (run) => `${run.data}, ${run.model}, ${run.objective}, seed ${run.seed}`;

function runState(run) {
  if (run.finished) return "finished";
  const epoch = `epoch ${run.epoch} of ${run.epochs}`;
  return isTraining(run) ? element("span", { className: "live" }, epoch) : `stopped at ${epoch}`;
}

function metricsTable(firstColumns, rows, header = (text) => element("th", { scope: "col" }, text)) {
  const columns = [...firstColumns.map((name) => [name, name]), ...METRICS.map((metric) => [NAMES[metric], metric])];
  return element("table", {},
    element("thead", {}, element("tr", {}, ...columns.map(([text, key]) => header(text, key)))), element("tbody", {}, ...rows));
}

/** What a column of the table of runs is sorted by. */
const sortKey = (run, column) => column === "run" ? runTitle(run) : column === "state" ? Number(run.finished) : run.metrics[column] ?? -Infinity;

function sortedRuns() {
  if (!order.column) return runs;
  const sign = order.descending ? -1 : 1, key = (run) => sortKey(run, order.column);
  return [...runs].sort((a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
}

function sortHeader(text, column) {
  const sorted = order.column === column;
  const button = element("button", { type: "button", className: "sort", onclick: () => {
    order = { column, descending: sorted ? !order.descending : column !== "run" };
    showRuns();
    $("runs-table").querySelector(`[data-column="${column}"]`).focus();
  } }, `${text}${sorted ? (order.descending ? " \u25bc" : " \u25b2") : ""}`);
  button.dataset.column = column;
  return element("th", { scope: "col", "aria-sort": sorted ? (order.descending ? "descending" : "ascending") : "none" }, button);
}

const indexButton = (run) => run.index_commands.length
  ? element("button", { type: "button", className: "small", onclick: () => showIndexCommands(run) }, "Index this run") : null;

/** Show the commands that make an index of a run and serve it, to copy: the page itself starts no work. */
function showIndexCommands(run) {
  const code = element("code", {}, run.index_commands.join("\n"));
  const copied = element("span", { role: "status" });
  const copy = element("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      copied.textContent = " copied";
    } catch {
      getSelection().selectAllChildren(code);
      copied.textContent = " selected: copy it with the keyboard";
    }
  } }, "Copy");
  $("item-title").textContent = `Index ${runTitle(run)}`;
  $("item-content").replaceChildren(
    element("p", {}, "Run these commands in the folder that holds the runs folder; PHOTOS is your folder of images or your dataset."),
    element("pre", { className: "code-line" }, code), element("p", {}, copy, copied));
  $("item").showModal();
}

function showRuns() {
  const plotted = plottedRuns().map((run) => run.name);
  const rows = sortedRuns().map((run) => {
    const position = plotted.indexOf(run.name);
    const box = element("input", { type: "checkbox", checked: position >= 0, onchange: async () => { checked.set(run.name, box.checked); showRuns(); await plot(); } });
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = position >= 0 ? seriesColour(position) : "transparent";
    return element("tr", { title: run.name },
      element("th", { scope: "row" }, element("label", {}, box, " ", swatch, runTitle(run)), element("span", { className: "folder" }, run.name), indexButton(run)),
      element("td", {}, runState(run)),
      ...METRICS.map((metric) => element("td", {}, run.metrics[metric]?.toFixed(1) ?? "")));
  });
  const focused = document.activeElement?.closest?.("#runs-table tr")?.title;
  $("runs-table").replaceChildren(metricsTable(["run", "state"], rows, sortHeader));
  if (focused) $("runs-table").querySelector(`tr[title="${CSS.escape(focused)}"] input`)?.focus();
}

function showComparisons(comparisons) {
  $("comparisons").replaceChildren(...comparisons.map((comparison, n) => {
    const rows = comparison.rows.map((row) => element("tr", {}, element("th", { scope: "row" }, row.name), element("td", {}, String(row.runs)),
      ...METRICS.map((metric) => element("td", {}, (row.means[metric] ?? NaN).toFixed(1) + (metric in row.deviations ? ` \u00b1 ${row.deviations[metric].toFixed(1)}` : "")))));
    const table = metricsTable(["objective", "runs"], rows);
    const report = comparison.report ? element("p", {}, element("a", { href: `/comparisons/${encodeURIComponent(comparison.name)}/report.html` }, "Full report")) : null;
    return element("details", { className: "comparison", open: n === 0 }, element("summary", {}, comparison.title),
      element("p", { className: "verdict" }, comparison.verdict),
      element("div", { className: "wide", role: "region", tabIndex: 0, "aria-label": comparison.title }, table), report);
  }));
}

async function fetchCurves(run) {
  const cached = curves.get(run.name);
  if (cached?.lines === run.lines) return cached.content;
  const content = await fetchJson(`/api/runs/${encodeURIComponent(run.name)}`).catch(() => ({ validation: [], counts: [] }));
  curves.set(run.name, { lines: run.lines, content });
  return content;
}

async function plot() {
  const plotted = plottedRuns();
  const contents = await Promise.all(plotted.map(fetchCurves));
  const metric = $("metric").value, count = $("count").value, countName = $("count").selectedOptions[0].textContent;
  const series = (points) => contents.map((content, n) => ({ name: runTitle(plotted[n]), colour: seriesColour(n), points: points(content) }));
  $("curves").replaceChildren(lineChart(series((content) => content.validation.filter((line) => typeof line[metric] === "number").map((line) => [line.epoch, line[metric]])),
    { x: "epoch", y: `${NAMES[metric]}, validation`, label: `Validation ${NAMES[metric]} per epoch, ${plotted.length} runs` }));
  const counts = (line) => [line.i2t[count], line.t2i[count]].filter((value) => typeof value === "number"); // per direction
  const mean = (values) => values.reduce((a, b) => a + b) / values.length;
  $("counts").replaceChildren(lineChart(series((content) => content.counts.filter((line) => counts(line).length).map((line) => [line.step, mean(counts(line))])),
    { x: "step", y: countName, label: `${countName} per step, ${plotted.length} runs`, low: 0 }));
}
