// Search by words or by a picture.

import { askLatest, element } from "./ask.js";
import { hit } from "./results.js";

const $ = (id) => document.getElementById(id);
let begun = false, wanted = null /* the index that the address names */, picture = null, address = null;

function begin() {
  begun = true;
  $("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    go({ q: $("q").value.trim() });
  });
  $("index").addEventListener("change", () => {
    wanted = $("index").value;
    picture ? byPicture(picture) : go({ q: $("q").value.trim() });
  });
  $("file").addEventListener("change", () => $("file").files[0] && byPicture($("file").files[0]));
  const tab = $("tab-search"), over = (event, on) => {
    event.preventDefault();
    document.body.classList.toggle("dropping", on);
  };
  addEventListener("dragover", (event) => over(event, !tab.hidden));
  addEventListener("dragleave", (event) => !event.relatedTarget && over(event, false));
  addEventListener("drop", (event) => {
    over(event, false);
    if (!tab.hidden && event.dataTransfer.files[0]) byPicture(event.dataTransfer.files[0]);
  });
}

function go({ q }) {
  if (!q) return;
  const next = `#search?${new URLSearchParams({ q, ...($("index").value && { index: $("index").value }) })}`;
  if (location.hash === next) byWords(q);
  else location.hash = next;
}

export function show(given) {
  const again = begun;
  if (!begun) begin();
  const q = given.get("q");
  wanted = given.get("index");
  if (wanted && [...$("index").options].some((each) => each.value === wanted)) $("index").value = wanted;
  if (q) {
    $("q").value = q;
    byWords(q);
  } else if (again) { // back at the beginning; what was typed before this code came stays
    $("q").value = $("found").textContent = "";
    $("results").replaceChildren();
    $("by").hidden = true;
  }
}

/** Called when indexes have been opened. */
export function served(about) {
  const names = about.indexes.filter((each) => each.state === "ready").map((each) => each.name);
  if (names.join() !== [...$("index").options].map((each) => each.value).join()) {
    const before = $("index").value || wanted;
    $("index").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (names.includes(before)) $("index").value = before;
  }
  $("which").hidden = names.length < 2;
  if (waiting && names.length) waiting();
}

const chosen = () => wanted || $("index").value || undefined;
let waiting = null; // asked before any model was open

async function byWords(q) {
  picture = null;
  $("by").hidden = true;
  await find(() => askLatest("search", "/api/search", { q, index: chosen() }), `"${q}"`, q);
}

async function byPicture(file) {
  picture = file;
  if (address) URL.revokeObjectURL(address);
  address = URL.createObjectURL(file);
  $("by").replaceChildren(element("img", { src: address, alt: `Searched by ${file.name}` }));
  $("by").hidden = false;
  const send = () => askLatest("search", "/api/search/picture", { index: chosen() }, { method: "POST", body: file });
  await find(send, file.name, null);
}

async function find(send, what, query) {
  waiting = null;
  $("found").textContent = "Searching ...";
  const since = performance.now();
  try {
    const answer = await send();
    if (!answer) return;
    const took = Math.round(performance.now() - since);
    $("found").textContent = `${answer.results.length} pictures nearest to ${what}, ${answer.index}, ${took} ms`;
    $("results").replaceChildren(...answer.results.map((each) => hit(each, answer.index, query)));
  } catch (error) {
    $("results").replaceChildren();
    $("found").textContent = error.status === 503 ? `${error.message} ...` : error.message;
    if (error.status === 503) waiting = () => find(send, what, query);
  }
}
