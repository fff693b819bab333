/** Calibration: the methods side by side, and whether the samples were enough. */

import { groupMark, pointChart } from "./charts/points.js";
import { h, nameOf } from "./dom.js";
import { counted, decibel, number, numberIn, share } from "./format.js";
import { grid, plainTable } from "./grid.js";
import "./style/charts.css";
import "./style/sections.css";

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  host.classList.add("calibration");
  const body = h("div", {});
  host.append(body);
  const fill = () => {
    const run = data.runs[store.get().run];
    const parts = { calibrate: calibrated, ranges: ranged }[run.kind];
    body.replaceChildren(...(parts ? parts(run.result) : []));
  };
  store.on(["run"], fill);
  fill();
}

function calibrated(result) {
  const answer = [
    h("h2", {}, "Methods"),
    methods(result),
    result.best_by ? h("p", { class: "muted" }, `★ the one to use, by ${result.best_by}.`) : null,
    ...cacheDifference(result.cache_difference),
  ];
  return [
    h("div", { class: "two even" }, h("div", {}, ...answer.filter(Boolean)), h("div", {}, ...growthOf(result.coverage, result.calibration_samples))),
    h("h2", {}, "Ranges of the tensors"),
    tensors(result),
    ...coverage(result.coverage, result.held_out_samples),
  ];
}

function methods(result) {
  const { metric } = result;
  const fp32 = numberIn(metric, "reference");
  const heads = ["method", ...(metric ? [`${metric.name} (FP32: ${number(fp32)})`] : []), "worst output: SQNR, dB", "cosine", "values clipped, worst tensor"];
  const rows = Object.entries(result.methods).map(([name, found]) => {
    const clipped = Object.values(found.tensors).map((t) => numberIn(t, "clipped_fraction")).filter((v) => v !== null);
    const cosines = Object.values(found.outputs).map((o) => numberIn(o, "cosine"));
    const best = name === result.best;
    return [
      h("span", { class: best ? "best" : "" }, nameOf(name), best ? " ★" : ""),
      ...(metric ? [number(numberIn(found, "metric"))] : []),
      decibel(numberIn(found, "sqnr_db")),
      cosines.length ? number(lowest(cosines), 5) : "–",
      clipped.length ? share(Math.max(...clipped)) : "–",
    ];
  });
  return plainTable("The methods", heads, rows);
}

function lowest(values) {
  return values.some(Number.isNaN) ? NaN : Math.min(...values);
}

/** The largest magnitude of a range; a weight may have one for every channel. */
function amaxOf(range) {
  const amax = range?.amax;
  if (Array.isArray(amax)) return Math.max(...amax.filter((v) => v !== null));
  return numberIn(range, "amax");
}

const FIGURES = [
  ["amax", "amax", amaxOf, (v) => number(v, 4)],
  ["clipped", "held-out values clipped", (t) => numberIn(t, "clipped_fraction"), share],
  ["step", "step", (t) => (Array.isArray(t?.scale) ? null : numberIn(t, "scale")), (v) => number(v, 3)],
];

/** Every tensor with what each method makes of it. */
function tensors({ methods: found }) {
  const names = Object.keys(found);
  const all = [...new Set(names.flatMap((m) => Object.keys(found[m].tensors)))];
  const choice = h("select", { class: "small" }, ...FIGURES.map(([key, words]) => h("option", { value: key }, words)));
  const place = h("div", {});
  const fill = () => {
    const [, words, of, word] = FIGURES.find(([key]) => key === choice.value);
    const rows = all.map((name) => {
      const values = names.map((m) => of(found[m].tensors[name]));
      return { name, position: all.indexOf(name), values, spread: spread(values), ...Object.fromEntries(values.map((v, k) => [`m${k}`, v])) };
    });
    const columns = [
      { field: "name", title: "tensor", kind: "text" },
      ...names.map((m, k) => ({ field: `m${k}`, title: m, word })),
      { field: "spread", title: "largest / smallest", word: (v) => number(v, 3) },
      { field: "position", title: "side by side", width: 190, word: (_, row) => dots(row.values) },
    ];
    place.replaceChildren(grid(`Tensors: ${words}`, columns, rows));
  };
  choice.addEventListener("change", fill);
  fill();
  const keys = names.map((m, k) => h("span", { class: "key" }, groupMark(k), nameOf(m)));
  return h("div", {}, h("div", { class: "choices screen" }, h("label", {}, "Show", choice), ...keys), place);
}

function spread(values) {
  const known = values.filter((v) => v > 0 && Number.isFinite(v));
  return known.length > 1 ? Math.max(...known) / Math.min(...known) : null;
}

const DOTS_WIDTH = 170;

/** One mark for each method, on an axis from 0 to the largest of the row. */
function dots(values) {
  const most = Math.max(...values.filter((v) => Number.isFinite(v)), 0);
  const host = h("div", { class: "dots-row", "aria-hidden": "true" });
  values.forEach((v, k) => {
    if (!Number.isFinite(v)) return;
    const mark = groupMark(k);
    mark.style.insetInlineStart = `${most ? (v / most) * (DOTS_WIDTH - 14) : 0}px`;
    host.append(mark);
  });
  return host;
}

function cacheDifference(found) {
  if (!found) return [];
  const lists = [
    ["Without a range", found.missing],
    ["Not in the model", found.unknown],
    ["Ranges that are 0 or denormal", found.degenerate],
  ].filter(([, names]) => names.length);
  return [
    h("h2", {}, "The calibration given"),
    found.written_by ? h("p", { class: "muted" }, "Written by ", nameOf(found.written_by)) : null,
    lists.length + found.different.length === 0 ? h("p", {}, "It agrees with a fresh one.") : null,
    ...lists.map(([words, names]) => listed(`${words} (${names.length})`, names)),
    found.different.length
      ? plainTable(
          "Ranges that are off",
          ["range that is off", "given", "fresh", "method"],
          found.different.map((d) => [d.tensor, number(numberIn(d, "given")), number(numberIn(d, "fresh")), d.method]),
        )
      : null,
  ].filter(Boolean);
}

function listed(words, names) {
  return h("details", {}, h("summary", {}, words), h("ul", {}, ...names.map((name) => h("li", {}, nameOf(name)))));
}

/** How ranges grow with the samples. */
function growthOf({ growth }, samples) {
  const enough =
    growth.enough < samples
      ? `From ${counted(growth.enough, "sample")} on, every range is about as it is with all ${samples}.`
      : `Some range still grows with the last of ${counted(samples, "sample")}: more may be needed.`;
  return [
    h("h2", {}, "Were the calibration samples enough?"),
    h("p", { class: growth.enough < samples ? "" : "warn" }, enough),
    curve(growth),
  ];
}

/** Ranges that depend on one sample, and how far held-out samples leave them. */
function coverage({ stretched_by_one_sample: stretched, held_out: beyond }, heldOut) {
  return [
    stretched.length
      ? plainTable(
          "Ranges that one sample makes by itself",
          ["range that one sample makes", "sample", "amax", "without it"],
          stretched.map((row) => [row.tensor, row.sample, number(numberIn(row, "amax")), number(numberIn(row, "without"))]),
        )
      : h("p", { class: "muted" }, "No range is made by one sample alone."),
    ...(heldOut ? excess(beyond) : []),
  ];
}

function curve({ samples, median, lowest: low }) {
  const line = (values, words, group) =>
    samples.map((x, k) => ({ x, y: values[k], group, words: `${counted(x, "sample")}: ${words} ${share(values[k])}` })).filter((p) => Number.isFinite(p.y));
  const lines = [line(median, "median", 0), line(low, "lowest", 1)];
  const last = (values) => values.map((v, k) => `${samples[k]}: ${share(v)}`).join(", ");
  const label = `Range of the first samples as a share of the range of all. Median over the tensors: ${last(median)}. Lowest: ${last(low)}`;
  return h(
    "div",
    {},
    h("div", { class: "legend" }, h("span", { class: "key" }, groupMark(0), "median over the tensors"), h("span", { class: "key" }, groupMark(1), "lowest")),
    pointChart({ label, points: lines.flat(), lines, xLabel: "calibration samples", yLabel: "range, as a share of that of all samples", xLog: 2, height: 230 }),
  );
}

function excess(rows) {
  if (!rows.length) return [h("p", {}, "No held-out value leaves a calibrated range.")];
  const columns = [
    { field: "tensor", title: "tensor", kind: "text" },
    { field: "ratio", title: "largest held-out magnitude / amax", word: (v) => number(v, 4) },
    { field: "samples", title: "samples beyond", word: share },
  ];
  const data = rows.map((r) => ({ tensor: r.tensor, ratio: numberIn(r, "ratio"), samples: numberIn(r, "samples_beyond") }));
  return [h("h3", {}, "Held-out data beyond the calibrated ranges"), grid("Held-out data beyond the ranges", columns, data, { sort: "ratio", descending: true })];
}

function ranged(result) {
  const columns = [
    { field: "name", title: "tensor", kind: "text" },
    { field: "amax", title: "largest magnitude" },
    { field: "p9999", title: "99.99th percentile", explain: "99.99 % of the magnitudes are below this" },
    { field: "crest", title: "largest / RMS", word: (v) => number(v, 3), explain: "Largest magnitude over root mean square (crest factor): where it is large, a few outliers set the step of all values" },
    { field: "growth", title: "growth", word: (v) => number(v, 3), explain: "The range of all samples over that of the first half: 1 where the second half did not widen it" },
    { field: "zeros", title: "zeros", word: share },
    { field: "planned", title: "amax used" },
    { field: "clipped", title: "clipped", word: share },
    { field: "broken", title: "NaN and Inf" },
  ];
  const rows = result.tensors.map((t) => ({
    name: t.name,
    amax: numberIn(t, "amax"),
    p9999: numberIn(t.percentiles, "99.99"),
    crest: numberIn(t, "crest_factor"),
    growth: numberIn(t, "growth"),
    zeros: numberIn(t, "zero_share"),
    planned: numberIn(t.planned, "amax"),
    clipped: numberIn(t.planned, "clipped_fraction"),
    broken: t.nan_count + t.inf_count,
  }));
  const used = columns.filter((c) => c.field === "name" || rows.some((r) => r[c.field] !== null));
  return [
    ...growthOf(result.coverage, result.calibration.samples),
    h("h2", {}, "Dynamic ranges"),
    grid("Dynamic ranges of the tensors", used, rows),
    ...coverage(result.coverage, result.holdout?.samples ?? 0),
  ];
}
