// Small drawings as SVG: lines over an axis, and a plane with lines of equal weight.

const SPACE = "http://www.w3.org/2000/svg";

export function svg(name, given = {}, ...children) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const text = (x, y, content, anchor = "middle") => svg("text", { x, y, "text-anchor": anchor }, content);
export const short = (number) => (Math.abs(number) >= 100 ? number.toFixed(0) : Number(number.toPrecision(3)).toString());

function ticks(low, high, count = 4) {
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough) || 10 * size;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** Lines: [{ name, colour, points: [[x, y], ...] }]. `label` is read out. */
export function lines(series, { x, y, label, low = null }) {
  const W = 460, H = 260, left = 46, right = 10, top = 22, bottom = 34;
  const made = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  const all = series.flatMap((each) => each.points);
  if (!all.length) {
    made.append(text(W / 2, H / 2, "nothing yet"));
    return made;
  }
  const reach = (n) => [Math.min(...all.map((p) => p[n])), Math.max(...all.map((p) => p[n]))];
  let [x0, x1] = reach(0), [y0, y1] = reach(1);
  if (low !== null) y0 = Math.min(low, y0);
  if (x0 === x1) x1 = x0 + 1;
  if (y0 === y1) y1 = y0 + 1;
  const X = (v) => left + ((v - x0) / (x1 - x0)) * (W - left - right);
  const Y = (v) => H - bottom - ((v - y0) / (y1 - y0)) * (H - top - bottom);
  for (const at of ticks(y0, y1)) made.append(svg("line", { class: "gridline", x1: left, x2: W - right, y1: Y(at), y2: Y(at) }), text(left - 6, Y(at) + 4, short(at), "end"));
  for (const at of ticks(x0, x1, 5)) made.append(text(X(at), H - bottom + 15, short(at)));
  made.append(svg("path", { class: "axis", d: `M${left} ${top}V${H - bottom}H${W - right}` }), text(W - right, H - 4, x, "end"), text(4, 13, y, "start"));
  for (const each of series) {
    const d = each.points.map(([a, b], n) => `${n ? "L" : "M"}${X(a).toFixed(1)} ${Y(b).toFixed(1)}`).join("");
    made.append(svg("path", { class: "curve", d, stroke: each.colour, ...(each.dashed && { "stroke-dasharray": "5 4" }) }, svg("title", {}, each.name)));
    if (each.points.length === 1) made.append(svg("circle", { cx: X(each.points[0][0]), cy: Y(each.points[0][1]), r: 3, fill: each.colour }));
  }
  return made;
}

/** A plane of numbers, rows upwards, shaded by size, with lines that join equal ones. */
export function plane(values, axis, { label, shades }) {
  const W = 270, left = 34, top = 8, side = 220, n = axis.length;
  const made = svg("svg", { viewBox: `0 0 ${W} ${side + top + 36}`, role: "img", "aria-label": label });
  const flat = values.flat(), most = Math.max(...flat.map(Math.abs), 1e-12);
  made.append(svg("image", { x: left, y: top, width: side, height: side, preserveAspectRatio: "none", href: shaded(values, most, shades) }));
  for (const level of levels(flat, most)) made.append(svg("path", { class: "equal", d: equal(values, level, (column) => left + (column / (n - 1)) * side, (row) => top + side - (row / (n - 1)) * side) }));
  made.append(svg("path", { class: "axis", d: `M${left} ${top}V${top + side}H${left + side}` }));
  for (const at of [axis[0], (axis[0] + axis[n - 1]) / 2, axis[n - 1]]) {
    const share = (at - axis[0]) / (axis[n - 1] - axis[0]);
    made.append(text(left + share * side, top + side + 14, short(at)), text(left - 5, top + side - share * side + 4, short(at), "end"));
  }
  made.append(text(left + side / 2, top + side + 30, "positive similarity"));
  const up = text(0, 0, "negative similarity");
  up.setAttribute("transform", `translate(9 ${top + side / 2}) rotate(-90)`);
  made.append(up);
  return made;
}

function shaded(values, most, [red, green, blue]) {
  const n = values.length, canvas = document.createElement("canvas");
  canvas.width = canvas.height = n;
  const pen = canvas.getContext("2d"), pixels = pen.createImageData(n, n);
  values.forEach((row, y) => row.forEach((value, x) =>
    pixels.data.set([red, green, blue, Math.round(215 * Math.min(1, Math.abs(value) / most))], 4 * ((n - 1 - y) * n + x))));
  pen.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

/** Shares of the largest; the middle where there are two heights only; none where all are the same. */
function levels(flat, most) {
  const lowest = Math.min(...flat), highest = Math.max(...flat);
  if (highest - lowest <= 1e-6 * most) return [];
  if (new Set(flat).size === 2) return [(lowest + highest) / 2];
  return [0.1, 0.3, 0.5, 0.7, 0.9].map((share) => share * most);
}

/** Marching squares: where the surface crosses a level, cell by cell. */
function equal(values, level, X, Y) {
  let d = "";
  for (let row = 0; row + 1 < values.length; row++)
    for (let column = 0; column + 1 < values[row].length; column++) {
      const corners = [[column, row], [column + 1, row], [column + 1, row + 1], [column, row + 1]];
      const crossed = [];
      corners.forEach(([x, y], k) => {
        const [u, v] = corners[(k + 1) % 4], a = values[y][x] - level, b = values[v][u] - level;
        if (a < 0 !== b < 0) crossed.push([x + (u - x) * (a / (a - b)), y + (v - y) * (a / (a - b))]);
      });
      for (let k = 0; k + 1 < crossed.length; k += 2)
        d += `M${X(crossed[k][0]).toFixed(1)} ${Y(crossed[k][1]).toFixed(1)}L${X(crossed[k + 1][0]).toFixed(1)} ${Y(crossed[k + 1][1]).toFixed(1)}`;
    }
  return d;
}
