/** A sweep: what each combination of settings costs and gives. */

import { groupMark, isDrawn, pointChart } from "./charts/points.js";
import { h, nameOf } from "./dom.js";
import { decibel, number, numberIn, share } from "./format.js";
import { grid } from "./grid.js";
import "./style/card.css";
import "./style/charts.css";
import "./style/sections.css";

const AXES = [
  ["precision", "precision"],
  ["weights", "weights"],
  ["compute_capability", "compute capability"],
  ["optimization_level", "optimization level"],
  ["tactic_sources", "tactic sources"],
  ["typing", "typing"],
  ["tf32", "TF32"],
  ["sparsity", "sparsity"],
  ["refit", "refit"],
  ["version_compatible", "version compatible"],
];

/** The errors of a combination: the engine's where it was executed, else the simulation's. */
const errorsOf = (row) => (row.executed ? row.execution : row.simulation);

const fact = (key) => (row) => numberIn(row.engine, key);

/** Figures that can be drawn: key, words, value of a row, words of a value. */
function figuresOf(result) {
  const figures = [
    ["latency", "latency, ms", (row) => numberIn(row, "latency_ms"), (v) => number(v, 3)],
    ["size", "size, MB", (row) => scaled(fact("size_bytes")(row), 1e-6), (v) => number(v, 3)],
    ["build", "build time, s", fact("build_s"), (v) => number(v, 3)],
    ["layers", "layers", fact("layers"), number],
    ["sqnr", "output SQNR, dB", (row) => numberIn(errorsOf(row), "sqnr_db"), decibel],
    ["cosine", "output cosine", (row) => numberIn(errorsOf(row), "cosine"), (v) => number(v, 6)],
    ["metric", result.metric?.name ?? "metric", (row) => numberIn(errorsOf(row), "metric"), number],
    ["int8", "products in INT8", (row) => numberIn(row.engine?.values, "int8_share"), share],
    ["fused", "nodes fused", (row) => numberIn(row.engine?.values, "fused_share"), share],
    ["reformats", "reformats", (row) => numberIn(row.engine?.values, "reformat_count"), number],
  ].map(([key, words, of, word]) => ({ key, words, of, word }));
  return figures.filter(({ of }) => result.combinations.some((row) => of(row) !== null));
}

const scaled = (value, by) => (value === null ? null : value * by);

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  const body = h("div", {});
  host.append(h("h2", {}, "Combinations"), body);
  const fill = () => {
    const run = data.runs[store.get().run];
    if (run.kind === "sweep") body.replaceChildren(...swept(run.result));
  };
  store.on(["run"], fill);
  fill();
}

function swept(result) {
  const figures = figuresOf(result);
  const varied = AXES.filter(([key]) => new Set(result.combinations.map((row) => row[key])).size > 1);
  const same = AXES.filter(([key]) => !varied.some(([k]) => k === key) && result.combinations[0]?.[key]);
  const state = { chosen: null };
  const plot = h("div", {});
  const rows = result.combinations.map((row) => tableRow(row, figures, varied, result.best));
  const table = grid("Table of the combinations", columns(figures, varied), rows, {
    choose: ({ number: n }) => choose(n),
    isSelected: ({ number: n }) => n === state.chosen,
    sort: "number",
  });
  const choose = (n) => {
    state.chosen = n;
    table.mark();
    plot.querySelector(".chart")?.mark();
    table.show(rows.findIndex((row) => row.number === n));
  };
  const context = { result, figures, varied, state, plot, choose };
  const inAll = same.map(([key, words]) => `${words} ${result.combinations[0][key]}`).join(", ");
  return [
    h("div", { class: "choices screen" }, ...controls(context)),
    plot,
    inAll ? h("p", { class: "muted" }, "In all: ", nameOf(inAll)) : null,
    table,
    ...failures(result),
  ].filter(Boolean);
}

/** Choice of both axes and of what colours stand for; draws when one is changed. */
function controls(context) {
  const { figures, varied } = context;
  const keys = figures.map((f) => f.key);
  const first = (...wanted) => wanted.find((key) => keys.includes(key));
  const options = figures.map((f) => [f.key, f.words]);
  const selects = {
    x: choiceOf(options, first("latency", "size", "build", "layers", "sqnr")),
    y: choiceOf(options, first("sqnr", "metric", "cosine", "size")),
    by: choiceOf(varied.length ? varied : [["precision", "precision"]], varied[0]?.[0]),
  };
  const redraw = () => draw(context, selects);
  for (const select of Object.values(selects)) select.addEventListener("change", redraw);
  redraw();
  return [
    h("label", {}, "Across", selects.x),
    h("label", {}, "Up", selects.y),
    h("label", {}, "Colour and shape", selects.by),
  ];
}

function choiceOf(options, chosen) {
  return h("select", { class: "small" }, ...options.map(([key, words]) => h("option", { value: key, selected: key === chosen }, words)));
}

function draw({ result, figures, varied, state, plot, choose }, selects) {
  const [x, y] = [selects.x, selects.y].map((select) => figures.find((f) => f.key === select.value));
  if (!x || !y) return;
  const by = selects.by.value;
  const groups = [...new Set(result.combinations.map((row) => row[by]))];
  const points = result.combinations.map((row) => ({
    x: x.of(row),
    y: y.of(row),
    group: groups.indexOf(row[by]),
    hollow: !row.executed,
    tag: row.number === result.best ? `#${row.number}: best` : `#${row.number}`,
    words: `#${row.number} ${settings(row, varied)}\n${x.words}: ${x.word(x.of(row))}\n${y.words}: ${y.word(y.of(row))}`,
    data: row.number,
  }));
  const undrawn = points.filter((p) => !isDrawn(p));
  const label = `${y.words} against ${x.words}. ${points.map((p) => p.words.replaceAll("\n", ", ")).join("; ")}`;
  const keys = groups.map((g, k) => h("span", { class: "key" }, groupMark(k), nameOf(g || "–")));
  if (points.some((p) => p.hollow)) keys.push(h("span", { class: "key" }, groupMark(0, true), "hollow: not executed, errors of the simulation"));
  plot.replaceChildren(
    h("div", { class: "legend" }, ...keys),
    pointChart({ label, points, xLabel: x.words, yLabel: y.words, height: 330, choose, isSelected: (n) => n === state.chosen }),
  );
  if (undrawn.length) plot.append(h("p", { class: "muted" }, `Not drawn: ${undrawn.map((p) => `#${p.data} (${off(p, x, y)})`).join(", ")}.`));
}

/** Why a point has no place. */
function off(point, x, y) {
  return [
    [point.x, x],
    [point.y, y],
  ]
    .filter(([v]) => !Number.isFinite(v))
    .map(([v, figure]) => `${figure.words}: ${v === null ? "not measured" : figure.word(v)}`)
    .join(", ");
}

function settings(row, varied) {
  return varied.map(([key]) => row[key]).filter(Boolean).join(", ");
}

function columns(figures, varied) {
  return [
    { field: "number", title: "#", word: (n, row) => (row.best ? `${n} ★` : `${n}`) },
    ...varied.map(([key, words]) => ({ field: key, title: words, kind: "text" })),
    ...figures.map(({ key, words, word }) => ({ field: key, title: words, word: (v) => word(v) })),
    { field: "state", title: "state", kind: "text" },
  ];
}

function tableRow(row, figures, varied, best) {
  return {
    number: row.number,
    best: row.number === best,
    ...Object.fromEntries(varied.map(([key]) => [key, row[key] || "–"])),
    ...Object.fromEntries(figures.map(({ key, of }) => [key, of(row)])),
    state: stateOf(row),
  };
}

function stateOf(row) {
  if (row.failure) return "could not be built";
  if (row.execution?.failure) return "built, failed to run";
  const off = row.engine?.mismatches.length ?? 0;
  if (off) return `${off} not as planned`;
  const fails = row.conditions.filter((c) => !c.passed).map((c) => c.expression);
  if (fails.length) return `fails ${fails.join(", ")}`;
  return row.executed ? "executed" : row.engine ? "built, not executed" : "simulated";
}

function failures(result) {
  const failed = result.combinations.flatMap((row) => {
    const why = row.failure ?? (row.execution?.failure && { message: row.execution.failure, hint: "" });
    return why ? [h("li", {}, `#${row.number}: `, nameOf(why.message), " ", nameOf(why.hint))] : [];
  });
  return [
    failed.length ? h("h3", {}, "What failed") : null,
    failed.length ? h("ul", {}, ...failed) : null,
  ].filter(Boolean);
}
