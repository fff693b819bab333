/** What the first layers give back when they run in FP32 together: the curve that the table's order is chosen by. */

import { pointChart } from "./charts/points.js";
import { h } from "./dom.js";
import { counted, decibel, number, numberIn, share } from "./format.js";
import { plainTable } from "./grid.js";
import "./style/charts.css";
import "./style/sections.css";

/** So many of the layers that a point adds are named. */
const NAMED = 2;

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  const note = h("span", { class: "muted" });
  const body = h("div", {});
  host.append(h("div", { class: "bar" }, h("h2", {}, "Kept in FP32 together"), note), body);
  let plot = null;
  const draw = () => {
    const { result } = data.runs[store.get().run];
    const points = result?.curve ? shownPoints(result.curve) : [];
    note.textContent = points.length ? `the first layers of the table, on ${samplesOf(result)}` : "";
    if (!points.length) {
      body.replaceChildren(h("p", { class: "lacking" }, "This run has no curve."));
      return;
    }
    plot = drawn(result, store);
    body.replaceChildren(h("div", { class: "two" }, h("div", {}, plot), table(result)));
  };
  draw();
  store.on(["run"], draw);
  store.on(["selected"], () => plot?.mark());
}

/** Whether SQNRs are told as what they gain: they are of fewer samples than those at the top of the page. */
function inGains({ curve, samples }) {
  return curve.figure === "sqnr_db" && curve.samples < samples && Number.isFinite(numberIn(curve, "planned"));
}

/** What is restored, for an axis, and the words of its values. */
function figureOf(result) {
  const { curve, metric } = result;
  if (inGains(result)) return { words: "gain in SQNR of the outputs, dB", word: decibel };
  if (curve.figure === "sqnr_db") return { words: "SQNR of the outputs, dB", word: decibel };
  const name = metric?.name ?? "metric";
  return { words: curve.figure === "loss" ? `per-sample loss of ${name}` : name, word: (v) => number(v) };
}

/** The points that give back more than all before, where they fit the figures of all samples. */
const shownPoints = (curve) => (curve.fits ? curve.points.filter((p) => p.rises) : []);

/** On which samples the curve was measured. */
const samplesOf = ({ curve, samples }) =>
  curve.samples < samples ? `${curve.samples} of the ${counted(samples, "sample")}` : counted(samples, "sample");

/** None in FP32, then the points of the curve, then all, where that is no exact SQNR. */
function pointsOf(result) {
  const { curve, layers } = result;
  const from = inGains(result) ? numberIn(curve, "planned") : 0;
  const all = layers.filter((layer) => layer.effect).length;
  const end = curve.figure === "sqnr_db" ? [] : [{ layers: all, value: numberIn(curve, "reference"), restored: 1 }];
  const points = shownPoints(curve).map((p) => ({ layers: p.layers, value: numberIn(p, "value") - from, restored: p.restored }));
  return [{ layers: 0, value: numberIn(curve, "planned") - from, restored: 0 }, ...points, ...end];
}

/** The layer that a point adds last, by its place in the table. */
const lastOf = (point) => (point.layers ? point.layers - 1 : null);

function drawn(result, store) {
  const { words, word } = figureOf(result);
  const found = pointsOf(result);
  const said = (p) => `${counted(p.layers, "layer")} in FP32: ${word(p.value)}, ${share(p.restored)} of what was lost given back`;
  const points = found.map((p) => ({ x: p.layers, y: p.value, words: said(p), data: lastOf(p) }));
  return pointChart({
    label: `${words} with the first layers in FP32. ${found.map(said).join("; ")}`,
    points,
    lines: [points.filter((p) => Number.isFinite(p.y))],
    xLabel: "layers in FP32",
    yLabel: words,
    height: 240,
    choose: (place) => place !== null && store.set({ selected: place }),
    isSelected: (place) => place !== null && place === store.get().selected,
  });
}

function table(result) {
  const { words, word } = figureOf(result);
  const found = pointsOf(result);
  const rows = found.map((p, k) => [p.layers, word(p.value), share(p.restored), added(result, found[k - 1]?.layers ?? 0, p.layers)]);
  return plainTable("The curve in figures", ["layers", words, "given back", "adds"], rows);
}

function added({ layers }, from, to) {
  const names = layers.slice(from, to).map((layer) => layer.name);
  if (!names.length) return "";
  const more = names.length > NAMED ? ` and ${names.length - NAMED} more` : "";
  return `${names.slice(0, NAMED).join(", ")}${more}`;
}
