import { axes, chart, extent, hint, linear, logarithmic, s, text, withExact } from "./svg.js";

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
 * @param {Point[]} options.points those without values are left out; an infinite one is an SQNR
 *   without any error, which is drawn beyond all others
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
  const drawn = points.filter((p) => isDrawn(p) && (!xLog || (p.x > 0 && p.x < Infinity)));
  const all = [...drawn, ...lines.flat()];
  let rings = null;
  let place = null;
  const mark = () => rings?.replaceChildren(...drawn.filter((p) => isSelected(p.data)).map((p) => ring(place(p))));
  const host = chart(label, height, (width) => {
    const area = { left: 56, right: width - 18, top: 24, bottom: height - 40 };
    const { x, y } = scales(all, area, { xLog, diagonal });
    const parts = axes(area, x, y, { xLabel, yLabel });
    if (diagonal) parts.push(s("line", { class: "diagonal", x1: x.at(x.from), y1: y.at(x.from), x2: x.at(x.to), y2: y.at(x.to) }));
    lines.forEach((line, k) => parts.push(s("path", { class: `series g${k % GROUPS}`, d: route(line, x, y, stepped) })));
    place = (p) => [x.at(p.x), y.at(p.y)];
    rings = s("g");
    mark();
    for (const p of drawn) parts.push(shape(p, place(p), choose));
    parts.push(rings, ...tags(drawn, place, area));
    if (!drawn.length && !lines.length) parts.push(text(width / 2, height / 2, "nothing was measured", "middle"));
    return parts;
  });
  return Object.assign(host, { mark });
}

/** Whether there is a place for a point: where both values are known. */
export function isDrawn({ x, y }) {
  return [x, y].every((v) => Number.isFinite(v) || v === Infinity);
}

function ring([cx, cy]) {
  return s("circle", { class: "ring", cx, cy, r: 10 });
}

/** The band of an axis for values that are infinite, in pixels. */
const BAND = 26;
const INSET = 8;

function scales(all, area, { xLog, diagonal }) {
  const exact = { x: !xLog && all.some((p) => p.x === Infinity), y: all.some((p) => p.y === Infinity) };
  // A mark at the end of the data does not reach over the axis.
  const [left, bottom] = [area.left + INSET, area.bottom - INSET];
  const right = area.right - (exact.x ? BAND : INSET);
  const top = exact.y ? area.top + BAND : area.top;
  const across = Math.max(2, Math.round((right - left) / 110));
  let [ex, ey] = [extent(all.map((p) => p.x), xLog ? 0 : 0.05), extent(all.map((p) => p.y), 0.08)];
  if (diagonal) ex = ey = extent([...ex, ...ey]);
  if (xLog) ex = [ex[0] / xLog ** 0.2, ex[1] * xLog ** 0.2];
  const x = xLog ? logarithmic(ex, [left, right], xLog) : linear(ex, [left, right], across);
  const y = linear(ey, [bottom, top], 5);
  return {
    x: Object.assign(exact.x ? withExact(x, area.right - BAND / 3) : x, { from: ex[0], to: ex[1] }),
    y: exact.y ? withExact(y, area.top + BAND / 3) : y,
  };
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

function shape(p, place, choose) {
  const onclick = choose ? () => choose(p.data) : undefined;
  return pointMark(p.group ?? 0, place, { hollow: p.hollow, kind: choose ? "choosable" : "", onclick }, hint(p.words));
}

/** The mark of a group at a place of a chart. */
export function pointMark(group, [x, y], { hollow = false, scale = 1, kind = "", ...more } = {}, ...children) {
  const transform = `translate(${x.toFixed(1)},${y.toFixed(1)})${scale === 1 ? "" : ` scale(${scale})`}`;
  const names = ["point", `g${group % GROUPS}`, hollow ? "hollow" : "", kind].filter(Boolean).join(" ");
  return s("path", { class: names, transform, d: SHAPES[group % SHAPES.length], ...more }, ...children);
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

/** Tags that cover neither each other nor a point, but where only that leaves them a place; one that has none is left to the hint. */
function tags(points, place, area) {
  const taken = [];
  const marks = points.map(place);
  const bare = (box) => !marks.some(([x, y]) => x + 6 > box.left && x - 6 < box.right && y + 6 > box.at - TAG_HEIGHT + 2 && y - 6 < box.at + 2);
  const free = (box) =>
    box.left >= area.left - 20 && box.right <= area.right + 14 && !taken.some((t) => t.left < box.right && box.left < t.right && Math.abs(t.at - box.at) < TAG_HEIGHT);
  return points.filter((p) => p.tag).flatMap((p) => {
    const [x, y] = place(p);
    const width = LETTER * p.tag.length;
    const boxes = PLACES.map(([right, down]) => {
      const [from, at] = [x + right, y + down];
      return { from, at, right: right > 0 ? from + width : from, left: right > 0 ? from : from - width, anchor: right > 0 ? "start" : "end" };
    }).filter(free);
    const box = boxes.find(bare) ?? boxes[0];
    if (!box) return [];
    taken.push(box);
    return [text(box.from, box.at, p.tag, box.anchor, { class: "tag" })];
  });
}
