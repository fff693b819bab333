/** A repair: what each remedy gave, and what the network is worth on held-out samples. */

import { h, nameOf } from "./dom.js";
import { counted, decibel, number, numberIn, share } from "./format.js";
import { plainTable } from "./grid.js";
import "./style/sections.css";

const REASONS = {
  metric: "the metric is better",
  "less-noise": "less error",
  undecided: "too few samples to tell",
  "no-gain": "no gain beyond chance",
  "metric-fell": "the metric is worse",
  fails: "cannot be run",
  "nothing-changed": "changes nothing",
};

/** In dB: the least change that the table shows, as in the terminal. */
const LEAST_SHOWN = 0.1;

const OUTCOMES = { kept: "kept", "layers-pinned": "no use", "dropped-at-the-end": "dropped", "not-kept": "not kept" };

/** What became of a remedy; files of earlier versions say only whether it was accepted. */
export function outcomeOf({ outcome, accepted }) {
  return outcome || (accepted ? "kept" : "not-kept");
}

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  const body = h("div", {});
  host.append(body);
  const fill = () => {
    const run = data.runs[store.get().run];
    if (run.kind === "repair") body.replaceChildren(...repaired(run.result));
  };
  store.on(["run"], fill);
  fill();
}

function repaired(result) {
  const before = [
    h("h2", {}, `Before and after, on ${counted(result.proof.samples, "held-out sample")}`),
    proof(result),
    ...pins(result),
  ];
  const tried = [
    h("h2", {}, `Remedies, chosen on ${counted(result.choosing_samples, "other sample")}`),
    steps(result),
    ...result.skipped.map((s) => h("p", { class: "muted" }, "Not tried: ", nameOf(`${s.remedy}: ${s.reason}.`))),
  ];
  return [h("div", { class: "two even roomy" }, h("div", {}, ...before), h("div", {}, ...tried))];
}

function proof(result) {
  const { proof: found, metric } = result;
  const row = (name, figures, target) => [
    name,
    ...(metric ? [number(numberIn(figures, "metric"))] : []),
    figures.failure ? nameOf(figures.failure) : decibel(numberIn(figures, "sqnr_db")),
    ...(found.target ? [target] : []),
  ];
  const meets = found.passed === null || found.passed === undefined ? "–" : found.passed ? "yes" : "no";
  const rows = [
    ...(metric ? [["FP32", number(numberIn(found, "reference_metric")), "exact", ...(found.target ? [""] : [])]] : []),
    row("quantized, before", found.start, ""),
    row("repaired, nothing pinned", found.repaired, meets),
  ];
  const recovered = numberIn(found, "recovered");
  return h(
    "div",
    {},
    plainTable("Before and after", ["network", ...(metric ? [metric] : []), "worst output: SQNR, dB", ...(found.target ? ["meets the target"] : [])], rows),
    recovered === null || recovered < 0 ? null : h("p", { class: "strong" }, `${regained(found, recovered)} recovered.`),
  );
}

/** In samples where the metric counts them, else as a share with its error. */
function regained(found, recovered) {
  const lost = numberIn(found, "lost_samples");
  if (lost !== null) return `${numberIn(found, "recovered_samples")} of ${counted(lost, "lost sample")}`;
  const error = numberIn(found, "recovered_error");
  return `${share(recovered)}${error === null ? "" : ` ± ${share(error)}`} of the loss`;
}

function steps(result) {
  const metric = result.metric ? [result.metric] : [];
  const heads = ["remedy", "in the end", ...metric, "SQNR, dB", "change, dB", "why", "layers", "seconds"];
  const rows = result.steps.map((step) => {
    const gain = numberIn(step, "gain_db");
    const more = step.reason === "no-gain" && gain !== null && gain <= -LEAST_SHOWN;
    const why = more ? "more error" : (REASONS[step.reason] ?? step.reason);
    return [
      h("span", { class: outcomeOf(step) === "kept" ? "best" : "muted" }, nameOf(step.remedy)),
      OUTCOMES[outcomeOf(step)] ?? "",
      ...(result.metric ? [number(numberIn(step.after, "metric"))] : []),
      decibel(numberIn(step.after, "sqnr_db")),
      gain === null ? "–" : `${gain < 0 ? "−" : "+"}${Math.abs(gain).toFixed(1)}`,
      [step.samples_needed ? `${why}: it takes about ${step.samples_needed}` : why, step.what].filter(Boolean).join("; "),
      String(step.layers.length),
      number(numberIn(step, "seconds"), 2),
    ];
  });
  return plainTable("The remedies, in the order in which they were tried", heads, rows);
}

function pins({ pinning }) {
  if (!pinning) return [];
  const names = pinning.pinned;
  const title = h("h2", {}, "Also kept in higher precision");
  if (!names.length) return [title, h("p", {}, "No layer."), pinning.explanation ? h("p", { class: "muted" }, nameOf(pinning.explanation)) : null].filter(Boolean);
  return [
    title,
    h("p", {}, `${counted(names.length, "layer")}, ${share(numberIn(pinning.cost, "pinned_share"))} of the cost of pinning every layer.`),
    h("ul", {}, ...names.map((name) => h("li", {}, nameOf(name)))),
  ];
}
