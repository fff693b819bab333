import { axes, chart, extent, hint, linear, logarithmic, s, text } from "./svg.js";

/** Marks and colours by group; Okabe and Ito's, which the colour-blind can tell apart. */
export const GROUPS = 8;

/**
 * @typedef {object} Point
 * @property {number} x
 * @property {number} y
 * @property {string} words said while the pointer rests on it
 * @property {number} [group] its colour and shape, from 0
 * @property {boolean} [hollow]
 * @property {string} [tag] written beside it
 * @property {any} [data] what `choose` is called with
 */

/**
 * Points in a plane, and lines through them.
 * @param {object} options
 * @param {string} options.label what a screen reader says
 * @param {Point[]} options.points those without finite values are left out
 * @param {string} options.xLabel
 * @param {string} options.yLabel
 * @param {number} [options.height]
 * @param {Point[][]} [options.lines] drawn from point to point, as steps where `stepped`
 * @param {boolean} [options.stepped]
 * @param {number} [options.xLog] the base of a logarithmic axis
 * @param {boolean} [options.diagonal] where both axes say the same
 * @param {(data: any) => void} [options.choose]
 * @param {(data: any) => boolean} [options.isSelected]
 * @returns {HTMLElement} `mark()` marks the selected points anew
 */
export function pointChart({ label, points, xLabel, yLabel, height = 300, lines = [], stepped = false, xLog, diagonal = false, choose, isSelected = () => false }) {
  const drawn = points.filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y) && (!xLog || p.x > 0));
  const all = [...drawn, ...lines.flat()];
  let rings = null;
  let place = null;
  const mark = () => rings?.replaceChildren(...drawn.filter((p) => isSelected(p.data)).map((p) => ring(place(p))));
  const host = chart(label, height, (width) => {
    const area = { left: 56, right: width - 18, top: 24, bottom: height - 40 };
    const { x, y } = scales(all, area, width, { xLog, diagonal });
    const parts = axes(area, x, y, { xLabel, yLabel });
    if (diagonal) parts.push(s("line", { class: "diagonal", x1: x.at(x.from), y1: y.at(x.from), x2: x.at(x.to), y2: y.at(x.to) }));
    lines.forEach((line, k) => parts.push(s("path", { class: `series g${k % GROUPS}`, d: route(line, x, y, stepped) })));
    place = (p) => [x.at(p.x), y.at(p.y)];
    rings = s("g");
    mark();
    for (const p of drawn) parts.push(shape(p, place(p), choose));
    parts.push(rings, ...tags(drawn, x, y, area));
    if (!drawn.length && !lines.length) parts.push(text(width / 2, height / 2, "nothing was measured", "middle"));
    return parts;
  });
  return Object.assign(host, { mark });
}

function ring([cx, cy]) {
  return s("circle", { class: "ring", cx, cy, r: 10 });
}

function scales(all, area, width, { xLog, diagonal }) {
  const across = Math.max(2, Math.round(width / 110));
  let [ex, ey] = [extent(all.map((p) => p.x), xLog ? 0 : 0.05), extent(all.map((p) => p.y), 0.08)];
  if (diagonal) ex = ey = extent([...ex, ...ey]);
  if (xLog) ex = [ex[0] / xLog ** 0.2, ex[1] * xLog ** 0.2];
  const x = xLog ? logarithmic(ex, [area.left, area.right], xLog) : linear(ex, [area.left, area.right], across);
  return { x: Object.assign(x, { from: ex[0], to: ex[1] }), y: linear(ey, [area.bottom, area.top], 5) };
}

function route(line, x, y, stepped) {
  return line.map((p, k) => (k === 0 ? `M${x.at(p.x)},${y.at(p.y)}` : stepped ? `H${x.at(p.x)}V${y.at(p.y)}` : `L${x.at(p.x)},${y.at(p.y)}`)).join("");
}

const SHAPES = [
  "M-5,0a5,5 0 1 0 10,0a5,5 0 1 0 -10,0Z",
  "M-4.6,-4.6H4.6V4.6H-4.6Z",
  "M0,-6L6,5H-6Z",
  "M0,-6.4L6.4,0L0,6.4L-6.4,0Z",
  "M0,6L6,-5H-6Z",
  "M-2,-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
];

/** The mark of a group, for legends. */
export function groupMark(group, hollow = false) {
  const path = s("path", { class: `point g${group % GROUPS}${hollow ? " hollow" : ""}`, d: SHAPES[group % SHAPES.length] });
  return s("svg", { class: "mark", viewBox: "-8 -8 16 16", width: 14, height: 14, "aria-hidden": "true" }, path);
}

function shape(p, [x, y], choose) {
  const group = p.group ?? 0;
  const place = `translate(${x.toFixed(1)},${y.toFixed(1)})`;
  const kind = `point g${group % GROUPS}${p.hollow ? " hollow" : ""}${choose ? " choosable" : ""}`;
  const onclick = choose ? () => choose(p.data) : undefined;
  return s("path", { class: kind, transform: place, d: SHAPES[group % SHAPES.length], onclick }, hint(p.words));
}

/** Where a tag may stand beside its point: sideways and down, in pixels; the first that is free. */
const PLACES = [
  [12, -6],
  [12, 16],
  [-12, -6],
  [-12, 16],
  [12, 28],
  [-12, 28],
  [12, -18],
  [-12, -18],
];
const TAG_HEIGHT = 12;
const LETTER = 6.6;

/** Tags that do not cover each other; one that has no place is left to the hint. */
function tags(points, x, y, area) {
  const taken = [];
  const free = (box) =>
    box.left >= area.left - 20 && box.right <= area.right + 14 && !taken.some((t) => t.left < box.right && box.left < t.right && Math.abs(t.at - box.at) < TAG_HEIGHT);
  return points.filter((p) => p.tag).flatMap((p) => {
    for (const [right, down] of PLACES) {
      const [from, at] = [x.at(p.x) + right, y.at(p.y) + down];
      const width = LETTER * p.tag.length;
      const box = right > 0 ? { left: from, right: from + width, at } : { left: from - width, right: from, at };
      if (!free(box)) continue;
      taken.push(box);
      return [text(from, at, p.tag, right > 0 ? "start" : "end", { class: "tag" })];
    }
    return [];
  });
}
