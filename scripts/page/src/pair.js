/** Two runs: what became better or worse from one to the other, layer by layer. */

import { groupMark, isDrawn, pointChart } from "./charts/points.js";
import { h, nameOf } from "./dom.js";
import { gainOf } from "./figures.js";
import { counted, decibel, decibels, gainDb, number, numberIn } from "./format.js";
import { grid, plainTable } from "./grid.js";
import { tiles } from "./tiles.js";
import { letterOf as letter } from "./top.js";
import "./style/charts.css";
import "./style/sections.css";

/** Differences of an SQNR below this are no news, in dB. */
const NEWS_DB = 0.5;

const FIGURES = [
  { key: "cumulative", words: "cumulative error (SQNR), dB", of: (l) => numberIn(l, "sqnr_db"), word: decibel },
  { key: "local", words: "local error (SQNR), dB", of: (l) => numberIn(l, "local_sqnr_db"), word: decibel },
  { key: "gain", words: "gained at the outputs in FP32, dB", of: gainOf, word: gainDb },
];

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  const runs = data.runs.map((run, k) => [k, `${letter(k)}: ${run.label}`]).filter(([k]) => data.runs[k].kind === "compare");
  if (runs.length < 2) return;
  const select = (chosen) => h("select", { class: "small" }, ...runs.map(([k, words]) => h("option", { value: k, selected: k === chosen }, words)));
  const before = select(runs[0][0]);
  const after = select(runs[1][0]);
  const figure = h("select", { class: "small" }, ...FIGURES.map((f) => h("option", { value: f.key }, f.words)));
  const body = h("div", {});
  const fill = () => {
    const chosen = { a: Number(before.value), b: Number(after.value), figure: FIGURES.find((f) => f.key === figure.value) };
    body.replaceChildren(...differences(data, store, chosen));
  };
  const choices = [h("label", {}, "Draw", figure)];
  if (runs.length > 2) choices.unshift(h("label", {}, "From", before), h("label", {}, "to", after));
  for (const choice of [before, after, figure]) choice.addEventListener("change", fill);
  host.append(h("h2", {}, "Differences, layer by layer"), h("div", { class: "choices screen" }, ...choices), body);
  fill();
}

function differences(data, store, { a, b, figure }) {
  const [before, after] = [data.runs[a].result, data.runs[b].result];
  const rows = matched(before.layers, after.layers);
  const both = rows.filter((row) => row.a !== null && row.b !== null);
  const plot = scatter(both, figure, store, { a, b });
  const table = grid("Differences of the layers", columns(a, b), rows, {
    choose: (row) => select(store, row, { a, b }),
    isSelected: (row) => isShown(store.get(), row, { a, b }),
    sort: "cumulativeChange",
  });
  const off = store.on(["selected", "run"], () => {
    if (!table.isConnected) return off();
    table.mark();
    plot.mark();
  });
  return [h("div", { class: "two" }, h("div", {}, ...legend(a, b), plot), summary(before, after, both, rows, { a, b })), table];
}

/** Layers of both by name; of one run alone where the other has none of that name. */
function matched(before, after) {
  const known = new Map();
  before.forEach((layer, k) => known.set(layer.name, { name: layer.name, a: k, b: null, first: layer, second: null }));
  after.forEach((layer, k) => {
    const row = known.get(layer.name);
    if (row && row.b === null) Object.assign(row, { b: k, second: layer });
    else if (!row) known.set(layer.name, { name: layer.name, a: null, b: k, first: null, second: layer });
  });
  return [...known.values()].map(withFigures);
}

function withFigures(row) {
  const values = { op: (row.first ?? row.second).op_type };
  for (const { key, of } of FIGURES) {
    const [x, y] = [row.first ? of(row.first) : null, row.second ? of(row.second) : null];
    Object.assign(values, { [`${key}A`]: x, [`${key}B`]: y, [`${key}Change`]: change(x, y) });
  }
  const precisions = [row.first?.precision, row.second?.precision].map((p) => p?.toUpperCase() ?? "–");
  return { ...row, ...values, precision: precisions[0] === precisions[1] ? precisions[0] : precisions.join(" → ") };
}

/** Two infinite SQNRs are equal: neither has an error. */
function change(x, y) {
  if (x === null || y === null) return null;
  return x === y ? 0 : y - x;
}

function columns(a, b) {
  const of = (key, words, word, judged, explain) => [
    { field: `${key}A`, title: `${words}: ${letter(a)}`, word, explain },
    { field: `${key}B`, title: letter(b), word },
    { field: `${key}Change`, title: "change", word: (v) => changed(v, judged) },
  ];
  return [
    { field: "name", title: "layer", kind: "text" },
    ...of("cumulative", "cumulative, dB", decibel, true),
    ...of("local", "local, dB", decibel, true),
    ...of("gain", "gain, dB", gainDb, false, "What the SQNR of the outputs gains when only this layer stays in FP32"),
    { field: "precision", title: "precision", kind: "text" },
    { field: "op", title: "op", kind: "text" },
  ];
}

/** A change with its sign. More dB is good; a gain is that of its own run, and no more. */
function changed(value, judged) {
  if (value === null || Number.isNaN(value)) return h("span", {}, number(value));
  if (value === 0) return h("span", {}, "0");
  const words = Number.isFinite(value) ? decibel(Math.abs(value)) : "inf";
  const [sign, kind, mark] = value > 0 ? ["+", "better", " ▲"] : ["−", "worse", " ▼"];
  return h("span", judged ? { class: kind, title: kind } : {}, `${sign}${words}${judged ? mark : ""}`);
}

function verdictOf({ cumulativeChange: v }) {
  if (v === null || Math.abs(v) < NEWS_DB) return 2;
  return v > 0 ? 0 : 1;
}

const GROUPS = ["better", "worse", `within ${NEWS_DB} dB`];

function legend(a, b) {
  const keys = GROUPS.map((words, k) => h("span", { class: "key" }, groupMark([0, 1, 6][k]), words));
  return [h("div", { class: "legend" }, ...keys, h("span", {}, `cumulative error, ${letter(b)} against ${letter(a)}`))];
}

function scatter(rows, figure, store, { a, b }) {
  const { key, words, word } = figure;
  const points = rows.map((row) => ({
    x: row[`${key}A`],
    y: row[`${key}B`],
    group: [0, 1, 6][verdictOf(row)],
    words: `${row.name}\n${letter(a)}: ${word(row[`${key}A`])}, ${letter(b)}: ${word(row[`${key}B`])}`,
    data: row,
  }));
  const drawn = points.filter(isDrawn).length;
  const label = `${words} of ${counted(drawn, "layer")} in both runs, ${letter(b)} against ${letter(a)}; the table below has the values`;
  return pointChart({
    label,
    points,
    xLabel: `${words}: ${letter(a)}`,
    yLabel: letter(b),
    diagonal: true,
    height: 320,
    choose: (row) => select(store, row, { a, b }),
    isSelected: (row) => isShown(store.get(), row, { a, b }),
  });
}

/** A layer of the run that is shown; of the other run where only that has it. */
function select(store, row, { a, b }) {
  const { run } = store.get();
  if (run === b && row.b !== null) store.set({ selected: row.b });
  else if (row.a !== null) store.set({ run: a, selected: row.a });
  else store.set({ run: b, selected: row.b });
}

function isShown({ run, selected }, row, { a, b }) {
  return selected !== null && ((run === a && row.a === selected) || (run === b && row.b === selected));
}

function summary(before, after, both, rows, { a, b }) {
  const count = (k) => both.filter((row) => verdictOf(row) === k).length;
  const facts = [
    [`better in ${letter(b)}`, counted(count(0), "layer")],
    [`worse in ${letter(b)}`, counted(count(1), "layer")],
    [GROUPS[2], counted(count(2), "layer")],
  ];
  const alone = rows.length - both.length;
  if (alone) facts.push(["in one run only", counted(alone, "layer")]);
  const list = (title, group, sign) => {
    const found = both.filter((row) => verdictOf(row) === group && Number.isFinite(row.cumulativeChange));
    found.sort((x, y) => sign * (y.cumulativeChange - x.cumulativeChange));
    if (!found.length) return [];
    const entry = (row) => h("li", {}, nameOf(row.name), h("span", { class: "muted" }, ` ${decibels(row.cumulativeA)} → ${decibels(row.cumulativeB)}`));
    return [h("h3", {}, title), h("ol", { class: "pins" }, ...found.slice(0, 5).map(entry))];
  };
  return h(
    "div",
    {},
    tiles(facts),
    ...list("Most improved", 0, 1),
    ...list("Got worse the most", 1, -1),
  );
}

/** What all runs are worth, side by side: their metric, where it is one, and their outputs. */
export function mountTotals(host, { data }) {
  const runs = data.runs.map((run, k) => ({ ...run, letter: letter(k) })).filter(({ kind, result }) => kind === "compare" && result);
  const results = runs.map(({ result }) => result);
  const of = (get) => results.map((result) => get(result) ?? "–");
  const metric = results[0].metric?.name;
  const isOne = metric && results.every((result) => result.metric?.name === metric);
  const sqnr = (name) => (result) => {
    const found = result.outputs.find((o) => o.name === name);
    return found ? decibels(numberIn(found, "sqnr_db")) : null;
  };
  const gates = (result) => (result.verdict?.conditions.length ? (result.verdict.passed ? "passed" : "failed") : null);
  const rows = [
    ...(isOne ? [[`${metric} (FP32: ${[...new Set(of((r) => number(numberIn(r.metric, "reference"))))].join(", ")})`, ...of((r) => number(numberIn(r.metric, "candidate")))]] : []),
    ...results[0].outputs.map(({ name }) => [`output ${name}, SQNR`, ...of(sqnr(name))]),
    ...(results.some(gates) ? [["conditions", ...of(gates)]] : []),
  ];
  host.append(
    h("h1", {}, ...runs.flatMap((run, k) => [k ? " against " : "", nameOf(run.label)])),
    plainTable("The runs", ["figure", ...runs.map((run) => `${run.letter}: ${run.label}`)], rows),
  );
}
