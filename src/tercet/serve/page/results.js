// A search result, and the dialog with its details.

import { element, fetchJson, imageUrl } from "./api.js";

/** An image is called by its first caption, a passage by its id. */
const titleOf = (hit) => (hit.text === null && hit.captions[0]) || hit.name;

/** List item: a button with the image or the text of a passage, its caption, rank and similarity. `marks` are further elements. */
export function resultItem(hit, index, query, ...marks) {
  const caption = titleOf(hit);
  const shown = hit.text === null
    ? [element("img", { src: imageUrl(hit, index), alt: "", loading: "lazy" }), // the caption is next to it
      element("span", { className: "hit-caption" }, caption)]
    : [element("span", { className: "hit-text" }, hit.text), element("span", { className: "hit-caption" }, caption)];
  return element("li", {}, element("button",
    { type: "button", className: "hit", onclick: () => openDetails(hit, index, query) },
    ...shown,
    element("span", { className: "hit-rank" }, `${hit.rank}. ${hit.similarity.toFixed(3)}`, ...marks)));
}

const dialog = () => document.getElementById("item");
let latestOpened = 0; // responses for a dialog that was replaced meanwhile are dropped

async function openDetails(hit, index, query) {
  const opened = ++latestOpened;
  const caption = titleOf(hit);
  document.getElementById("item-title").textContent = caption;
  const content = document.getElementById("item-content");
  const imageView = element("div", { className: hit.text === null ? "image-view" : "" }, hit.text === null
    ? element("img", { src: imageUrl(hit, index, "large"), alt: caption }) : element("p", { className: "hit-text" }, hit.text));
  const facts = element("dl", { className: "facts" }), words = element("div");
  content.replaceChildren(imageView, facts, words);
  if (!dialog().open) dialog().showModal();
  document.getElementById("item-title").focus();
  dialog().scrollTop = 0;
  const addFact = (name, value) => facts.append(element("dt", {}, name), element("dd", {}, value));
  addFact("rank", `${hit.rank}, similarity ${hit.similarity.toFixed(4)}${query ? ` to "${query}"` : ""}`);
  if (hit.first_rank) addFact("first stage", `rank ${hit.first_rank} by one vector per image; re-ranked by the full model`);
  try {
    const item = await fetchJson(`/api/items/${hit.number}`, { index });
    if (opened !== latestOpened) return;
    addFact(hit.text === null ? "file" : "id", `${item.name}, ${item.bytes.toLocaleString("en")} bytes`);
    for (const text of item.captions) addFact(item.sides.caption, text);
    const neighbours = element("ol", { className: "grid" }, ...item.neighbours.map((neighbour) => resultItem(neighbour, index, null)));
    content.append(element("h3", {}, `Nearest ${item.sides.images}`), neighbours);
    if (query && item.attention) await showAttention(words, imageView, hit, index, query);
  } catch (error) {
    if (opened === latestOpened) content.append(element("p", { className: "failed" }, error.message));
  }
}

/** Query words as buttons; the attention of the selected word is drawn over the image. */
async function showAttention(container, imageView, hit, index, query) {
  const map = await fetchJson(`/api/items/${hit.number}/attention`, { q: query, index });
  if (!map.side) return;
  const canvas = element("canvas", { width: map.side, height: map.side });
  imageView.append(canvas);
  const buttons = map.words.map((word, row) => element("button",
    { type: "button", "aria-pressed": "false", onclick: () => select(row) }, word));
  container.append(element("p", { className: "note" }, "Attention of each word:"), element("div", { className: "words" }, ...buttons));
  const select = (row) => {
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", n === row));
    const weights = map.attention[row], max = Math.max(...weights, 1e-9), context = canvas.getContext("2d");
    const pixels = context.createImageData(map.side, map.side);
    weights.forEach((weight, cell) => pixels.data.set([255, 140, 0, Math.round(190 * (weight / max))], 4 * cell));
    context.putImageData(pixels, 0, 0);
  };
  select(Math.min(1, map.words.length - 1));
}
