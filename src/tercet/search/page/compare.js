// The same words under two or three models, with the rank of each picture under the first.

import { ask, askLatest, element } from "./ask.js";
import { hit } from "./results.js";

const $ = (id) => document.getElementById(id);
const MOST = 3;
let begun = false, names = [], wanted = null;

const chosen = () => [...$("compare-indexes").querySelectorAll("input:checked")].map((each) => each.value);

function begin() {
  begun = true;
  $("compare-form").addEventListener("submit", (event) => {
    event.preventDefault();
    go($("compare-q").value.trim());
  });
  $("differ").addEventListener("click", differ);
}

function go(q) {
  if (!q) return;
  const given = new URLSearchParams({ q });
  for (const each of chosen()) given.append("index", each);
  if (location.hash === `#compare?${given}`) compare(q);
  else location.hash = `#compare?${given}`;
}

export function show(given, about) {
  if (!begun) begin();
  wanted = given.getAll("index");
  if (about) served(about);
  const q = given.get("q");
  if (!q) return;
  $("compare-q").value = q;
  compare(q);
}

export function served(about) {
  const ready = about.indexes.filter((each) => each.state === "ready").map((each) => each.name);
  if (ready.join() !== names.join()) {
    names = ready;
    const boxes = names.map((name) => element("label", {},
      element("input", { type: "checkbox", value: name, onchange: limit }), name));
    $("compare-indexes").replaceChildren(element("legend", {}, "Models"), ...boxes);
  }
  const picked = wanted?.length ? wanted : chosen().length ? chosen() : names.slice(0, 2);
  for (const box of $("compare-indexes").querySelectorAll("input")) box.checked = picked.includes(box.value);
  $("compare-note").textContent = names.length < 2 ? "Two indexes of the same pictures are needed: tercet serve FIRST SECOND" : "";
  limit();
  if (waiting && names.length > 1) waiting();
}

function limit() {
  for (const box of $("compare-indexes").querySelectorAll("input")) box.disabled = !box.checked && chosen().length >= MOST;
}

let waiting = null;

async function compare(q) {
  waiting = null;
  const index = wanted?.length ? wanted : chosen();
  if (index.length < 2) {
    waiting = names.length < 2 ? () => compare(q) : null;
    if (names.length > 1) $("compare-note").textContent = "Choose two or three models.";
    return;
  }
  $("compare-note").textContent = "Searching ...";
  try {
    const answer = await askLatest("compare", "/api/compare", { q, index });
    if (!answer) return;
    $("compare-note").textContent = `"${q}": marks say where a picture stands under ${answer.indexes[0]}.`;
    $("columns").replaceChildren(...answer.columns.map((column, n) => element("section", {},
      element("h3", {}, answer.indexes[n]),
      element("ol", { "aria-label": answer.indexes[n] }, ...column.map((each) => hit(each, answer.indexes[n], q, n ? moved(each, answer.indexes[0]) : null))))));
  } catch (error) {
    $("compare-note").textContent = error.message;
    if (error.status === 503) waiting = () => compare(q);
  }
}

function moved(found, first) {
  const before = found.ranks[0];
  if (before === null) return element("span", { className: "up" }, ` not found under ${first}`);
  if (before === found.rank) return element("span", {}, " same");
  const up = before > found.rank;
  return element("span", { className: up ? "up" : "down" }, ` ${up ? "\u25b2" : "\u25bc"} ${before.toLocaleString("en")} under ${first}`);
}

async function differ() {
  const index = chosen();
  $("differ").disabled = true;
  $("differ-note").textContent = "Trying captions of the pictures ...";
  try {
    const found = await ask("/api/compare/differences", { index });
    $("differ-note").textContent = found.length ? "" : "No picture moves: the models agree on all that was tried.";
    const head = ["query", ...index.map((name) => `rank, ${name}`)];
    $("differences").replaceChildren(element("table", {},
      element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...found.map((each) => element("tr", {},
        element("th", { scope: "row" }, element("a", { href: link(each.query, index) }, each.query)),
        ...each.ranks.map((rank) => element("td", {}, rank === null ? "beyond" : rank.toLocaleString("en"))))))));
  } catch (error) {
    $("differ-note").textContent = error.message;
  } finally {
    $("differ").disabled = false;
  }
}

function link(q, index) {
  const given = new URLSearchParams({ q });
  for (const each of index) given.append("index", each);
  return `#compare?${given}`;
}
