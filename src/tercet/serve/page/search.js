// Search tab: by text or by image.

import { element, fetchLatest } from "./api.js";
import { resultItem } from "./results.js";

const PLACEHOLDER = "two dogs in snow"; // as in index.html
const $ = (id) => document.getElementById(id);
let initialized = false, requestedIndex = null /* from the URL */, queryImage = null, queryImageUrl = null;
let retry = null; // search to repeat once an index has been loaded

function initialize() {
  initialized = true;
  $("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    navigate($("q").value.trim());
  });
  $("index").addEventListener("change", () => {
    requestedIndex = $("index").value;
    queryImage ? openImage(queryImage) : navigate($("q").value.trim());
  });
  $("file").addEventListener("change", () => $("file").files[0] && openImage($("file").files[0]));
  const tab = $("tab-search"), setDropping = (event, on) => {
    event.preventDefault();
    document.body.classList.toggle("dropping", on);
  };
  addEventListener("dragover", (event) => setDropping(event, !tab.hidden));
  addEventListener("dragleave", (event) => !event.relatedTarget && setDropping(event, false));
  addEventListener("drop", (event) => {
    setDropping(event, false);
    if (!tab.hidden && event.dataTransfer.files[0]) openImage(event.dataTransfer.files[0]);
  });
}

function navigate(q) {
  if (!q) return;
  const hash = `#search?${new URLSearchParams({ q, ...($("index").value && { index: $("index").value }) })}`;
  if (location.hash === hash) searchByText(q);
  else location.hash = hash;
}

/** Search by an image, with its name in the address. The image itself is not part of it. */
function openImage(file) {
  queryImage = file;
  requestedIndex = $("index").value || requestedIndex;
  const hash = `#search?${new URLSearchParams({ image: file.name, ...(requestedIndex && { index: requestedIndex }) })}`;
  if (location.hash === hash) searchByImage(file);
  else location.hash = hash;
}

export function show(params) {
  const shownBefore = initialized;
  if (!initialized) initialize();
  const q = params.get("q"), image = params.get("image");
  requestedIndex = params.get("index");
  if (requestedIndex && [...$("index").options].some((option) => option.value === requestedIndex)) $("index").value = requestedIndex;
  $("q").placeholder = image ? `images like ${image}` : PLACEHOLDER;
  if (q) {
    $("q").value = q;
    searchByText(q);
  } else if (image) {
    $("q").value = "";
    if (queryImage?.name === image) return searchByImage(queryImage);
    $("results").replaceChildren();
    $("query-image").hidden = true;
    $("search-status").textContent = `Choose ${image} again: an address holds the name of an image, not the image.`;
  } else if (shownBefore) { // reset; but text typed before this script was loaded stays
    $("q").value = $("search-status").textContent = "";
    $("results").replaceChildren();
    $("query-image").hidden = true;
  }
}

/** Called when the served indexes or their states are known. */
export function updateIndexes(about) {
  const names = about.indexes.filter((index) => index.state === "ready").map((index) => index.name);
  if (names.join() !== [...$("index").options].map((option) => option.value).join()) {
    const selected = $("index").value || requestedIndex;
    $("index").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (names.includes(selected)) $("index").value = selected;
  }
  $("index-choice").hidden = names.length < 2;
  const ready = about.indexes.filter((index) => index.state === "ready");
  $("choose-image").hidden = $("search-note").hidden = ready.length > 0 && ready.every((index) => index.images !== "images");
  if (retry && names.length) retry();
}

const selectedIndex = () => requestedIndex || $("index").value || undefined;

async function searchByText(q) {
  queryImage = null;
  $("file").value = ""; // so that the same image can be chosen again
  $("query-image").hidden = true;
  await search(() => fetchLatest("search", "/api/search", { q, index: selectedIndex() }), `"${q}"`, q);
}

async function searchByImage(file) {
  queryImage = file;
  if (queryImageUrl) URL.revokeObjectURL(queryImageUrl);
  queryImageUrl = URL.createObjectURL(file);
  $("query-image").replaceChildren(element("img", { src: queryImageUrl, alt: `Query image ${file.name}` }));
  $("query-image").hidden = false;
  const send = () => fetchLatest("search", "/api/search/image", { index: selectedIndex() }, { method: "POST", body: file });
  await search(send, file.name, null);
}

async function search(send, description, query) {
  retry = null;
  $("search-status").textContent = "Searching ...";
  const start = performance.now();
  try {
    const response = await send();
    if (!response) return;
    const milliseconds = Math.round(performance.now() - start);
    $("search-status").textContent = `${response.results.length} ${response.images} nearest to ${description} in ${response.index} (${milliseconds} ms)`;
    $("results").replaceChildren(...response.results.map((hit) => resultItem(hit, response.index, query)));
  } catch (error) {
    $("results").replaceChildren();
    $("search-status").textContent = error.status === 503 ? `${error.message} ...` : error.message;
    if (error.status === 503) retry = () => search(send, description, query);
  }
}
