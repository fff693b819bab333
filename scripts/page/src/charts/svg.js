/**
 * Small charts in SVG: they take their colours from the style sheet, print sharply, and are drawn
 * again when their width changes.
 */

const SPACE = "http://www.w3.org/2000/svg";

/** An SVG element; text children are text. */
export function s(tag, properties = {}, ...children) {
  const element = document.createElementNS(SPACE, tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, String(value));
  }
  element.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/**
 * A chart that fills the width of its host.
 * @param {string} label what a screen reader says of it: the facts
 * @param {number} height in pixels
 * @param {(width: number, height: number) => Node[]} draw
 * @returns {HTMLElement} it holds the chart, and `redraw()`
 */
export function chart(label, height, draw) {
  const host = document.createElement("div");
  host.className = "chart";
  host.style.height = `${height}px`;
  let width = 0;
  host.redraw = () => {
    if (width < 40) return;
    const box = { viewBox: `0 0 ${width} ${height}`, width, height };
    host.replaceChildren(
      s("svg", { ...box, role: "img", "aria-label": label }, ...draw(width, height)),
    );
  };
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now === width) return;
    width = now;
    host.redraw();
  }).observe(host);
  return host;
}

/**
 * @typedef {object} Scale
 * @property {(value: number) => number} at its place in pixels
 * @property {number[]} ticks
 * @property {(value: number) => string} word of a tick
 */

/** Round steps for about `count` ticks between two numbers. */
function steps(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return { ticks, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

/** Values that are finite, widened where there is one only. */
export function extent(values, pad = 0) {
  let [low, high] = [Infinity, -Infinity];
  for (const v of values) {
    if (!Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (low > high) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  return [low - pad * (high - low), high + pad * (high - low)];
}

/** @returns {Scale} */
export function linear([low, high], [from, to], count = 5) {
  let found = steps(low, high, count);
  for (let more = count + 1; found.ticks.length < 2 && more < 3 * count; more++) found = steps(low, high, more);
  const { ticks, digits } = found;
  const large = Math.max(Math.abs(low), Math.abs(high));
  return {
    at: (v) => from + ((v - low) / (high - low)) * (to - from),
    ticks,
    word: (v) => minus(large >= 1e5 || large < 1e-3 ? short(v) : v.toFixed(digits)),
  };
}

/**
 * A scale that also has a place for what is infinite, an SQNR without any error: in a band of its
 * own at the end, with the word "exact".
 * @param {Scale} scale
 * @param {number} at the place, in pixels
 * @returns {Scale}
 */
export function withExact(scale, at) {
  const known = (v) => (v === Infinity ? at : scale.at(v));
  return { ...scale, at: known, ticks: [...scale.ticks, Infinity], word: (v) => (v === Infinity ? "exact" : scale.word(v)) };
}

/** For positive values. @returns {Scale} */
export function logarithmic([low, high], [from, to], base = 10) {
  const log = (v) => Math.log(v) / Math.log(base);
  const [a, b] = [log(low), Math.max(log(high), log(low) + 0.1)];
  const ticks = [];
  const apart = from > to ? 24 : 44;
  const skip = Math.max(1, Math.ceil((b - a) / (Math.abs(to - from) / apart)));
  for (let k = Math.ceil(a - 1e-9); k <= b + 1e-9; k += skip) ticks.push(base ** k);
  return {
    at: (v) => from + ((log(v) - a) / (b - a)) * (to - from),
    ticks: ticks.length > 1 ? ticks : [low, high],
    word: (v) => minus(short(v)),
  };
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return size && size < 1e-3 ? value.toExponential(0) : `${Number(value.toPrecision(3))}`;
}

const minus = (text) => text.replace("-", "−");

/** Axes with their lines and words. `area` is {left, top, right, bottom} in pixels. */
export function axes(area, x, y, { xLabel = "", yLabel = "" } = {}) {
  const { left, top, right, bottom } = area;
  const parts = [s("rect", { class: "frame", x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) })];
  for (const v of y?.ticks ?? []) {
    const at = y.at(v);
    parts.push(s("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
    parts.push(text(left - 6, at + 4, y.word(v), "end"));
  }
  for (const v of x?.ticks ?? []) {
    const at = x.at(v);
    parts.push(s("line", { class: "tick", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
    parts.push(text(at, bottom + 16, x.word(v), "middle"));
  }
  parts.push(s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  if (xLabel) parts.push(text((left + right) / 2, bottom + 32, xLabel, "middle"));
  if (yLabel) parts.push(text(left - 6, top - 8, yLabel, "start", { x: 2 }));
  return parts;
}

/** Words in a chart. */
export function text(x, y, words, anchor = "start", more = {}) {
  const element = s("text", { x, y, "text-anchor": anchor, ...more });
  element.textContent = words;
  return element;
}

/** What is said while the pointer rests on a mark. */
export function hint(words) {
  const element = s("title");
  element.textContent = words;
  return element;
}
