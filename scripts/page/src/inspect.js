/** An engine: what its layers compute in, how long they take, and what is odd about it. */

import { groupMark } from "./charts/points.js";
import { precisionColour } from "./figures.js";
import { h, nameOf } from "./dom.js";
import { counted, milliseconds, number, numberIn, share } from "./format.js";
import { grid, plainTable } from "./grid.js";
import { tiles } from "./tiles.js";
import { withScrollHints } from "./scroll.js";
import "./style/charts.css";
import "./style/sections.css";

const LARGE = 1e4;

/**
 * What the engine is, in short.
 * @param {HTMLElement} host
 */
export function mount(host, page) {
  filled(host, page, (result) => {
    const parts = [...costs(result), ...odd(result), ...events(result.events)];
    return [
      h("h2", {}, isModel(result) ? "Model" : "Engine"),
      ...strip(result, page.store),
      h("div", { class: "two even" }, h("div", {}, ...times(result), ...endsOf(result), ...(timed(result) && result.products.length < 2 ? [] : products(result.products))), h("div", {}, ...parts)),
      summary(result),
      ...audit(result.audit),
      ...difference(result.diff),
    ];
  });
}

/**
 * All of its layers.
 * @param {HTMLElement} host
 */
export function mountLayers(host, page) {
  filled(host, page, (result) => [h("h2", {}, isModel(result) ? "Layers of the model" : "Layers of the engine"), layers(result, page.store)]);
}

function filled(host, { data, store }, parts) {
  host.classList.add("inspect");
  const fill = () => {
    const run = data.runs[store.get().run];
    if (run.kind === "inspect") host.replaceChildren(...parts(run.result).filter(Boolean));
  };
  store.on(["run"], fill);
  fill();
}

const isModel = ({ source }) => source === "onnx";

/** The layer that takes longest, or where no time is known the first that multiplies. */
export function slowest(layers) {
  const times = layers.map((layer) => numberIn(layer, "time_ms") ?? -1);
  const most = Math.max(...times);
  return most >= 0 ? times.indexOf(most) : Math.max(0, layers.findIndex(({ role }) => role === "matrix"));
}

const VALUES = [
  ["layer_count", "layers", number],
  ["total_ms", "time", milliseconds],
  ["fused_share", "nodes fused", share],
  ["reformat_count", "reformats", number],
  ["precision_changes", "precision changes between products", number],
  ["left_high", "products left in floating point", number],
  ["unread_qdq", "unread Q/DQ pairs", number],
  ["sparse_share", "sparse products", share],
  ["mismatch_count", "not as planned", number],
  ["warning_count", "warnings", number],
];

/** A model has none of these before it is built. */
const ENGINE_ONLY = ["fused_share", "reformat_count", "sparse_share", "total_ms"];

function summary(result) {
  const known = VALUES.filter(([key]) => !isModel(result) || !ENGINE_ONLY.includes(key)).map(([key, words, word]) => [words, numberIn(result.values, key), word]).filter(([, v]) => v !== null);
  const facts = known.map(([words, v, word]) => [words, word(v)]);
  facts.unshift(["read from", result.source], ...(result.library ? [["library", result.library]] : []));
  return tiles(facts);
}

/** What goes in and comes out, as far as the file tells. */
function endsOf({ io, model_inputs: inputs = [], model_outputs: outputs = [] }) {
  const known = inputs.length + outputs.length ? [...inputs, ...outputs] : io.filter(({ dims }) => dims);
  const shape = ({ shape: named, dims }) => (named ?? dims.map((size) => (size < 0 ? "?" : size))).join(" × ");
  const rows = known.map((tensor) => [tensor.name, [tensor.dtype, shape(tensor)].filter(Boolean).join("  ")]);
  return rows.length ? [h("h2", {}, "Inputs and outputs"), plainTable("Inputs and outputs", ["tensor", "type and shape"], rows)] : [];
}

const timed = (result) => !isModel(result) && result.layers.some((layer) => numberIn(layer, "time_ms") !== null);

/** Every layer in its order, as wide as its time, in the colour of its precision. */
function strip(result, store) {
  if (!timed(result)) return [];
  const total = result.layers.reduce((sum, layer) => sum + (numberIn(layer, "time_ms") ?? 0), 0);
  const parts = result.layers.map((layer, k) => {
    const ms = numberIn(layer, "time_ms") ?? 0;
    const words = [layer.name, milliseconds(ms), (layer.precision || "?").toUpperCase(), layer.type].join(" · ");
    const part = h("i", { title: words, class: layer.role, onclick: () => store.set({ selected: k }) });
    part.style.width = `${total ? (100 * ms) / total : 0}%`;
    part.style.background = precisionColour(layer.precision);
    return part;
  });
  const keys = [...new Set(result.layers.map((layer) => layer.precision || ""))].map((precision) => {
    const mark = h("i", { class: "swatch" });
    mark.style.background = precisionColour(precision);
    return h("span", { class: "key" }, mark, precision ? precision.toUpperCase() : "unknown");
  });
  return [
    h("div", { class: "stack strip", "aria-hidden": "true" }, ...parts),
    h("div", { class: "legend" }, ...keys, h("span", { class: "muted" }, "each layer as wide as its time, in the order of execution; striped: it only moves or converts data")),
  ];
}

/** Time and bytes of all layers by precision and by type. */
function times(result) {
  if (isModel(result) || !result.by_precision?.length) return [];
  const columns = [
    ["layers", (g) => number(g.layers)],
    ["time", (g) => milliseconds(numberIn(g, "ms"))],
    ["of all", (g) => share(numberIn(g, "share"))],
    ["MACs", (g) => scaled(numberIn(g, "macs"))],
    ["weights", (g) => bytes(numberIn(g, "weight_bytes"))],
    ["activations", (g) => bytes(numberIn(g, "activation_bytes"))],
  ];
  const table = (what, words, groups, nameOfGroup) => {
    const used = columns.filter(([, word]) => groups.some((g) => word(g) !== "–"));
    const rows = groups.map((g) => [nameOfGroup(g.name || "unknown"), ...used.map(([, word]) => word(g))]);
    return [h("h3", {}, words), plainTable(words, [what, ...used.map(([head]) => head)], rows)];
  };
  return [h("h2", {}, timed(result) ? "Where the time goes" : "Layers by precision and type"), ...table("precision", "By precision", result.by_precision, (name) => name.toUpperCase()), ...table("type", "By type of layer", result.by_type, (name) => name)];
}

function scaled(value) {
  if (value === null) return "–";
  const [factor, unit] = [[1e9, " G"], [1e6, " M"], [1e3, " k"], [1, ""]].find(([f]) => value >= f) ?? [1, ""];
  return `${number(value / factor, 3)}${unit}`;
}

const bytes = (value) => (value === null ? "–" : `${scaled(value)}${value >= 1e3 ? "" : " "}B`);

/** What costs time, each with its evidence and what to do. */
function costs({ lints = [] }) {
  if (!lints.length) return [];
  const entry = ({ title, layers: named, evidence, advice, ms }) =>
    h(
      "details",
      { class: "cost" },
      h("summary", {}, h("strong", {}, title), ` (${named.length}${ms === null ? "" : `, ${milliseconds(ms)}`})`),
      h("p", {}, nameOf(evidence), "."),
      advice ? h("p", { class: "remedy" }, nameOf(advice)) : null,
      list(title, named.map((name) => h("li", {}, nameOf(name)))),
    );
  const entries = lints.map(entry);
  for (const first of entries.slice(0, 2)) first.open = true;
  return [h("h2", {}, "What costs time"), ...entries];
}

/** Matrix products by precision: a bar of their number, of their work and of their time. */
function products(found) {
  if (!found.length) return [];
  const rows = [
    ["layers", found.map((p) => p.products), number],
    ["multiply-accumulates", found.map((p) => numberIn(p, "macs")), (v) => (v >= LARGE ? `${number(v / 1e6, 3)} M` : number(v))],
    ["time", found.map((p) => numberIn(p, "ms")), milliseconds],
  ].filter(([, values]) => values.some((v) => v > 0));
  const keys = found.map((p, k) => h("span", { class: "key" }, groupMark(k), nameOf((p.precision || "unknown").toUpperCase())));
  const bars = found.length > 1 ? [h("div", { class: "legend" }, ...keys), ...rows.map(([words, values]) => stack(words, values))] : [];
  return [
    h("h2", {}, "Matrix products by precision"),
    ...bars,
    plainTable(
      "Matrix products by precision",
      ["precision", ...rows.map(([words]) => words)],
      found.map((p, k) => [(p.precision || "unknown").toUpperCase(), ...rows.map(([, values, word]) => word(values[k]))]),
    ),
  ];
}

function stack(words, values) {
  const total = values.reduce((sum, v) => sum + (v ?? 0), 0);
  const parts = values.map((v, k) => {
    const part = h("i", { class: `g${k % 8}` });
    part.style.width = `${total ? (100 * (v ?? 0)) / total : 0}%`;
    return part;
  });
  return h("div", {}, h("div", { class: "muted" }, words), h("div", { class: "stack", "aria-hidden": "true" }, ...parts));
}

function layers(result, store) {
  const bound = new Map((result.bounds ?? []).map((b) => [b.layer, b]));
  const rows = result.layers.map((layer, k) => ({
    name: layer.name,
    place: k + 1,
    type: layer.type,
    role: layer.role,
    precision: (layer.precision || "–").toUpperCase(),
    time: numberIn(layer, "time_ms"),
    macs: numberIn(layer, "macs"),
    weights: numberIn(layer, "weight_bytes"),
    activations: numberIn(layer, "activation_bytes"),
    intensity: bound.get(layer.name)?.intensity ?? null,
    reached: numberIn(bound.get(layer.name), "reached"),
    limit: bound.get(layer.name)?.limit ?? "",
    nodes: layer.onnx_nodes.length,
    names: layer.onnx_nodes.join(", "),
    formats: formats(layer),
    tactic: layer.tactic,
    sparse: layer.sparse === null ? null : layer.sparse ? "yes" : "no",
    origin: layer.origin,
  }));
  const total = rows.reduce((sum, row) => sum + (row.time ?? 0), 0);
  const columns = [
    { field: "name", title: "layer", kind: "text" },
    { field: "place", title: "#" },
    { field: "type", title: "type", kind: "text" },
    { field: "role", title: "role", kind: "text" },
    { field: "precision", title: "precision", kind: "text" },
    { field: "time", title: "time, ms", word: (v) => number(v, 3) },
    { field: "part", title: "of all", word: share },
    { field: "macs", title: "MACs", word: scaled },
    { field: "weights", title: "weights", word: bytes },
    { field: "activations", title: "activations", word: bytes },
    { field: "intensity", title: "operations per byte", word: (v) => number(v, 3) },
    { field: "reached", title: "of the roofline", word: share },
    { field: "limit", title: "limited by", kind: "text" },
    { field: "nodes", title: "nodes" },
    { field: "names", title: "ONNX nodes", kind: "text" },
    { field: "formats", title: "reads → writes", kind: "text" },
    { field: "tactic", title: "tactic", kind: "text" },
    { field: "sparse", title: "2:4 sparse", kind: "text" },
    { field: "origin", title: "added for", kind: "text" },
  ];
  for (const row of rows) row.part = row.time === null || !total ? null : row.time / total;
  const has = (v) => v !== null && v !== "" && v !== undefined && v !== "–";
  const used = columns.filter((c) => rows.some((row) => has(row[c.field])));
  const timed = rows.some((row) => row.time !== null);
  const table = grid("Layers of the engine", used, rows, {
    choose: ({ place }) => store.set({ selected: place - 1 }),
    isSelected: ({ place }) => place - 1 === store.get().selected,
    sort: timed ? "time" : "place",
    descending: timed,
  });
  const off = store.on(["selected"], () => (table.isConnected ? table.mark() : off()));
  return table;
}

/** The types and formats of what a layer reads and writes. */
function formats({ inputs, outputs }) {
  const side = (tensors) => [...new Set(tensors.map((t) => [t.dtype, t.format].filter(Boolean).join(" ")).filter(Boolean))].join(", ");
  const [from, to] = [side(inputs), side(outputs)];
  return from || to ? `${from || "?"} → ${to || "?"}` : "";
}

function odd(result) {
  const lists = [
    ["Products in floating point between quantized ones", result.left_high, (name) => name],
    ["Precision changes between products", result.precision_changes, (c) => `${c.from} (${c.from_precision || "?"}) → ${c.to} (${c.to_precision || "?"})`],
    ["Q/DQ pairs that no quantized product reads", result.unread_qdq, (p) => `${p.node}, computed by ${p.layer}`],
    ["Nodes that no layer computes", result.unmapped_nodes, (n) => `${n.name} (${n.op_type})`],
  ].filter(([, found]) => found.length);
  if (!lists.length) return [];
  const entry = ([words, found, word]) =>
    h("details", {}, h("summary", {}, `${words} (${found.length})`), list(words, found.map((f) => h("li", {}, nameOf(word(f))))));
  return [h("h2", {}, "What to look at"), ...lists.map(entry)];
}

function audit(found) {
  if (!found) return [];
  const rows = found.layers.map((a) => ({
    name: a.name,
    op: a.op_type,
    requested: a.requested.toUpperCase(),
    built: (a.built || "–").toUpperCase(),
    verdict: a.verdict,
    note: [a.note, a.advice].filter(Boolean).join(" "),
    engine: a.engine_layer,
  }));
  const columns = [
    { field: "name", title: "layer", kind: "text" },
    { field: "op", title: "op", kind: "text" },
    { field: "requested", title: "requested", kind: "text" },
    { field: "built", title: "built", kind: "text" },
    { field: "verdict", title: "verdict", kind: "text" },
    { field: "note", title: "note", kind: "text" },
    { field: "engine", title: "layer of the engine", kind: "text" },
  ];
  const words = found.passed ? "Every layer was built as planned." : `${counted(found.mismatches.length, "layer")} in another precision than planned.`;
  return [h("h2", {}, "Requested and built precision"), h("p", { class: found.passed ? "good" : "bad" }, words), grid("Requested and built precision", columns, rows)];
}

function difference(diff) {
  if (!diff) return [];
  const matched = { structure: " (matched by their order, work and shapes)", totals: ": nothing matches, so only totals are compared" };
  const side = (s) => (s ? [s.precision, s.tactic, s.time_ms === null ? "" : milliseconds(s.time_ms), s.layer].filter(Boolean).join(", ") : "–");
  const rows = diff.changes.map((c) => ({ node: c.node, changed: c.changed.join(", "), before: side(c.before), after: side(c.after) }));
  const columns = [
    { field: "node", title: "node", kind: "text" },
    { field: "changed", title: "changed", kind: "text" },
    { field: "before", title: "here", kind: "text" },
    { field: "after", title: "there", kind: "text" },
  ];
  return [
    h("h2", {}, "Against ", nameOf(diff.other)),
    h("p", {}, `${counted(diff.changes.length, "node")} of ${diff.compared_nodes} differ${matched[diff.matched_by] ?? ""}.`),
    ...work(diff.work ?? []),
    rows.length ? grid("Differences of the engines", columns, rows) : null,
  ].filter(Boolean);
}

const KINDS = { matrix: "products", other: "other work", reformat: "reformats and Q/DQ", opaque: "unknown (Myelin)" };

/** What the other engine gains and loses, by the kind of work. */
function work(found) {
  const rows = found.map((w) => {
    const [before, after] = [numberIn(w, "ms_before"), numberIn(w, "ms_after")];
    const change = before === null || after === null ? "–" : `${after < before ? "−" : "+"}${milliseconds(Math.abs(after - before))}`;
    return [KINDS[w.role] ?? w.role, number(w.layers_before), number(w.layers_after), milliseconds(before), milliseconds(after), change];
  });
  return rows.length ? [plainTable("Work of the two engines", ["work", "layers here", "there", "time here", "there", "change"], rows)] : [];
}

function events(found) {
  if (!found.length) return [];
  const entry = ({ kind, text }) => h("li", { class: kind === "error" ? "bad" : kind === "warning" ? "warn" : "" }, `${kind}: `, nameOf(text));
  return [h("details", {}, h("summary", {}, `Messages of the build (${found.length})`), list("Build log", found.map(entry)))];
}

function list(words, entries) {
  const scrolls = h("ul", { class: "pins", tabindex: "0", "aria-label": words }, ...entries);
  return withScrollHints(h("div", {}, scrolls), { right: "", below: "More below: scroll ↓" });
}
