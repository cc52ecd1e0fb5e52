// Tabs by the address: #search?q=two+dogs. The code of a tab is loaded when it is first shown.

import { ask } from "./ask.js";

const TABS = ["search", "compare", "runs", "playground"];
const loaded = {};
let about = null;

function where() {
  const [name, given] = location.hash.slice(1).split("?");
  return { tab: TABS.includes(name) ? name : "search", given: new URLSearchParams(given || "") };
}

async function show() {
  const { tab, given } = where();
  for (const each of TABS) {
    document.getElementById(`tab-${each}`).hidden = each !== tab;
    const link = document.querySelector(`nav a[data-tab=${each}]`);
    each === tab ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  if (location.hash) document.querySelector(`nav a[data-tab=${tab}]`).href = location.hash; // where one comes back to
  document.title = `${tab[0].toUpperCase()}${tab.slice(1)} - Tercet`;
  try {
    loaded[tab] ??= await import(`./${tab}.js`);
    for (const each of TABS) if (each !== tab) loaded[each]?.leave?.();
    if (where().tab === tab) await loaded[tab].show(given, about);
  } catch (error) {
    trouble(`This tab could not be loaded: ${error.message}`);
  }
}

/** A line on top of the page; nothing takes it away. */
export function trouble(text) {
  const line = document.getElementById("trouble");
  line.textContent = text;
  line.hidden = !text;
}

/** What is served; asked again until every index is open. */
async function look() {
  try {
    about = await ask("/api/about");
  } catch (error) {
    document.getElementById("state").textContent = `The server does not answer: ${error.message}`;
    setTimeout(look, 3000);
    return;
  }
  const opening = about.indexes.filter((each) => each.state === "opening");
  const failed = about.indexes.filter((each) => each.state === "failed");
  const ready = about.indexes.filter((each) => each.state === "ready");
  const parts = ready.map((each) => `${each.name}: ${each.items.toLocaleString("en")} pictures, ${each.system}`);
  if (opening.length) parts.push(`opening ${opening.map((each) => each.name).join(", ")}`);
  document.getElementById("state").textContent = parts.join("; ") || "no index is served";
  trouble(failed.map((each) => `${each.name}: ${each.error}`).join("; "));
  for (const tab of Object.values(loaded)) tab.served?.(about);
  if (opening.length) setTimeout(look, 700);
}

const typed = new URLSearchParams(location.search).get("q"); // sent before this code was there
if (typed && !location.hash) history.replaceState(null, "", `/#search?${new URLSearchParams({ q: typed })}`);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the tabs
  document.getElementById("main").focus();
});
addEventListener("hashchange", show);
await Promise.all([look(), show()]);
for (const tab of Object.values(loaded)) tab.served?.(about);
