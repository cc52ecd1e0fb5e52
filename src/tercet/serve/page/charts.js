// SVG charts: line charts, and heat maps with contour lines.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG_NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const text = (x, y, content, anchor = "middle") => svg("text", { x, y, "text-anchor": anchor }, content);
export const formatNumber = (number) => (Math.abs(number) >= 100 ? number.toFixed(0) : Number(number.toPrecision(3)).toString());

function ticks(low, high, count = 4) {
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((candidate) => candidate >= rough) || 10 * size;
  const positions = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9; at += step) positions.push(Number(at.toPrecision(12)));
  return positions;
}

/** Line chart of [{ name, colour, points: [[x, y], ...] }]. `label` is the aria-label. */
export function lineChart(series, { x, y, label, low = null }) {
  const W = 460, H = 260, left = 46, right = 10, top = 22, bottom = 34;
  const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label });
  const all = series.flatMap((each) => each.points);
  if (!all.length) {
    chart.append(text(W / 2, H / 2, "no data yet"));
    return chart;
  }
  const range = (n) => [Math.min(...all.map((p) => p[n])), Math.max(...all.map((p) => p[n]))];
  let [x0, x1] = range(0), [y0, y1] = range(1);
  if (low !== null) y0 = Math.min(low, y0);
  if (x0 === x1) x1 = x0 + 1;
  if (y0 === y1) y1 = y0 + 1;
  const X = (v) => left + ((v - x0) / (x1 - x0)) * (W - left - right);
  const Y = (v) => H - bottom - ((v - y0) / (y1 - y0)) * (H - top - bottom);
  for (const at of ticks(y0, y1)) chart.append(svg("line", { class: "gridline", x1: left, x2: W - right, y1: Y(at), y2: Y(at) }), text(left - 6, Y(at) + 4, formatNumber(at), "end"));
  for (const at of ticks(x0, x1, 5)) chart.append(text(X(at), H - bottom + 15, formatNumber(at)));
  chart.append(svg("path", { class: "axis", d: `M${left} ${top}V${H - bottom}H${W - right}` }), text(W - right, H - 4, x, "end"), text(4, 13, y, "start"));
  for (const { name, colour, points, dashed } of series) {
    const d = points.map(([a, b], n) => `${n ? "L" : "M"}${X(a).toFixed(1)} ${Y(b).toFixed(1)}`).join("");
    chart.append(svg("path", { class: "curve", d, stroke: colour, ...(dashed && { "stroke-dasharray": "5 4" }) }, svg("title", {}, name)));
    if (points.length === 1) chart.append(svg("circle", { cx: X(points[0][0]), cy: Y(points[0][1]), r: 3, fill: colour }));
  }
  return chart;
}

/** Heat map of a square matrix with contour lines; row 0 is at the bottom. */
export function heatMap(values, axis, { label, rgb }) {
  const W = 270, left = 34, top = 8, side = 220, n = axis.length;
  const chart = svg("svg", { viewBox: `0 0 ${W} ${side + top + 36}`, role: "img", "aria-label": label });
  const flat = values.flat(), max = Math.max(...flat.map(Math.abs), 1e-12);
  chart.append(svg("image", { x: left, y: top, width: side, height: side, preserveAspectRatio: "none", href: shading(values, max, rgb) }));
  for (const level of contourLevels(flat, max)) chart.append(svg("path", { class: "contour", d: contour(values, level, (column) => left + (column / (n - 1)) * side, (row) => top + side - (row / (n - 1)) * side) }));
  chart.append(svg("path", { class: "axis", d: `M${left} ${top}V${top + side}H${left + side}` }));
  for (const at of [axis[0], (axis[0] + axis[n - 1]) / 2, axis[n - 1]]) {
    const share = (at - axis[0]) / (axis[n - 1] - axis[0]);
    chart.append(text(left + share * side, top + side + 14, formatNumber(at)), text(left - 5, top + side - share * side + 4, formatNumber(at), "end"));
  }
  chart.append(text(left + side / 2, top + side + 30, "positive similarity"));
  const yLabel = text(0, 0, "negative similarity");
  yLabel.setAttribute("transform", `translate(9 ${top + side / 2}) rotate(-90)`);
  chart.append(yLabel);
  return chart;
}

/** Data URL of an image with one pixel per value; the opacity is the share of `max`. */
function shading(values, max, [red, green, blue]) {
  const n = values.length, canvas = document.createElement("canvas");
  canvas.width = canvas.height = n;
  const context = canvas.getContext("2d"), pixels = context.createImageData(n, n);
  values.forEach((row, y) => row.forEach((value, x) =>
    pixels.data.set([red, green, blue, Math.round(215 * Math.min(1, Math.abs(value) / max))], 4 * ((n - 1 - y) * n + x))));
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

/** Shares of the maximum; the midpoint if there are only two values; none if all are equal. */
function contourLevels(flat, max) {
  const lowest = Math.min(...flat), highest = Math.max(...flat);
  if (highest - lowest <= 1e-6 * max) return [];
  if (new Set(flat).size === 2) return [(lowest + highest) / 2];
  return [0.1, 0.3, 0.5, 0.7, 0.9].map((share) => share * max);
}

/** Marching squares: path of the contour line at a level, cell by cell. */
function contour(values, level, X, Y) {
  let d = "";
  for (let row = 0; row + 1 < values.length; row++)
    for (let column = 0; column + 1 < values[row].length; column++) {
      const corners = [[column, row], [column + 1, row], [column + 1, row + 1], [column, row + 1]];
      const crossings = [];
      corners.forEach(([x, y], k) => {
        const [u, v] = corners[(k + 1) % 4], a = values[y][x] - level, b = values[v][u] - level;
        if (a < 0 !== b < 0) crossings.push([x + (u - x) * (a / (a - b)), y + (v - y) * (a / (a - b))]);
      });
      for (let k = 0; k + 1 < crossings.length; k += 2)
        d += `M${X(crossings[k][0]).toFixed(1)} ${Y(crossings[k][1]).toFixed(1)}L${X(crossings[k + 1][0]).toFixed(1)} ${Y(crossings[k + 1][1]).toFixed(1)}`;
    }
  return d;
}
