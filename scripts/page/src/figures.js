/**
 * The figures that layers, nodes and blocks of the graph have: their values, words and colours.
 *
 * @typedef {object} Figure
 * @property {string} name
 * @property {string} label
 * @property {"number"|"category"} kind
 * @property {boolean} [perLayer] all nodes of a layer share one value, which counts once in a block
 * @property {(run: object, node: object) => any} of its value for a node; null for none
 * @property {(values: any[]) => any} together its value for a block of nodes that have one
 * @property {(value: any) => string} word
 * @property {(value: any, extent: [number, number]) => string} colour
 * @property {(extent: [number, number]) => [string, string][]} legend colours and what they stand for
 */

import { decibel, decibels, gainDb, milliseconds, number, numberIn, share } from "./format.js";
import { outcomeOf } from "./repair.js";

/** Of ColorBrewer (Cynthia Brewer, Mark Harrower): both can be told apart by the colour-blind. */
const MORE_IS_WORSE = ["#ffffd9", "#fee391", "#fec44f", "#fe9929", "#d95f0e", "#993404"];
const LOW_IS_BAD = ["#a50026", "#d73027", "#f46d43", "#fdae61", "#fee090", "#abd9e9", "#74add1", "#4575b4"];
/** Of Okabe and Ito. */
const PRECISIONS = {
  fp32: "#bdbdbd",
  tf32: "#d0d0d0",
  fp16: "#56b4e9",
  bf16: "#0072b2",
  fp8: "#cc79a7",
  int8: "#009e73",
  int4: "#117733",
  mixed: "#e69f00",
};
const OTHER = "#f0e442";

/** The colour of a precision; that of an unknown one is none of theirs. */
export function precisionColour(precision) {
  return PRECISIONS[(precision || "").toLowerCase()] ?? OTHER;
}

/** What layers of an engine are for, as EngineLayer.role has it. */
const WORK = {
  matrix: ["product", "#0072b2"],
  other: ["other work", "#bdbdbd"],
  reformat: ["moves or converts data", "#d55e00"],
  opaque: ["unknown (Myelin)", "#f0e442"],
  control: ["no work", "#eeeeee"],
};

/** The layer of the result that a node belongs to. */
export function layerOf(run, node) {
  return node.layer === null ? null : (run.result?.layers?.[node.layer] ?? null);
}

/** The position of a layer of one run in another, which has it by the same name; null for none. */
export function sameLayer(from, place, to) {
  if (from === to || place === null) return place;
  const name = from.result?.layers?.[place]?.name;
  const found = (to.result?.layers ?? []).findIndex((layer) => layer.name === name);
  return found < 0 ? null : found;
}

/** The SQNR of the outputs when only this layer is quantized, in dB. */
export function aloneDb(layer) {
  const noise = numberIn(layer?.effect, "alone");
  if (noise === null || noise === undefined) return null;
  return noise === 0 ? Infinity : Number.isFinite(noise) ? -10 * Math.log10(noise) : NaN;
}

const tensorsOf = new WeakMap();

/** The metrics of the tensor that a node computes. */
export function tensorOf(run, node) {
  if (!tensorsOf.has(run)) {
    tensorsOf.set(run, new Map((run.result?.tensors ?? []).map((t) => [t.name, t])));
  }
  const known = tensorsOf.get(run);
  for (const name of node.tensors) if (known.has(name)) return known.get(name);
  return null;
}

const timesOf = new WeakMap();

/** The time of the kernels that compute a node, in ms; a kernel's time is divided evenly. */
export function timeOf(run, node) {
  if (!timesOf.has(run)) {
    const times = new Map();
    for (const kernel of run.kernels) {
      if (kernel.ms === null) continue;
      for (const k of kernel.nodes) {
        times.set(k, (times.get(k) ?? 0) + kernel.ms / kernel.nodes.length);
      }
    }
    timesOf.set(run, times);
  }
  return timesOf.get(run).get(node.index) ?? null;
}

const total = (values) => values.reduce((a, b) => a + b, 0);
const smallest = (values) => values.reduce((a, b) => (Number.isNaN(a) || a < b ? a : b));
const largest = (values) => values.reduce((a, b) => (Number.isNaN(a) || a > b ? a : b));
const same = (values) => (new Set(values).size === 1 ? values[0] : "mixed");

function pick(colours, share) {
  const at = Math.min(1, Math.max(0, share)) * (colours.length - 1);
  return mix(colours[Math.floor(at)], colours[Math.ceil(at)], at - Math.floor(at));
}

function mix(a, b, t) {
  const parts = [1, 3, 5].map((k) => {
    const [x, y] = [a, b].map((c) => Number.parseInt(c.slice(k, k + 2), 16));
    return Math.round(x + (y - x) * t)
      .toString(16)
      .padStart(2, "0");
  });
  return `#${parts.join("")}`;
}

const BROKEN = "#d01c8b";
const NEGATIVE = "#abd9e9";

/** dB: 5 and less is bad, 45 and more is good, on all networks alike. */
const inDecibels = {
  kind: "number",
  together: smallest,
  word: decibels,
  colour: (v) => (Number.isNaN(v) ? BROKEN : pick(LOW_IS_BAD, (v - 5) / 40)),
  legend: () => [5, 15, 25, 35, 45].map((v) => [pick(LOW_IS_BAD, (v - 5) / 40), `${decibel(v)} dB`]),
};

/** Anything of which much is bad: the square root shows the small ones too. */
const amounts = (word) => ({
  kind: "number",
  word,
  colour: (v, [, high]) => (Number.isNaN(v) ? BROKEN : v < 0 ? NEGATIVE : pick(MORE_IS_WORSE, rooted(v, high))),
  legend: ([low, high]) => [
    ...(low < 0 ? [[NEGATIVE, "below 0: it cancels errors of others"]] : []),
    ...[0, 0.1, 0.3, 0.6, 1].map((s) => [pick(MORE_IS_WORSE, Math.sqrt(s)), word(s * high)]),
  ],
});

function rooted(value, high) {
  return high > 0 ? Math.sqrt(Math.max(0, value) / high) : 0;
}

const precisions = {
  kind: "category",
  together: same,
  word: (v) => v.toUpperCase(),
  colour: (v) => PRECISIONS[v.toLowerCase()] ?? OTHER,
  legend: (_, found) => found.map((v) => [PRECISIONS[v.toLowerCase()] ?? OTHER, v.toUpperCase()]),
};

/** What the outputs' SQNR gains, in dB, when only this layer stays in FP32; null where not measured. */
export function gainOf(layer) {
  const gain = numberIn(layer, "gain_db");
  const part = numberIn(layer?.effect, "output_share");
  return gain ?? (part === null ? null : -10 * Math.log10(Math.max(1e-12, 1 - part))); // an older result
}

/** A layer that gains that much makes all of the error; of no error at all it is infinite. */
const ALL_DB = 100;
const least = (value, most) => (value === null ? null : Math.min(value, most));

/** @type {Figure[]} */
export const FIGURES = [
  {
    name: "gain",
    perLayer: true,
    label: "Gained at the outputs in FP32 (dB)",
    ...amounts((v) => (v >= ALL_DB ? "all" : `${gainDb(v)} dB`)),
    together: largest, // gains do not add up
    of: (run, node) => ofLayer(run, node, (l) => least(gainOf(l), ALL_DB)),
  },
  {
    name: "cumulative",
    label: "Cumulative error (SQNR)",
    ...inDecibels,
    of: (run, node) => numberIn(tensorOf(run, node), "sqnr_db"),
  },
  {
    name: "local",
    perLayer: true,
    label: "Local error (SQNR)",
    ...inDecibels,
    of: (run, node) => ofLayer(run, node, (l) => numberIn(l, "local_sqnr_db")),
  },
  {
    name: "alone",
    perLayer: true,
    label: "Outputs, only this layer quantized (SQNR)",
    ...inDecibels,
    of: (run, node) => ofLayer(run, node, aloneDb),
  },
  {
    name: "planned",
    label: "Precision requested",
    ...precisions,
    of: plannedFor,
  },
  {
    name: "built",
    label: "Precision built",
    ...precisions,
    of: (_, node) => node.built || null,
  },
  {
    name: "work",
    label: "What its kernel is for",
    kind: "category",
    together: same,
    word: (v) => WORK[v]?.[0] ?? v,
    colour: (v) => WORK[v]?.[1] ?? OTHER,
    legend: (_, found) => found.map((v) => [WORK[v]?.[1] ?? OTHER, WORK[v]?.[0] ?? v]),
    of: (run, node) => (run.kind === "inspect" && run.result?.source !== "onnx" ? ofLayer(run, node, (l) => l.role) : null),
  },
  {
    name: "time",
    label: "Time of its kernels",
    ...amounts(milliseconds),
    together: total,
    of: timeOf,
  },
  {
    name: "range",
    label: "Range: largest magnitude",
    ...amounts((v) => number(v, 3)),
    together: largest,
    of: rangeOf,
  },
  {
    name: "remedies",
    perLayer: true,
    label: "Remedies kept",
    kind: "number",
    together: largest,
    word: (v) => (v === 1 ? "1 remedy" : `${v} remedies`),
    colour: (v, [, high]) => pick(MORE_IS_WORSE, rooted(v, high)),
    legend: ([, high]) => Array.from({ length: high + 1 }, (_, k) => [pick(MORE_IS_WORSE, rooted(k, high)), `${k}`]),
    of: remediesOf,
  },
  {
    name: "clipped",
    perLayer: true,
    label: "Input values clipped",
    ...amounts(share),
    together: largest,
    of: (run, node) => ofLayer(run, node, (l) => numberIn(l, "input_clipped_fraction")),
  },
];

const candidates = new WeakMap();

/**
 * The precision that was asked for. A search starts from one precision for all layers that it may
 * pin: those of its points.
 */
function plannedFor(run, node) {
  if (run.kind !== "bisect" || !run.result) return node.planned || null;
  if (!candidates.has(run)) {
    candidates.set(run, new Set(run.result.pareto.flatMap((point) => point.pinned)));
  }
  return candidates.get(run).has(node.group) ? run.result.precision : node.planned || null;
}

/** The largest magnitude of what a node computes: in FP32, or the amax of the calibration chosen. */
function rangeOf(run, node) {
  const { result, kind } = run;
  if (kind === "calibrate") return largestOf(node.tensors.map((name) => numberIn(result?.methods[result.best]?.tensors[name], "amax")));
  return numberIn(tensorOf(run, node), kind === "ranges" ? "amax" : "ref_amax");
}

function largestOf(values) {
  const known = values.filter((v) => v !== null);
  return known.length ? largest(known) : null;
}

/** How many of the remedies that a repair kept changed a node's layer. */
function remediesOf({ result, kind }, node) {
  if (kind !== "repair" || !result || !node.group) return null;
  return result.steps.filter((step) => outcomeOf(step) === "kept" && step.layers.includes(node.group)).length;
}

/** A figure of the node's layer. */
function ofLayer(run, node, of) {
  const layer = layerOf(run, node);
  return layer ? of(layer) : null;
}

/** The figures that some node of a run has. */
export function figuresOf(run) {
  const nodes = run.network?.nodes ?? [];
  return FIGURES.filter((figure) => nodes.some((node) => figure.of(run, node) !== null));
}

/** Black or white, whichever can be read on a colour. */
export function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((k) => {
    const c = Number.parseInt(colour.slice(k, k + 2), 16) / 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.25 ? "#111111" : "#ffffff";
}
