/** The page: reads its data, builds the sections that the data have something for. */

import { h } from "./dom.js";
import { FileSource, ServerSource, follow } from "./source.js";
import { Store } from "./store.js";
import "./style/base.css";
import * as activations from "./activations.js";
import * as bisect from "./bisect.js";
import * as calibration from "./calibration.js";
import * as card from "./card.js";
import * as curve from "./curve.js";
import * as depth from "./depth.js";
import { figuresOf } from "./figures.js";
import * as graph from "./graph/graph.js";
import * as groups from "./groups.js";
import * as inspect from "./inspect.js";
import * as pair from "./pair.js";
import * as repair from "./repair.js";
import * as samples from "./samples.js";
import * as sweep from "./sweep.js";
import * as table from "./table.js";
import * as top from "./top.js";

const of = (...kinds) => (data) => kinds.includes(data.runs[0].kind) && data.runs[0].result !== null;
const compared = (data) => data.runs.some((r) => r.kind === "compare" && r.result?.layers.length);

const several = (data) => data.runs.length > 1 && compared(data);
/** A graph without colours tells only what the network looks like: that is enough for a network alone. */
const drawn = (data) => data.runs.some((r) => r.network && (r.kind === "model" || figuresOf(r).length));
const withCard = (data) => compared(data) || (drawn(data) && of("bisect", "inspect")(data));

/** Sections in their order: what they are called, whether there is one, how wide they are. */
const SECTIONS = [
  ["bisect", "Error against cost", bisect, of("bisect"), "wide"],
  ["repair", "Remedies", repair, of("repair"), "wide"],
  ["sweep", "Combinations", sweep, of("sweep"), "wide"],
  ["pair", "Differences of the runs", pair, several, "wide"],
  ["curve", "Kept in FP32 together", curve, (data) => data.runs.some((run) => run.result?.curve?.points.length), "wide"],
  ["groups", "Groups of samples", groups, (data) => data.runs.some(groups.has), "wide"],
  ["depth", "Error against depth", depth, compared, "wide"],
  ["samples", "Samples that lose most", samples, (data) => data.runs.some((run) => run.shown?.length), "wide"],
  ["calibration", "Calibration", calibration, of("calibrate", "ranges"), "wide"],
  ["inspect", "Engine", inspect, of("inspect"), "wide"],
  ["graph", "Graph", graph, drawn, (data) => (withCard(data) ? "" : "wide")],
  ["card", "Layer", card, withCard, "beside"],
  ["layers", "Layers", table, compared, "wide"],
  ["activations", "Activations", activations, compared, "wide"],
  ["engine-layers", "All layers", { mount: inspect.mountLayers }, of("inspect"), "wide"],
];

/** The layer that is looked at first: the worst, the slowest, the first that is pinned; null for none. */
function selectedAtFirst({ kind, result }) {
  const layers = result?.layers ?? [];
  if (!layers.length || !["compare", "bisect", "inspect"].includes(kind)) return null;
  return kind === "inspect" ? inspect.slowest(layers) : 0;
}

const data = JSON.parse(document.getElementById("page-data").textContent);
for (const run of data.runs) run.network?.nodes.forEach((node, index) => (node.index = index));
const store = new Store({
  run: 0,
  selected: selectedAtFirst(data.runs[0]),
  hovered: null,
  figure: data.runs[0].kind === "bisect" ? "planned" : "gain",
  pinned: null,
  sample: null,
  channel: null,
});
const page = { data, store, source: data.served ? new ServerSource(data.version) : new FileSource(data) };

const app = document.getElementById("app");
app.replaceChildren(h("a", { class: "skip", href: "#main" }, "Skip to the result"));
const head = h("header", {});
const sections = h("main", { id: "main", class: "sections" });
app.append(head, sections);
if (several(data)) {
  const host = h("section", { id: "totals", class: "panel wide", "aria-label": "All runs" });
  sections.append(host);
  pair.mountTotals(host, page);
}
top.mount(sections, page);
for (const [id, label, module, wanted, width] of SECTIONS) {
  if (!wanted(data)) continue;
  const wide = typeof width === "function" ? width(data) : width;
  const host = h("section", { id, class: `panel ${wide}`, "aria-label": label });
  sections.append(host);
  module.mount(host, page);
}
if (data.served) {
  const live = h("p", { class: "live warn", role: "status" });
  head.append(live);
  follow(
    data.version,
    (progress) => (live.textContent = progress),
    (why) => (why === "new" ? location.reload() : (live.textContent = "qdebug view has ended: nothing more can be read.")),
  );
}
app.page = page;
performance.mark("page-ready");
