/** Everything that is known of one layer. */

import { h, nameOf, printable } from "./dom.js";
import { gainOf, sameLayer } from "./figures.js";
import { decibel, decibels, gainDb, milliseconds, number, numberIn, share } from "./format.js";
import { plainTable } from "./grid.js";
import { withScrollHints } from "./scroll.js";
import { tiles } from "./tiles.js";
import "./style/card.css";

/** How many layers are named where none is selected. */
const NAMED = 5;

/** @param {HTMLElement} host */
export function mount(host, page) {
  const { store, data } = page;
  host.classList.add("layer-card");
  const body = h("div", {});
  const inner = h("div", { tabindex: "0", role: "group", "aria-label": "The layer selected" }, h("h2", {}, "Layer", runChoice(page)), body);
  host.append(withScrollHints(h("div", { class: "stays" }, inner), { right: "", below: "More below: scroll ↓" }));
  const fill = () => {
    const { run, selected } = store.get();
    const layer = data.runs[run].result?.layers?.[selected];
    const known = CARDS[data.runs[run].kind];
    body.replaceChildren(...(layer && known ? known(layer, page) : nothingSelected(data.runs[run], store)));
  };
  store.on(["run", "selected"], fill);
  fill();
}

/** Which of several runs the card, the plot and the table are of. */
function runChoice({ store, data }) {
  if (data.runs.length < 2) return null;
  const choice = h("select", { class: "small screen", "aria-label": "Run of the layer, the plot and the table" });
  choice.append(...data.runs.map((run, k) => h("option", { value: k }, `${"AB"[k] ?? k + 1}: ${printable(run.label)}`)));
  choice.addEventListener("change", () => {
    const { run, selected } = store.get();
    const next = Number(choice.value);
    store.set({ run: next, selected: sameLayer(data.runs[run], selected, data.runs[next]) });
  });
  store.on(["run"], ({ run }) => (choice.value = `${run}`));
  return choice;
}

function nothingSelected(run, store) {
  const layers = run.result?.layers ?? [];
  if (run.kind !== "compare") return [h("p", { class: "muted" }, layers.length ? "Select a node of the graph." : "The result has no layers.")];
  const hint = h("p", { class: "muted" }, "Select a layer in the plot, the graph or the table.");
  const worst = layers.map((layer, k) => [layer, k]).sort(([a], [b]) => a.rank - b.rank).slice(0, NAMED);
  const entry = ([layer, k]) => {
    const open = () => store.set({ selected: k });
    return h("li", {}, h("button", { type: "button", class: "link", onclick: open }, nameOf(layer.name)));
  };
  return [hint, h("p", {}, "The worst:"), h("ol", { class: "worst-list" }, ...worst.map(entry))];
}

function card(layer, page) {
  const run = page.data.runs[page.store.get().run];
  return [
    ...head(layer, run),
    ...causes(layer),
    ...gains(layer, run.result),
    ...errorParts(layer),
    ...engine(layer, run, page.store.get().selected),
  ];
}

/** A layer that a search keeps in higher precision. */
function pinnedCard(layer, page) {
  const { result } = page.data.runs[page.store.get().run];
  const without = layer.if_unpinned;
  const rows = [
    ["local error (SQNR)", decibels(numberIn(layer, "local_sqnr_db"))],
    ["cost", number(numberIn(layer, "cost")), result.cost.unit],
    ...(without ? [["the target's figure without it", number(numberIn(without, "value")), without.passed ? "meets it" : "does not meet it"]] : []),
  ];
  const user = layer.user_pinned ? [chip("pinned by the user")] : [];
  return [
    ...title(layer.name, [chip(layer.op_type), chip(`${layer.from.toUpperCase()} → ${layer.to.toUpperCase()}`), ...user]),
    tiles(rows),
    ...causes(layer),
  ];
}

/** A layer of an engine. */
function engineCard(layer) {
  const precision = layer.precision ? [chip(layer.precision.toUpperCase())] : [];
  const operands = (found) => found.map((t) => [t.name, [t.dtype, t.dims?.map((size) => (size < 0 ? "?" : size)).join("×"), t.format].filter(Boolean).join(", ")]);
  const parts = [
    ["Reads", operands(layer.inputs)],
    ["Writes", operands(layer.outputs)],
    ["Constants", operands(layer.constants)],
  ].filter(([, rows]) => rows.length);
  const rows = [
    ["time", milliseconds(numberIn(layer, "time_ms"))],
    ["2:4 sparse", layer.sparse === null ? "–" : layer.sparse ? "yes" : "no"],
    ["tactic", layer.tactic || "–"],
  ].filter(([, value]) => value !== "–");
  return [
    ...title(layer.name, [chip(layer.type), chip(layer.role), ...precision, ...(layer.origin ? [chip(`added for ${layer.origin}`)] : [])]),
    rows.length ? tiles(rows) : null,
    ...parts.flatMap(([words, found]) => [h("h3", {}, words), plainTable(words, ["tensor", "type, shape and format"], found)]),
    layer.onnx_nodes.length ? h("h3", {}, "Computes the nodes") : null,
    layer.onnx_nodes.length ? h("ul", { class: "worst-list" }, ...layer.onnx_nodes.map((n) => h("li", {}, nameOf(n)))) : null,
  ].filter(Boolean);
}

const CARDS = { compare: card, bisect: pinnedCard, inspect: engineCard };

/** The name of what the card is about, and what it is. */
function title(name, chips) {
  return [h("p", { class: "layer-name" }, nameOf(name)), h("div", { class: "chips" }, ...chips)];
}

function head(layer, run) {
  const built = builtOf(layer, run);
  const other = built && built.toLowerCase() !== layer.precision;
  const chips = [
    chip(layer.op_type),
    chip(`${layer.precision.toUpperCase()} requested`),
    built ? chip(`built in ${built.toUpperCase()}`, other ? "warn" : "") : null,
    layer.harmless ? chip("overflows harmlessly: a mask") : null,
  ];
  return [...title(layer.name, chips.filter(Boolean)), figures(layer, run.result)];
}

function chip(words, kind = "") {
  return h("span", { class: `chip ${kind}` }, nameOf(words));
}

/** The precision of the engine's layer that does its work; "" where that is not known. */
function builtOf(layer, run) {
  const audited = run.result.engine?.audit?.layers.find((a) => a.name === layer.name);
  if (audited?.built) return audited.built;
  const own = (run.network?.nodes ?? []).find((node) => node.name === layer.name);
  return own?.built ?? "";
}

function figures(layer, result) {
  const gain = gainOf(layer);
  const rows = [
    ["rank", `${layer.rank}`, `of ${result.layers.length}`],
    ["gain in FP32 (SQNR of the outputs)", gain === null ? "–" : `${gainDb(gain)} dB`],
    ["local error (SQNR)", decibels(numberIn(layer, "local_sqnr_db"))],
    ["cumulative error (SQNR)", decibels(numberIn(layer, "sqnr_db"))],
    ["cosine", number(numberIn(layer, "cosine"), 5)],
    ["largest magnitude", number(numberIn(layer, "ref_amax"), 3), `candidate ${number(numberIn(layer, "cand_amax"), 3)}`],
    ["largest error", number(numberIn(layer, "max_abs_err"), 3)],
    ["worst sample", number(layer.worst_sample), decibels(numberIn(layer, "worst_sample_sqnr_db"))],
    ["worst channel", number(layer.worst_channel), decibels(numberIn(layer, "worst_channel_sqnr_db"))],
    ["inputs clipped", share(numberIn(layer, "input_clipped_fraction"))],
  ];
  if (layer.nan_count) rows.push(["NaN values", number(layer.nan_count)]);
  if (layer.inf_count) rows.push(["infinite values", number(layer.inf_count)]);
  return tiles(rows);
}

function causes({ causes: found }) {
  if (!found?.length) return [h("h3", {}, "Causes"), h("p", { class: "muted" }, "None was found.")];
  const entry = ({ label, share: part, share_of: whole, evidence, remedy }) =>
    h(
      "li",
      {},
      h("div", { class: "cause-head" }, h("strong", {}, label), part === null ? null : h("span", {}, `${share(part)} of ${whole ?? "the layer's error"}`)),
      part === null ? null : shareBar(part),
      h("p", {}, nameOf(evidence)),
      remedy ? h("p", { class: "remedy" }, nameOf(remedy)) : null,
    );
  return [h("h3", {}, "Causes"), h("ul", { class: "causes" }, ...found.map(entry))];
}

function shareBar(part) {
  const bar = h("i", {});
  bar.style.width = `${100 * Math.min(1, Math.max(0, part))}%`;
  return h("div", { class: "share-bar", "aria-hidden": "true" }, bar);
}

const CANCELS = " Its error partly cancels that of other layers: alone it is not the one to keep, with them it may be.";

/** What was measured when only this layer runs in FP32. */
function gains(layer, result) {
  const { effect } = layer;
  if (!effect) return [];
  const rows = [];
  const gained = numberIn(effect, "metric_gain");
  if (gained !== null) {
    const name = result.metric?.name ?? "metric";
    const now = numberIn(result.metric, "candidate");
    const change = `${gained < 0 ? "" : "+"}${number(gained)}`;
    const isComparable = result.effect.samples === result.samples && now !== null;
    rows.push([name, isComparable ? `${number(now)} → ${number(now + gained)} (${change})` : change]);
  }
  const gain = gainOf(layer);
  if (gain !== null) rows.push(["SQNR of the outputs", `${gainDb(gain)} dB`]);
  if (!rows.length) return [];
  const samples = result.effect ? ` (measured on ${result.effect.samples} samples)` : "";
  return [
    h("h3", {}, "With this layer alone in FP32"),
    h("dl", { class: "inline-facts" }, ...rows.map(([k, v]) => h("div", {}, h("dt", {}, nameOf(k)), h("dd", {}, v)))),
    h("p", { class: "muted" }, `What changes when only this layer runs in FP32${samples}.${(gain ?? 0) < -0.05 ? CANCELS : ""}`),
  ];
}

const PARTS = [
  ["inherited", "inherited from its inputs"],
  ["weights", "rounding of its weights"],
  ["clipping", "clipping of activations"],
  ["rounding", "rounding of activations"],
  ["interaction", "interaction of these"],
  ["unexplained", "unexplained"],
];

/** Parts of the noise at the layer's output, where they were measured. */
function errorParts({ error_parts: parts }) {
  const whole = numberIn(parts, "total");
  if (whole === null || !(whole > 0)) return [];
  const known = PARTS.map(([key, words]) => [words, numberIn(parts, key)]).filter(([, v]) => v !== null);
  const most = Math.max(...known.map(([, v]) => Math.abs(v)).filter(Number.isFinite), 0) || 1;
  const row = ([words, v]) => {
    const bar = h("i", { class: v < 0 ? "negative" : "" });
    bar.style.width = `${Number.isFinite(v) ? (100 * Math.abs(v)) / most : 0}%`;
    return [h("span", {}, words), h("div", { "aria-hidden": "true" }, bar), h("b", {}, share(v / whole))];
  };
  return [
    h("h3", {}, "What the error at its output consists of"),
    h("div", { class: "part-bars" }, ...known.flatMap(row)),
    h("p", { class: "muted" }, `Noise power, as shares of the whole (${decibels(-10 * Math.log10(whole))}), on ${parts.samples} samples.`),
  ];
}

/** What the engine built of the layer, how long that takes, and its error in parts. */
function engine(layer, run, selected) {
  const parts = [...audit(layer, run), ...kernels(layer, run, selected), ...attribution(layer, run)];
  return parts.length ? [h("h3", {}, "In the engine"), ...parts] : [];
}

function audit(layer, run) {
  const found = run.result.engine?.audit?.layers.find((a) => a.name === layer.name);
  if (!found) return [];
  const built = found.built ? found.built.toUpperCase() : "a precision that its file does not say";
  const words = `Requested in ${found.requested.toUpperCase()}, built in ${built}: ${found.verdict}.`;
  const more = [found.note, found.advice].filter(Boolean).map((t) => h("p", {}, nameOf(t)));
  return [h("p", { class: found.verdict === "mismatch" ? "bad" : "" }, words), ...more];
}

function kernels(layer, run, selected) {
  const nodes = new Set();
  (run.network?.nodes ?? []).forEach((node, k) => node.layer === selected && nodes.add(k));
  const own = run.kernels.filter((kernel) => kernel.nodes.some((k) => nodes.has(k)));
  const rows = own.map((kernel) => [kernelName(kernel), kernel.precision || "–", milliseconds(kernel.ms), `${kernel.nodes.length}`]);
  return own.length ? [plainTable("Kernels of this layer", ["kernel", "precision", "time", "nodes"], rows)] : [];
}

function kernelName({ name, detail }) {
  return h("div", {}, nameOf(name), detail ? h("div", { class: "muted" }, nameOf(detail)) : null);
}

function attribution(layer, run) {
  const execution = run.result.engine?.execution;
  const all = [...(execution?.tensors ?? []), ...(execution?.outputs ?? [])];
  const found = all.find((a) => a.tensor === layer.tensor);
  if (!found) return [];
  const db = (key) => `${decibel(numberIn(found, key))}`;
  const rows = [
    ["FP32 against the simulation: quantization", db("quantization_db")],
    ["the simulation against the engine: kernels", db("kernel_db")],
    ["FP32 against the engine: all", db("total_db")],
  ];
  if (numberIn(found, "reference_db") !== null) rows.push(["FP32 against an engine without quantization", db("reference_db")]);
  return [plainTable("The error at its output, in parts", ["its output", "SQNR, dB"], rows)];
}
