// A picture that was found, and the dialog that tells more about it.

import { ask, element, pictureOf } from "./ask.js";

/** A button with the picture, its caption and its place. `marks` are further elements. */
export function hit(found, index, query, ...marks) {
  const what = found.captions[0] || found.name;
  const where = `${found.rank}. ${found.similarity.toFixed(3)}`;
  const picture = element("img", { src: pictureOf(found.number, index), alt: what, loading: "lazy" });
  return element("li", {}, element("button",
    { type: "button", className: "hit", title: what, onclick: () => open(found, index, query) },
    picture, element("span", { className: "what" }, what),
    element("span", { className: "where" }, where, ...marks)));
}

const dialog = () => document.getElementById("item");

export async function open(found, index, query) {
  document.getElementById("item-title").textContent = found.captions[0] || found.name;
  const content = document.getElementById("item-content");
  const what = found.captions[0] || found.name;
  const seen = element("div", { className: "seen" },
    element("img", { src: pictureOf(found.number, index, "large"), alt: what }));
  content.replaceChildren(seen);
  if (!dialog().open) dialog().showModal();
  const facts = element("dl", { className: "facts" });
  const fact = (name, value) => facts.append(element("dt", {}, name), element("dd", {}, value));
  if (found.rank) fact("rank", `${found.rank}, similarity ${found.similarity.toFixed(4)}${query ? ` to "${query}"` : ""}`);
  if (found.first_rank) fact("first look", `rank ${found.first_rank} by one vector; the order is that of a second look`);
  content.append(facts);
  const words = element("div");
  content.append(words);
  try {
    const item = await ask(`/api/items/${found.number}`, { index });
    if (query && item.attention) attention(words, seen, found, index, query);
    fact("file", `${item.name}, ${item.bytes.toLocaleString("en")} bytes`);
    for (const caption of item.captions) fact("caption", caption);
    const near = element("ol", { className: "grid" }, ...item.neighbours.map((each) => hit(each, index, null)));
    content.append(element("h3", {}, "Nearest pictures"), near);
  } catch (error) {
    content.append(element("p", { className: "failed" }, error.message));
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
