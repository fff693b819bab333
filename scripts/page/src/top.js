/** The top of the page: what was found, whether the gate held, and how to get it again. */

import { h, nameOf } from "./dom.js";
import { counted, decibels, number, numberIn } from "./format.js";
import { stages } from "./stages.js";
import "./style/top.css";

const COMMANDS = {
  compare: "Comparison",
  calibrate: "Calibration",
  bisect: "Search for layers to keep in higher precision",
  repair: "Repair",
  sweep: "Sweep",
  ranges: "Ranges",
  inspect: "Engine",
  model: "Model",
};

/** @param {HTMLElement} host */
export function mount(host, { data }) {
  const all = data.runs.map((run, k) => runSummary(run, data, k));
  host.append(...(all.length > 1 ? [h("div", { class: "wide summaries" }, ...all)] : all));
}

function runSummary(run, data, k) {
  const several = data.runs.length > 1;
  const path = run.result?.model?.path ?? run.result?.file ?? run.label;
  const what = run.result?.source === "onnx" ? COMMANDS.model : COMMANDS[run.kind];
  const about = [what, ...(run.label === path ? [] : [nameOf(run.label)]), ...(fileOf(path) === path ? [] : [nameOf(path)])];
  const again = reproduction(run, data);
  return h(
    "section",
    { class: `panel top${several ? "" : " wide"}${several || !again.length ? " alone" : ""}`, "aria-label": `Summary of ${run.label}` },
    h(
      "div",
      {},
      h(several ? "h2" : "h1", {}, several ? `${letterOf(k)}: ` : "", nameOf(fileOf(path))),
      h("p", { class: "muted about" }, ...about.flatMap((part, at) => (at ? [" · ", part] : [part])), unfinished(run)),
      verdict(run),
      facts(factsOf(run)),
      ...stages(run.result, several ? `Stages of ${letterOf(k)}` : "Stages"),
      notices(run),
    ),
    again.length ? h("div", {}, ...again) : null,
  );
}

/** How one of several runs is called. */
export function letterOf(k) {
  return String.fromCharCode(65 + k);
}

const fileOf = (path) => path.split(/[\\/]/).at(-1) || path;

function unfinished(run) {
  return run.unfinished ? h("strong", { class: "warn" }, " · still running") : null;
}

function verdict(run) {
  const { verdict: gate, passed: found } = run.result ?? {};
  // Without conditions only an engine that is not as planned is a verdict.
  const passed = gate ? (gate.passed && !gate.conditions.length ? null : gate.passed) : (found ?? null);
  const words = { true: ["Passed", "good"], false: ["Failed", "bad"] }[String(passed)];
  const badge = words ? h("span", { class: `badge ${words[1]}` }, words[0]) : null;
  const why = run.kind === "repair" || run.kind === "bisect" ? (run.result?.explanation ?? "") : "";
  return h(
    "div",
    {},
    h("p", { class: "verdict" }, badge, nameOf(run.headline)),
    why ? h("p", { class: found ? "" : "warn" }, nameOf(why)) : null,
    ...remedies(run),
  );
}

/** So many of the layers that cost most are asked for what would help them. */
const LEADERS = 3;

/** What would help the layers that cost most, and how many other layers it would help as well. */
function remedies({ kind, result }) {
  if (kind !== "compare" || !result) return [];
  const main = (layer) => layer.causes[0];
  const found = new Map();
  for (const layer of result.layers.filter(main).slice(0, LEADERS)) {
    const { label, remedy } = main(layer);
    if (remedy && !found.has(label)) found.set(label, remedy);
  }
  return [...found].map(([label, remedy]) => {
    const count = result.layers.filter((layer) => main(layer)?.label === label).length;
    return h("p", { class: "remedy" }, nameOf(remedy), h("span", { class: "muted" }, ` (${label}, in ${counted(count, "layer")})`));
  });
}

function factsOf(run) {
  const result = run.result ?? {};
  const rows = [];
  if (result.metric?.name && "candidate" in result.metric) {
    const before = numberIn(result.metric, "reference");
    const after = numberIn(result.metric, "candidate");
    const change = before === null || after === null ? "" : ` (${signed(after - before)})`;
    const now = result.precision ? `in ${result.precision.toUpperCase()}` : "now";
    rows.push([result.metric.name, `${number(before)} in FP32, ${number(after)} ${now}${change}`]);
  }
  for (const output of run.kind === "compare" && run.result ? result.outputs.slice(0, 4) : []) {
    rows.push([
      `output ${output.name}`,
      `SQNR ${decibels(numberIn(output, "sqnr_db"))}, cosine ${number(numberIn(output, "cosine"), 5)}, worst sample ${output.worst_sample}`,
    ]);
    for (const part of output.parts ?? []) {
      rows.push([`part of ${output.name}`, `SQNR ${decibels(numberIn(part, "sqnr_db"))}, ${places(part)} from ${part.branch}`]);
    }
  }
  for (const condition of result.verdict?.conditions ?? []) {
    const found = number(numberIn(condition, "value"));
    rows.push([`${condition.passed ? "holds" : "fails"}: ${condition.expression}`, found]);
  }
  if (result.backend) rows.push(["backend", backend(result)]);
  if (result.samples) rows.push(["samples", samples(result)]);
  if (run.kind === "compare" && run.result) rows.push(["compared", compared(result)]);
  return rows;
}

function places({ axis, first, last }) {
  const span = first === last ? `${first}` : `${first}–${last}`;
  return axis === 1 ? `${first === last ? "channel" : "channels"} ${span}` : `${span} of axis ${axis}`;
}

function backend(result) {
  const engine = result.engine;
  if (!engine) return result.backend;
  return `${engine.library}${engine.executed ? "" : ", built but not executed; errors are of the simulation"}`;
}

function samples(result) {
  const effect = result.effect;
  const more = effect && effect.samples !== result.samples ? `; effects of layers were measured on ${effect.samples} of them` : "";
  return `${result.samples}${more}`;
}

function compared(result) {
  const skipped = result.skipped.filter((s) => s.reason !== "not floating point").length;
  const more = skipped ? `; ${skipped} skipped` : "";
  return `${counted(result.tensors.length, "tensor")} of ${counted(result.layers.length, "layer")}${more}`;
}

function signed(value) {
  return value < 0 ? number(value) : `+${number(value)}`;
}

/** A list of terms and what they are. */
export function facts(rows) {
  return h("dl", { class: "facts" }, ...rows.flatMap(([a, b]) => [h("dt", {}, nameOf(a)), h("dd", {}, nameOf(b))]));
}

function notices(run) {
  const notes = (run.result?.notes ?? []).map((note) => h("li", {}, nameOf(note)));
  const missing = run.missing.map((m) =>
    h("li", { class: "muted" }, `No ${m.what}: `, nameOf(`${m.reason} ${m.remedy}`)),
  );
  return notes.length + missing.length ? h("ul", { class: "notices" }, ...notes, ...missing) : null;
}

function reproduction(run, data) {
  const known = run.reproduction;
  if (!known) return [];
  const command = h("code", { class: "command mono", tabindex: "0" }, known.command);
  const copy = h("button", { type: "button", onclick: () => copyText(known.command, copy) }, "Copy");
  return [
    h("div", { class: "bar" }, h("h2", {}, "To reproduce this"), copy),
    command,
    h(
      "details",
      {},
      h("summary", {}, "Versions and hashes"),
      facts([
        ["qdebug", data.qdebug],
        ...Object.entries(known.versions),
        ...Object.entries(known.hashes).map(([role, digest]) => [`SHA-256 of ${role}`, digest]),
      ]),
    ),
  ];
}

/** Put text into the clipboard, and say on the button that it is there. */
export async function copyText(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not allow it";
  }
  setTimeout(() => (button.textContent = before), 1500);
}

