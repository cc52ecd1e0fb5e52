// A picture that was found, and the dialog that tells more about it.

import { ask, element, pictureOf } from "./ask.js";

/** A button with the picture, its caption and its place. `marks` are further elements. */
export function hit(found, index, query, ...marks) {
  const what = found.captions[0] || found.name;
  const where = `${found.rank}. ${found.similarity.toFixed(3)}`;
  const picture = element("img", { src: pictureOf(found, index), alt: "", loading: "lazy" }); // its words stand below
  return element("li", {}, element("button",
    { type: "button", className: "hit", onclick: () => open(found, index, query) },
    picture, element("span", { className: "what" }, what),
    element("span", { className: "where" }, where, ...marks)));
}

const dialog = () => document.getElementById("item");
let opened = 0; // of several opened one after the other, only the last is written to

export async function open(found, index, query) {
  const mine = ++opened;
  const what = found.captions[0] || found.name;
  document.getElementById("item-title").textContent = what;
  const content = document.getElementById("item-content");
  const seen = element("div", { className: "seen" },
    element("img", { src: pictureOf(found, index, "large"), alt: what }));
  const facts = element("dl", { className: "facts" }), words = element("div");
  content.replaceChildren(seen, facts, words);
  if (!dialog().open) dialog().showModal();
  document.getElementById("item-title").focus();
  dialog().scrollTop = 0;
  const fact = (name, value) => facts.append(element("dt", {}, name), element("dd", {}, value));
  fact("rank", `${found.rank}, similarity ${found.similarity.toFixed(4)}${query ? ` to "${query}"` : ""}`);
  if (found.first_rank) fact("first look", `rank ${found.first_rank} by one vector; the order is that of a second look`);
  try {
    const item = await ask(`/api/items/${found.number}`, { index });
    if (mine !== opened) return;
    fact("file", `${item.name}, ${item.bytes.toLocaleString("en")} bytes`);
    for (const caption of item.captions) fact("caption", caption);
    const near = element("ol", { className: "grid" }, ...item.neighbours.map((each) => hit(each, index, null)));
    content.append(element("h3", {}, "Nearest pictures"), near);
    if (query && item.attention) await attention(words, seen, found, index, query);
  } catch (error) {
    if (mine === opened) content.append(element("p", { className: "failed" }, error.message));
  }
}

/** The words as buttons; the regions that the chosen one looks at, over the picture. */
async function attention(place, seen, found, index, query) {
  const map = await ask(`/api/items/${found.number}/attention`, { q: query, index });
  if (!map.side) return;
  const canvas = element("canvas", { width: map.side, height: map.side });
  seen.append(canvas);
  const buttons = map.words.map((word, row) => element("button",
    { type: "button", "aria-pressed": "false", onclick: () => choose(row) }, word));
  place.append(element("p", { className: "note" }, "Where each word looks:"), element("div", { className: "words" }, ...buttons));
  const choose = (row) => {
    buttons.forEach((each, n) => each.setAttribute("aria-pressed", n === row));
    const weights = map.attention[row], top = Math.max(...weights, 1e-9), pen = canvas.getContext("2d");
    const pixels = pen.createImageData(map.side, map.side);
    weights.forEach((weight, cell) => pixels.data.set([255, 140, 0, Math.round(190 * (weight / top))], 4 * cell));
    pen.putImageData(pixels, 0, 0);
  };
  choose(Math.min(1, map.words.length - 1));
}
