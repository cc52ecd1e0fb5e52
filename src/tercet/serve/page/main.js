// Tabs, selected by the URL: #search?q=two+dogs. The script of a tab is loaded when the tab is first shown.

import { fetchJson } from "./api.js";

const TABS = ["search", "compare", "runs", "playground"];
const modules = {}; // tab -> its loaded module
let about = null; // answer of /api/about

function parseHash() {
  const [name, params] = location.hash.slice(1).split("?");
  return { tab: TABS.includes(name) ? name : "search", params: new URLSearchParams(params || "") };
}

async function showTab() {
  const { tab, params } = parseHash();
  for (const name of TABS) {
    document.getElementById(`tab-${name}`).hidden = name !== tab;
    const link = document.querySelector(`nav a[data-tab=${name}]`);
    name === tab ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  if (location.hash) document.querySelector(`nav a[data-tab=${tab}]`).href = location.hash; // returning to a tab restores it
  document.title = `${tab[0].toUpperCase()}${tab.slice(1)} - Tercet`;
  try {
    modules[tab] ??= await import(`./${tab}.js`);
    for (const name of TABS) if (name !== tab) modules[name]?.leave?.();
    if (parseHash().tab === tab) await modules[tab].show(params, about);
  } catch (error) {
    showError(`This tab could not be loaded: ${error.message}`);
  }
}

function showError(message) {
  const banner = document.getElementById("error-banner");
  banner.textContent = message;
  banner.hidden = !message;
}

/** Fetch what is served; repeat until every index is loaded. */
async function updateStatus() {
  try {
    about = await fetchJson("/api/about");
  } catch (error) {
    document.getElementById("server-status").textContent = `Server not reachable: ${error.message}`;
    setTimeout(updateStatus, 3000);
    return;
  }
  const inState = (state) => about.indexes.filter((index) => index.state === state);
  const loading = inState("opening").map((index) => index.name);
  const texts = inState("ready").map(({ name, items, system, images }) => `${name}: ${items.toLocaleString("en")} ${images}, ${system}`);
  if (loading.length) texts.push(`loading ${loading.join(", ")}`);
  document.getElementById("server-status").textContent = texts.join("; ") || "no index is served";
  showError(inState("failed").map((index) => `${index.name}: ${index.error}`).join("; "));
  for (const tab of Object.values(modules)) tab.updateIndexes?.(about);
  if (loading.length) setTimeout(updateStatus, 700);
}

const submitted = new URLSearchParams(location.search).get("q"); // by the form, before this script was loaded
if (submitted && !location.hash) history.replaceState(null, "", `/#search?${new URLSearchParams({ q: submitted })}`);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash selects the tab
  document.getElementById("main").focus();
});
addEventListener("hashchange", showTab);
await Promise.all([updateStatus(), showTab()]);
for (const tab of Object.values(modules)) tab.updateIndexes?.(about);
