// The diagram of any objective. Numbers come from the server, so that the page and Python cannot disagree.

import { ask, element, oneAtATime, pictureOf } from "./ask.js";
import { lines, plane, short } from "./draw.js";

const $ = (id) => document.getElementById(id);
const GOAL = "GOAL, T times P";
const BLUE = [0, 114, 178], ORANGE = [213, 94, 0], GREEN = [0, 158, 115];
let catalogue = null, index = null, named = {}; // what differs from the defaults
let shown = "", warning = "";

export async function show(given, about) {
  if (about) served(about);
  if (!catalogue) {
    catalogue = await ask("/api/objectives");
    const plain = catalogue.objectives.map((each) => each.name).filter((name) => !name.includes("/"));
    $("objective").replaceChildren(...[GOAL, ...plain].map((name) => element("option", { value: name }, name)));
    radios("triplet-weights", "T, the triplet weight", catalogue.triplet_weights);
    radios("pair-weights", "P, the pair weight", catalogue.pair_weights);
    $("objective").addEventListener("change", () => change({}));
    $("controls").addEventListener("submit", (event) => event.preventDefault());
    $("copy").addEventListener("click", copy);
    $("defaults").addEventListener("click", () => change({}));
  }
  const name = given.get("objective") || "cir/sig-ms";
  const known = catalogue.objectives.find((each) => each.name === name);
  if (!known) {
    $("playground-note").textContent = `There is no objective ${name}`;
    return;
  }
  choose(name);
  named = {};
  for (const control of known.controls) if (given.has(control.name)) named[control.name] = given.get(control.name);
  const strange = [...given.keys()].filter((key) => key !== "objective" && !known.controls.some((each) => each.name === key));
  warning = strange.length ? `${name} has no setting ${strange.join(", ")}` : "";
  sliders(known);
  await draw();
}

export function served(about) {
  index = about.indexes.find((each) => each.state === "ready" && each.captions)?.name || null;
  if (catalogue && !$("tab-playground").hidden && shown) draw();
}

function radios(id, legend, names) {
  const made = names.map((name) => element("label", {}, element("input", { type: "radio", name: id, value: name, onchange: () => change(named) }), name));
  $(id).replaceChildren(element("legend", {}, legend), ...made);
}

const picked = (id) => $(id).querySelector("input:checked")?.value;
const current = () => ($("objective").value === GOAL ? `${picked("triplet-weights") || "cir"}/${picked("pair-weights") || "sig-ms"}` : $("objective").value);

function choose(name) {
  const [T, P] = name.split("/");
  $("objective").value = P ? GOAL : name;
  for (const [id, value] of [["triplet-weights", T], ["pair-weights", P]]) {
    $(id).hidden = !P;
    for (const each of $(id).querySelectorAll("input")) each.checked = each.value === value;
  }
}

/** Another objective or other settings: the address says so, and a link to it shows the same. */
function change(settings) {
  const name = current(), known = catalogue.objectives.find((each) => each.name === name);
  const kept = Object.fromEntries(Object.entries(settings).filter(([key]) => known.controls.some((each) => each.name === key)));
  location.hash = `#playground?${new URLSearchParams({ objective: name, ...kept })}`;
}

function sliders(known) {
  const made = known.controls.map((control) => {
    const id = `set-${control.name}`, value = named[control.name] ?? control.default;
    const set = (next) => { named[control.name] = String(next); remember(); draw(); };
    if (control.choices || typeof control.default === "boolean") {
      const choices = control.choices || ["false", "true"];
      const select = element("select", { id, onchange: () => set(select.value) }, ...choices.map((each) => element("option", { value: each }, each)));
      select.value = String(value);
      return element("div", { className: "slider" }, element("label", { htmlFor: id }, control.name), select);
    }
    const out = element("output", { htmlFor: id });
    // A link may go beyond what one would drag to.
    const reach = [control.low, control.high, ...(Number.isFinite(Number(value)) && value !== null ? [Number(value)] : [])];
    const input = element("input", { id, type: "range", min: Math.min(...reach), max: Math.max(...reach), step: control.step });
    input.value = value ?? control.low;
    out.textContent = value === null || value === "null" ? "none" : Number(value).toString();
    input.addEventListener("input", () => { out.textContent = Number(input.value).toString(); set(input.value); });
    return element("div", { className: "slider" }, element("label", { htmlFor: id }, control.name), input, out);
  });
  $("sliders").replaceChildren(...made);
}

/** In the address, without a step back for every position of a slider. */
function remember() {
  history.replaceState(null, "", `#playground?${new URLSearchParams({ objective: current(), ...named })}`);
}

const draw = oneAtATime(async () => {
  const given = { objective: current(), ...named };
  shown = JSON.stringify(given);
  try {
    const found = await ask("/api/diagram", given);
    $("playground-note").textContent = warning;
    $("python").textContent = found.python;
    $("loss").textContent = found.has_value ? "There is a loss with this gradient." : "No loss has this gradient: training takes it as it is.";
    for (const [name, value] of Object.entries(found.settings)) follow(name, value);
    panels(found);
  } catch (error) {
    $("playground-note").textContent = error.message;
    return;
  }
  await gradient(given);
});

/** What was not named follows the others: `reading` sets margin, offset and empty. */
function follow(name, value) {
  const input = $(`set-${name}`);
  if (!input || name in named) return;
  if (value !== null) input.value = String(value);
  const out = input.parentElement.querySelector("output");
  if (out) out.textContent = value === null ? "none" : String(value);
}

function panels(found) {
  const made = [["Pull: |dL/dS_p|", found.pull, BLUE], ["Push: |dL/dS_n|", found.push, ORANGE]];
  if (found.triplet_weight) made.push(["T, the triplet weight", found.triplet_weight, GREEN]);
  const blocks = made.map(([title, values, shades]) => element("div", {},
    element("h3", {}, `${title}, up to ${short(Math.max(...values.flat()))}`), plane(values, found.axis, { label: `${title} over the plane`, shades })));
  if (found.positive_weight) {
    const curve = (name, values, colour) => ({ name, colour, points: values.map((value, n) => [found.axis[n], value]) });
    blocks.push(element("div", {}, element("h3", {}, "P: ", element("span", { className: "pull" }, "P+ of the positive"), ", ", element("span", { className: "push" }, "P- of the negative")),
      lines([curve("P+", found.positive_weight, "var(--series-0)"), curve("P-", found.negative_weight, "var(--series-1)")], { x: "similarity", y: "weight", label: "Pair weights over similarity", low: 0 })));
  }
  $("planes").replaceChildren(...blocks);
}

async function gradient(given) {
  if (!index) {
    $("batch-note").textContent = "Needs an index with captions: tercet index MODEL --images DATA";
    return;
  }
  try {
    const found = await ask("/api/gradient", { ...given, index });
    $("batch-note").textContent = "";
    const most = Math.max(...found.gradient.flat().map(Math.abs), 1e-12);
    const cell = (value, similarity) => {
      const made = element("td", { title: `similarity ${similarity.toFixed(3)}` }, value === 0 ? "0" : value.toFixed(3));
      if (value) made.style.background = `color-mix(in srgb, var(--series-${value < 0 ? 0 : 1}) ${Math.round((55 * Math.abs(value)) / most)}%, transparent)`;
      return made;
    };
    if ($("batch").dataset.index === found.index) { // pictures stay, numbers change
      $("batch").querySelectorAll("tbody tr").forEach((row, i) => row.querySelectorAll("td").forEach((each, j) => each.replaceWith(cell(found.gradient[i][j], found.similarity[i][j]))));
      return;
    }
    $("batch").dataset.index = found.index;
    const head = element("tr", {}, element("th", { scope: "col" }, "picture"), ...found.members.map((each) => element("th", { scope: "col" }, each.caption)));
    const rows = found.members.map((each, i) => element("tr", {},
      element("th", { scope: "row" }, element("img", { src: pictureOf(each, found.index), alt: each.caption })),
      ...found.gradient[i].map((value, j) => cell(value, found.similarity[i][j]))));
    $("batch").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  } catch (error) {
    $("batch-note").textContent = error.message;
  }
}

async function copy() {
  const line = $("python").textContent;
  try {
    await navigator.clipboard.writeText(line);
    $("copied").textContent = "copied";
  } catch { // no permission, or not a safe address: select it for the person
    getSelection().selectAllChildren($("python"));
    $("copied").textContent = "selected: press Ctrl-C";
  }
  setTimeout(() => ($("copied").textContent = ""), 4000);
}
