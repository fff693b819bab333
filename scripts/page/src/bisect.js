/** The Pareto curve of a search: a slider over its points, which the graph follows. */

import { groupMark, isDrawn, pointChart } from "./charts/points.js";
import { h, nameOf } from "./dom.js";
import { counted, decibels, number, numberIn, share } from "./format.js";
import { plainTable } from "./grid.js";
import { withScrollHints } from "./scroll.js";
import { tiles } from "./tiles.js";
import { copyText } from "./top.js";
import "./style/charts.css";
import "./style/sections.css";

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  host.classList.add("bisect");
  const body = h("div", {});
  host.append(body);
  const fill = () => {
    const run = data.runs[store.get().run];
    if (run.kind === "bisect") body.replaceChildren(...found(run, store));
  };
  store.on(["run"], fill);
  fill();
}

function found(run, store) {
  const { result } = run;
  const heading = h("h2", {}, "Error against cost");
  if (!result.pareto.length) return [heading, h("p", { class: "lacking" }, "No candidate was evaluated.")];
  return [heading, curve(run, store), ...checks(result)];
}

/** "output.cosine>=0.97" is about "output.cosine"; one about the metric has its name. */
function figureOf({ target, metric }) {
  if (metric && target.startsWith("metric")) return metric;
  return target.split(/[<>=]/)[0].trim() || "target's figure";
}

const noiseDb = (point) => {
  const noise = numberIn(point, "noise");
  return noise === null ? null : noise === 0 ? Infinity : -10 * Math.log10(noise);
};

function curve(run, store) {
  const { result } = run;
  const { cost } = result;
  const pareto = pointsOf(result);
  const answer = answerOf(result, pareto);
  const figure = figureOf(result);
  let chosen = Math.max(0, answer ?? pareto.findIndex((p) => p.knee));
  const ways = [
    ["noise", "SQNR of the outputs, dB", noiseDb],
    ["value", figure, (p) => numberIn(p, "value")],
  ];
  const choice = h("select", { class: "small", "aria-label": "What is drawn against cost" }, ...ways.map(([k, words]) => h("option", { value: k }, words)));
  const slider = h("input", { type: "range", min: 1, max: pareto.length, step: 1, value: chosen + 1, "aria-label": "Point of the curve" });
  const where = h("output", {}, "");
  const plot = h("div", {});
  const details = h("div", { "aria-live": "polite" });
  const take = (k) => {
    chosen = k;
    slider.value = String(k + 1);
    slider.setAttribute("aria-valuetext", spoken(pareto[k], figure));
    where.textContent = `${nameOfPoint(pareto[k])}, ${k + 1} of ${pareto.length}`;
    store.set({ pinned: new Map(pareto[k].pinned.map((name) => [name, pareto[k].to[name]])), plan: pareto[k].point });
    plot.firstChild?.mark();
    details.replaceChildren(...described(run, pareto[k], k === answer, figure));
  };
  const draw = () => {
    const [, words, of] = ways.find(([k]) => k === choice.value);
    const points = pareto.map((p, k) => ({
      x: numberIn(p, "cost"),
      y: of(p),
      hollow: !p.passed,
      group: p.passed ? 2 : 1,
      tag: k === answer ? "answer" : p.knee ? KNEE : "",
      words: spoken(p, figure),
      data: k,
    }));
    const line = points.filter((p) => pareto[p.data].point !== null && isDrawn(p));
    const label = `${words} against cost in ${cost.unit}: ${pareto.map((p) => spoken(p, figure)).join("; ")}`;
    plot.replaceChildren(pointChart({ label, points, lines: [line], stepped: choice.value === "noise", xLabel: `cost, ${cost.unit}`, yLabel: words, choose: take, isSelected: (k) => k === chosen }));
  };
  slider.addEventListener("input", () => take(Number(slider.value) - 1));
  choice.addEventListener("change", draw);
  draw();
  take(chosen);
  const keys = [
    h("span", { class: "key" }, groupMark(2), `meets the target: ${result.target_text || result.target}`),
    h("span", { class: "key" }, groupMark(1, true), "does not meet it"),
  ];
  const chart = h("div", {}, h("div", { class: "legend" }, ...keys, choice), plot, h("div", { class: "slider-line screen" }, slider, where));
  return h("div", { class: "two" }, chart, details);
}

/** The knee of the curve: beyond it the same cost buys much less. */
const KNEE = "best trade-off";

const isSame = (a, b) => a.length === b.length && a.every((name) => b.includes(name));

/** The place of the point that the search answers with; null where it has no answer. */
function answerOf({ pinned, achieved, selected_point: selected }, points) {
  if (selected) return points.findIndex((p) => p.point === selected.point);
  const k = achieved === null ? -1 : points.findIndex((p) => isSame(p.pinned, pinned));
  return k < 0 ? null : k;
}

/**
 * The points of the curve, and the answer where it lies beside the curve: another set may cost as
 * much and leave less noise, and yet miss the target.
 */
function pointsOf(result) {
  const { pareto, cost, pinned, history } = result;
  if (answerOf(result, pareto) !== null || result.achieved === null) return pareto;
  const found = history.find((tried) => isSame(tried.pinned, pinned));
  if (!found) return pareto;
  const answer = { ...found, point: null, cost: cost.plan - cost.base, knee: false };
  const after = pareto.findIndex((p) => p.cost > answer.cost);
  return pareto.toSpliced(after < 0 ? pareto.length : after, 0, answer);
}

/** The answer has no number where it lies beside the curve. */
function nameOfPoint({ point }) {
  return point === null ? "the answer" : `point ${point}`;
}

function spoken(point, figure) {
  const words = [
    `${nameOfPoint(point)}: cost ${number(numberIn(point, "cost"))}`,
    `${figure} ${number(numberIn(point, "value"))}`,
    `outputs ${decibels(noiseDb(point))}`,
    counted(point.pinned.length, "layer") + " pinned",
    point.passed ? "meets the target" : "does not meet it",
  ];
  return words.join(", ");
}

function described(run, point, isAnswer, figure) {
  const { result } = run;
  const { base, all_pinned: all } = result.cost;
  const part = base !== null && all > base ? numberIn(point, "cost") / (all - base) : null;
  const facts = [
    [figure, number(numberIn(point, "value")), point.passed ? "meets the target" : "does not meet the target"],
    ...(figure === "output.sqnr_db" ? [] : [["outputs (SQNR)", decibels(noiseDb(point))]]),
    ["cost", large(numberIn(point, "cost")), part === null ? null : `${result.cost.unit}, ${share(part)} of the cost of pinning every layer`],
    ["pinned", counted(point.pinned.length, "layer"), `of ${result.candidates}`],
  ];
  return [
    h("h3", {}, point.point === null ? "The answer" : `Point ${point.point}${isAnswer ? ": the answer" : point.knee ? `: the ${KNEE}` : ""}`),
    tiles(facts),
    h("h3", {}, point.pinned.length ? `Kept in higher precision (${counted(point.pinned.length, "layer")})` : "Kept in higher precision"),
    point.pinned.length ? pins(point, result) : h("p", { class: "muted" }, "Nothing is pinned."),
    ...howToTake(run, point, isAnswer),
  ];
}

/** A count of many digits, in thousands or millions. */
function large(value) {
  if (value === null || !(Math.abs(value) >= 1e4)) return number(value);
  return Math.abs(value) < 1e6 ? `${number(value / 1e3, 3)} k` : `${number(value / 1e6, 3)} M`;
}

function howToTake(run, point, isAnswer) {
  const command = commandOf(run, point, isAnswer);
  const copy = h("button", { type: "button", class: "small" }, "Copy");
  copy.addEventListener("click", () => copyText(command, copy));
  return [
    h("div", { class: "bar" }, h("h3", {}, "To use this point"), copy),
    run.reproduction ? null : h("p", { class: "muted" }, "Run the same command again with:"),
    h("code", { class: "command mono", tabindex: "0" }, command),
  ].filter(Boolean);
}

function pins(point, result) {
  const of = new Map(result.layers.map((layer) => [layer.name, layer]));
  const entry = (name) => {
    const causes = [...new Set((of.get(name)?.causes ?? []).map((c) => c.label))].join(", ");
    return h("li", {}, nameOf(name), h("span", { class: "muted" }, ` ${point.to[name]?.toUpperCase() ?? ""}${causes ? `, ${causes}` : ""}`));
  };
  const list = h("ul", { class: "pins", tabindex: "0", "aria-label": "Pinned layers" }, ...point.pinned.map(entry));
  return withScrollHints(h("div", {}, list), { right: "", below: "More layers below: scroll the list ↓" });
}

/** A word of a command line, quoted or not. */
const WORD = `(?:"(?:\\\\.|[^"])*"|'[^']*'|\\\\.|[^\\s"'\\\\])+`;
const REPLACED = new RegExp(`\\s(?:--select-point|--output|-o)[=\\s]\\s*${WORD}`, "g");

/** The command of the run with this point; the search's own answer needs none to be named. */
function commandOf(run, point, isAnswer) {
  const known = run.reproduction ? run.reproduction.command.replace(REPLACED, "") : "";
  const select = isAnswer && !run.result.selected_point ? "" : ` --select-point ${point.point}`;
  return `${known}${select} -o precision${point.point === null ? "" : `-${point.point}`}.yaml`.trim();
}

function checks(result) {
  if (!result.checks.length) return [];
  const figure = figureOf(result);
  const rows = result.checks.map((c) => [
    c.on,
    c.samples,
    number(numberIn(c, "value")),
    number(numberIn(c.baseline, "value")),
    number(numberIn(c, "reference_metric")),
    c.failure ? c.failure : c.passed ? "passed" : "failed",
  ]);
  const how = result.execution ? [h("p", { class: "muted" }, nameOf(result.execution))] : [];
  return [h("h3", {}, "The answer, run once more"), ...how, plainTable("Checks of the answer", ["on", "samples", figure, "nothing pinned", "FP32", "result"], rows)];
}
