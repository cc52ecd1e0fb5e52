// Playground tab: diagrams and gradients of any objective. All values are computed by the server, so that the page and
// Python cannot disagree.

import { element, fetchJson, imageUrl, oneAtATime } from "./api.js";
import { formatNumber, heatMap, lineChart } from "./charts.js";

const $ = (id) => document.getElementById(id);
const GOAL = "GOAL (T times P)";
const BLUE = [0, 114, 178], ORANGE = [213, 94, 0], GREEN = [0, 158, 115];
let catalogue = null; // answer of /api/objectives
let loading = null; // promise of it
let requested = null; // parameters of the latest call of show
let shown = null; // { objective, settings that differ from the defaults }: requests take both from here, never from the controls
let index = null, warning = "";

export async function show(params, about) {
  requested = params;
  if (about) index = captionedIndex(about);
  loading ??= initialize().catch((error) => { loading = null; throw error; });
  await loading;
  if (requested !== params) return; // another link was opened meanwhile
  const name = params.get("objective") || "cir/sig-ms";
  const objective = findObjective(name);
  if (!objective) {
    $("playground-status").textContent = `Unknown objective ${name}`;
    return;
  }
  const given = objective.controls.map((control) => control.name).filter((key) => params.has(key));
  shown = { objective: name, settings: Object.fromEntries(given.map((key) => [key, params.get(key)])) };
  const unknown = [...params.keys()].filter((key) => key !== "objective" && !hasControl(objective, key));
  warning = unknown.length ? `${name} has no setting ${unknown.join(", ")}` : "";
  selectObjective(name);
  showControls(objective, shown.settings);
  await update();
}

/** Called when the served indexes or their states are known. */
export function updateIndexes(about) {
  const before = index;
  index = captionedIndex(about);
  if (shown && index !== before && !$("tab-playground").hidden) update();
}

const captionedIndex = (about) => about.indexes.find((each) => each.state === "ready" && each.captions)?.name || null;

async function initialize() {
  catalogue = await fetchJson("/api/objectives");
  const others = catalogue.objectives.map((objective) => objective.name).filter((name) => !name.includes("/"));
  $("objective").replaceChildren(...[GOAL, ...others].map((name) => element("option", { value: name }, name)));
  showRadios("triplet-weights", "Triplet weight T", catalogue.triplet_weights);
  showRadios("pair-weights", "Pair weight P", catalogue.pair_weights);
  $("objective").addEventListener("change", () => navigate({}));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("copy").addEventListener("click", copyPython);
  $("defaults").addEventListener("click", () => navigate({}));
}

const findObjective = (name) => catalogue.objectives.find((objective) => objective.name === name);
const hasControl = (objective, name) => objective.controls.some((control) => control.name === name);

function showRadios(id, legend, names) {
  const radios = names.map((name) => element("label", {}, element("input", { type: "radio", name: id, value: name, onchange: () => navigate(shown?.settings ?? {}) }), name));
  $(id).replaceChildren(element("legend", {}, legend), ...radios);
}

const selectedRadio = (id) => $(id).querySelector("input:checked")?.value;
const selectedObjective = () => ($("objective").value === GOAL ? `${selectedRadio("triplet-weights") || "cir"}/${selectedRadio("pair-weights") || "sig-ms"}` : $("objective").value);

function selectObjective(name) {
  const [T, P] = name.split("/");
  $("objective").value = P ? GOAL : name;
  for (const [id, value] of [["triplet-weights", T], ["pair-weights", P]]) {
    $(id).hidden = !P;
    for (const radio of $(id).querySelectorAll("input")) radio.checked = radio.value === value;
  }
}

/** Go to the URL of the selected objective with those of the settings that it has. */
function navigate(newSettings) {
  const name = selectedObjective(), objective = findObjective(name);
  const applicable = Object.fromEntries(Object.entries(newSettings).filter(([key]) => hasControl(objective, key)));
  location.hash = `#playground?${new URLSearchParams({ objective: name, ...applicable })}`;
}

function showControls(objective, settings) {
  const rows = objective.controls.map((control) => {
    const id = `set-${control.name}`, value = settings[control.name] ?? control.default;
    const set = (newValue) => { settings[control.name] = String(newValue); replaceUrl(); update(); };
    if (control.choices || typeof control.default === "boolean") {
      const choices = control.choices || ["false", "true"];
      const select = element("select", { id, onchange: () => set(select.value) }, ...choices.map((choice) => element("option", { value: choice }, choice)));
      select.value = String(value);
      return element("div", { className: "slider" }, element("label", { htmlFor: id }, control.name), select);
    }
    const output = element("output", { htmlFor: id });
    // The URL may hold a value outside the slider's default range.
    const range = [control.low, control.high, ...(Number.isFinite(Number(value)) && value !== null ? [Number(value)] : [])];
    const input = element("input", { id, type: "range", min: Math.min(...range), max: Math.max(...range), step: control.step });
    input.value = value ?? control.low;
    output.textContent = value === null || value === "null" ? "none" : Number(value).toString();
    input.addEventListener("input", () => { output.textContent = Number(input.value).toString(); set(input.value); });
    return element("div", { className: "slider" }, element("label", { htmlFor: id }, control.name), input, output);
  });
  $("sliders").replaceChildren(...rows);
}

/** Write the settings to the URL without a history entry for every slider position. */
function replaceUrl() {
  history.replaceState(null, "", `#playground?${new URLSearchParams({ objective: shown.objective, ...shown.settings })}`);
}

const update = oneAtATime(async () => {
  const current = shown, params = { objective: current.objective, ...current.settings };
  try {
    const diagram = await fetchJson("/api/diagram", params);
    if (current !== shown) return; // another link was opened meanwhile: the next call shows it
    $("playground-status").textContent = warning;
    $("python").textContent = diagram.python;
    $("loss-note").textContent = diagram.has_value ? "This gradient is that of a loss." : "No loss has this gradient: training uses the gradient itself.";
    for (const [name, value] of Object.entries(diagram.settings)) showDefault(name, value);
    showDiagrams(diagram);
  } catch (error) {
    if (current === shown) $("playground-status").textContent = error.message;
    return;
  }
  await updateGradient(params);
});

/** Show the value of a setting that the user has not set: `reading`, for example, sets margin, offset and empty. */
function showDefault(name, value) {
  const input = $(`set-${name}`);
  if (!input || name in shown.settings) return;
  if (value !== null) input.value = String(value);
  const output = input.parentElement.querySelector("output");
  if (output) output.textContent = value === null ? "none" : String(value);
}

function showDiagrams(diagram) {
  const maps = [["Pull: |dL/dS_p|", diagram.pull, BLUE], ["Push: |dL/dS_n|", diagram.push, ORANGE]];
  if (diagram.triplet_weight) maps.push(["Triplet weight T", diagram.triplet_weight, GREEN]);
  const blocks = maps.map(([title, values, rgb]) => element("div", {},
    element("h3", {}, `${title}, maximum ${formatNumber(Math.max(...values.flat()))}`), heatMap(values, diagram.axis, { label: `${title} over positive and negative similarity`, rgb })));
  if (diagram.positive_weight) {
    const curve = (name, values, colour) => ({ name, colour, points: values.map((value, n) => [diagram.axis[n], value]) });
    blocks.push(element("div", {}, element("h3", {}, "Pair weight P: ", element("span", { className: "pull" }, "P+ (positive)"), ", ", element("span", { className: "push" }, "P- (negative)")),
      lineChart([curve("P+", diagram.positive_weight, "var(--series-0)"), curve("P-", diagram.negative_weight, "var(--series-1)")], { x: "similarity", y: "weight", label: "Pair weights over similarity", low: 0 })));
  }
  $("diagrams").replaceChildren(...blocks);
}

async function updateGradient(params) {
  if (!index) {
    $("batch-status").textContent = "Needs an index with captions: tercet index MODEL --images DATA";
    return;
  }
  try {
    const batch = await fetchJson("/api/gradient", { ...params, index });
    $("batch-status").textContent = "";
    const max = Math.max(...batch.gradient.flat().map(Math.abs), 1e-12);
    const cell = (value, similarity) => {
      const node = element("td", { title: `similarity ${similarity.toFixed(3)}` }, value === 0 ? "0" : value.toFixed(3));
      if (value) node.style.background = `color-mix(in srgb, var(--series-${value < 0 ? 0 : 1}) ${Math.round((55 * Math.abs(value)) / max)}%, transparent)`;
      return node;
    };
    if ($("batch").dataset.index === batch.index) { // same images: replace the values only
      $("batch").querySelectorAll("tbody tr").forEach((row, i) => row.querySelectorAll("td").forEach((node, j) => node.replaceWith(cell(batch.gradient[i][j], batch.similarity[i][j]))));
      return;
    }
    $("batch").dataset.index = batch.index;
    const head = element("tr", {}, element("th", { scope: "col" }, batch.members[0].text === null ? "image" : "passage"), ...batch.members.map((member) => element("th", { scope: "col" }, member.caption)));
    const rows = batch.members.map((member, i) => element("tr", {},
      element("th", { scope: "row" }, member.text ?? element("img", { src: imageUrl(member, batch.index), alt: member.caption })),
      ...batch.gradient[i].map((value, j) => cell(value, batch.similarity[i][j]))));
    $("batch").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  } catch (error) {
    $("batch-status").textContent = error.message;
  }
}

async function copyPython() {
  try {
    await navigator.clipboard.writeText($("python").textContent);
    $("copy-status").textContent = "copied";
  } catch { // no permission, or no HTTPS: select the text for the user
    getSelection().selectAllChildren($("python"));
    $("copy-status").textContent = "selected: press Ctrl-C";
  }
  setTimeout(() => ($("copy-status").textContent = ""), 4000);
}
