import { h } from "../dom.js";
import { number, share } from "../format.js";
import { axes, chart, hint, linear, logarithmic, s, text } from "./svg.js";

const HEIGHT = 230;
/** The axis goes on to a bound of the scale that is no farther out, as a part of the values' width. */
const FARTHEST = 0.35;
/** Steps are drawn where they are at least so many pixels wide. */
const STEP_PIXELS = 5;

/**
 * Both histograms of a tensor, and what the candidate's scale does to it.
 * @param {object} histogram Histogram of qdebug/page/data.py
 * @param {object} state a place to keep whether counts are drawn on a linear scale
 * @returns {HTMLElement}
 */
export function histogramChart(histogram, state = {}) {
  const facts = factsOf(histogram);
  const label = `Histogram of the values, ${facts.map(([k, v]) => `${k} ${v}`).join(", ")}`;
  const plot = chart(label, HEIGHT, (width) => draw(histogram, width, state.linear));
  const scale = h("button", { type: "button", class: "small", "aria-pressed": String(!state.linear) }, "log counts");
  scale.addEventListener("click", () => {
    state.linear = !state.linear;
    scale.setAttribute("aria-pressed", String(!state.linear));
    plot.redraw();
  });
  return h("div", {}, h("div", { class: "legend" }, ...legend(histogram), scale), plot, factList(facts));
}

function legend({ reference, candidate, bounds }) {
  const entry = (kind, words) => h("span", { class: "key" }, h("i", { class: `swatch ${kind}` }), words);
  return [
    reference && entry("reference", "reference"),
    candidate && entry("candidate", "candidate"),
    bounds && entry("clip", "beyond amax: clipped"),
  ].filter(Boolean);
}

function factsOf({ low, high, amax, bounds, step, clipped }) {
  const facts = [["values", `${number(low)} to ${number(high)}`]];
  if (amax !== null) facts.push(["amax", number(amax)]);
  if (bounds) facts.push(["the scale holds", `${number(bounds[0])} to ${number(bounds[1])}`]);
  if (step !== null) facts.push(["step", number(step)]);
  if (clipped !== null) facts.push(["clipped", share(clipped)]);
  return facts;
}

/** Names and values in one line each, or side by side where there is room. */
export function factList(facts) {
  return h("dl", { class: "inline-facts" }, ...facts.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, v))));
}

/** The axis: the values, and the bounds of the scale where they are not far out. */
function span({ low, high, bounds }) {
  const width = high - low || Math.abs(high) || 1;
  const near = (bound) => low - bound < FARTHEST * width && bound - high < FARTHEST * width;
  const all = [low, high, ...(bounds ?? []).filter(near)];
  const [a, b] = [Math.min(...all), Math.max(...all)];
  return [a - 0.02 * width, b + 0.02 * width];
}

function draw(histogram, width, isLinear) {
  const { low, high, reference, candidate } = histogram;
  const area = { left: 46, right: width - 10, top: 20, bottom: HEIGHT - 40 };
  const bins = (reference ?? candidate).length;
  const most = Math.max(1, ...(reference ?? []), ...(candidate ?? []));
  const across = Math.max(3, Math.round(width / 90));
  const x = linear(span(histogram), [area.left, area.right], across);
  const y = isLinear
    ? linear([0, most], [area.bottom, area.top], 4)
    : logarithmic([0.5, most * 1.2], [area.bottom, area.top]);
  const edge = (k) => x.at(low + ((high - low) * k) / bins);
  const top = (count) => (count > 0 ? y.at(count) : area.bottom);
  const outline = (counts, closed) => {
    let path = `M${edge(0)},${area.bottom}`;
    counts.forEach((count, k) => (path += `V${top(count)}H${edge(k + 1)}`));
    return `${path}V${area.bottom}${closed ? "Z" : ""}`;
  };
  const parts = [hatching(), ...axes(area, x, y, { xLabel: "value", yLabel: "count" })];
  if (reference) parts.push(s("path", { class: "reference-area", d: outline(reference, true) }));
  parts.push(...steps(histogram, x, area));
  parts.push(...limits(histogram, x, area));
  if (candidate) parts.push(s("path", { class: "candidate-line", d: outline(candidate) }));
  for (let k = 0; k < bins; k++) {
    const words = [
      `${number(low + ((high - low) * k) / bins, 3)} to ${number(low + ((high - low) * (k + 1)) / bins, 3)}`,
      reference && `reference ${reference[k]}`,
      candidate && `candidate ${candidate[k]}`,
    ];
    const box = { x: edge(k), width: Math.max(0.5, edge(k + 1) - edge(k)), y: area.top, height: area.bottom - area.top };
    parts.push(s("rect", { ...box, class: "hit" }, hint(words.filter(Boolean).join("\n"))));
  }
  return parts;
}

/** Where each code lies, as far as one can see them apart. */
function steps({ bounds, step }, x, area) {
  if (!bounds || !(step > 0) || x.at(step) - x.at(0) < STEP_PIXELS) return [];
  let path = "";
  for (let k = Math.round(bounds[0] / step); k * step <= bounds[1] + step / 2; k++) {
    const at = x.at(k * step);
    if (at >= area.left && at <= area.right) path += `M${at},${area.bottom}v-5`;
  }
  return [s("path", { class: "codes", d: path })];
}

/** Lines at the bounds of the scale; what lies beyond is hatched. */
function limits({ low, high, bounds }, x, area) {
  if (!bounds) return [];
  const parts = [];
  const height = area.bottom - area.top;
  bounds.forEach((bound, k) => {
    const at = x.at(bound);
    const outer = k === 0 ? Math.max(area.left, x.at(low)) : Math.min(area.right, x.at(high));
    if (k === 0 ? outer < at : outer > at) {
      const [from, to] = [Math.min(outer, at), Math.max(outer, at)].map((v) => Math.min(area.right, Math.max(area.left, v)));
      parts.push(s("rect", { class: "clip-area", x: from, width: to - from, y: area.top, height }));
    }
    const anchor = k === 0 ? "start" : "end";
    if (at >= area.left - 1 && at <= area.right + 1) {
      parts.push(s("line", { class: "amax", x1: at, x2: at, y1: area.top - 4, y2: area.bottom }));
      parts.push(text(at, area.top - 8, number(bound, 3), at - area.left < 60 ? "start" : anchor === "end" ? "end" : "middle", { class: "amax-word" }));
    } else {
      const words = k === 0 ? `← ${number(bound, 3)}` : `${number(bound, 3)} →`;
      parts.push(text(k === 0 ? area.left + 4 : area.right, area.top - 8, words, anchor, { class: "amax-word" }));
    }
  });
  return parts;
}

function hatching() {
  const line = s("path", { d: "M0,6L6,0", class: "hatch-line" });
  const pattern = { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" };
  return s("defs", {}, s("pattern", pattern, line));
}
