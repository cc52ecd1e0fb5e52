// Compare tab: one query under two or three models, with the rank of each image under the first model.

import { element, fetchJson, fetchLatest } from "./api.js";
import { resultItem } from "./results.js";

const $ = (id) => document.getElementById(id);
const MAX_COMPARED_INDEXES = 3; // as on the server
let initialized = false, names = [], requestedIndexes = null /* from the URL */;
let isCaption = false; // whether the query is a caption of an image: then the right results are known
let retry = null; // comparison to repeat once the indexes have been loaded

const checkboxes = () => [...$("compare-indexes").querySelectorAll("input")];
const selectedIndexes = () => checkboxes().filter((box) => box.checked).map((box) => box.value);

function initialize() {
  initialized = true;
  $("compare-form").addEventListener("submit", (event) => {
    event.preventDefault();
    navigate($("compare-q").value.trim());
  });
  $("find-differences").addEventListener("click", findDifferences);
}

function compareHash(q, indexes, caption = false) {
  const params = new URLSearchParams({ q, ...(caption && { caption: 1 }) });
  for (const name of indexes) params.append("index", name);
  return `#compare?${params}`;
}

function navigate(q) {
  if (!q) return;
  const hash = compareHash(q, selectedIndexes());
  if (location.hash === hash) compare(q);
  else location.hash = hash;
}

export function show(params, about) {
  if (!initialized) initialize();
  requestedIndexes = params.getAll("index");
  isCaption = params.has("caption");
  if (about) updateIndexes(about);
  const q = params.get("q");
  if (!q) return;
  $("compare-q").value = q;
  compare(q);
}

/** Called when the served indexes or their states are known. */
export function updateIndexes(about) {
  const ready = about.indexes.filter((index) => index.state === "ready").map((index) => index.name);
  if (ready.join() !== names.join()) {
    names = ready;
    const boxes = names.map((name) => element("label", {},
      element("input", { type: "checkbox", value: name, onchange: limitSelection }), name));
    $("compare-indexes").replaceChildren(element("legend", {}, "Models"), ...boxes);
  }
  const selected = requestedIndexes?.length ? requestedIndexes : selectedIndexes().length ? selectedIndexes() : names.slice(0, 2);
  for (const box of checkboxes()) box.checked = selected.includes(box.value);
  $("compare-status").textContent = names.length < 2 ? "A comparison needs two indexes of the same images: tercet serve FIRST SECOND" : "";
  limitSelection();
  if (retry && names.length > 1) retry();
}

function limitSelection() {
  for (const box of checkboxes()) box.disabled = !box.checked && selectedIndexes().length >= MAX_COMPARED_INDEXES;
}

async function compare(q) {
  retry = null;
  const index = requestedIndexes?.length ? requestedIndexes : selectedIndexes();
  if (index.length < 2) {
    retry = names.length < 2 ? () => compare(q) : null;
    if (names.length > 1) $("compare-status").textContent = "Select two or three models.";
    return;
  }
  $("compare-status").textContent = "Searching ...";
  try {
    const response = await fetchLatest("compare", "/api/compare", { q, index });
    if (!response) return;
    const first = response.indexes[0];
    const isRight = (hit) => hit.captions.includes(q);
    const known = isCaption || response.columns.some((column) => column.some(isRight));
    const judged = known ? " The query is a caption: its image is marked as right, the others as another image." : "";
    const [shared, largest] = [response.shared_images, Math.max(...response.images)];
    const partly = shared < largest ? ` Only ${shared.toLocaleString("en")} images are in all of these indexes (${response.images.map((n) => n.toLocaleString("en")).join(", ")}): ranks count the others too.` : "";
    $("compare-status").textContent = `"${q}": arrows compare each rank with that under ${first}.${judged}${partly}`;
    $("columns").replaceChildren(...response.columns.map((column, n) => element("section", {},
      element("h3", {}, response.indexes[n]),
      element("ol", { "aria-label": response.indexes[n] }, ...column.map((hit) => resultItem(hit, response.indexes[n], q, known ? judgement(isRight(hit)) : null, n ? rankChange(hit, first) : null))))));
  } catch (error) {
    $("compare-status").textContent = error.message;
    $("columns").replaceChildren();
    if (error.status === 503) retry = () => compare(q);
  }
}

/** Whether this is the image of the query, which is a caption. Only this has a colour: a change of rank is neither. */
const judgement = (right) => element("span", { className: right ? "right" : "wrong" }, right ? " \u2713 right" : " \u2717 another image");

function rankChange(hit, first) {
  const firstRank = hit.ranks[0];
  if (firstRank === null) return element("span", {}, ` not found under ${first}`);
  if (firstRank === hit.rank) return element("span", {}, " same rank");
  return element("span", {}, ` ${firstRank > hit.rank ? "\u25b2" : "\u25bc"} ${firstRank.toLocaleString("en")} under ${first}`);
}

async function findDifferences() {
  const index = selectedIndexes();
  $("find-differences").disabled = true;
  $("differences-status").textContent = "Searching with captions ...";
  try {
    const differences = await fetchJson("/api/compare/differences", { index });
    $("differences-status").textContent = differences.length ? "" : "No differences: the models agree on every caption that was tried.";
    const head = ["query", ...index.map((name) => `rank, ${name}`)];
    $("differences").replaceChildren(element("table", {},
      element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...differences.map(({ query, ranks }) => element("tr", {},
        element("th", { scope: "row" }, element("a", { href: compareHash(query, index, true) }, query)),
        ...ranks.map((rank) => element("td", {}, rank === null ? "not re-ranked" : rank.toLocaleString("en"))))))));
  } catch (error) {
    $("differences-status").textContent = error.message;
  } finally {
    $("find-differences").disabled = false;
  }
}
