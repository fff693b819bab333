/** The graph: toolbar, one canvas for each run, what the one in focus is, and the legend. */

import { h, nameOf, printable } from "../dom.js";
import { FIGURES, aloneDb, figuresOf, gainOf, layerOf, sameLayer, tensorOf, timeOf } from "../figures.js";
import { counted, decibels, gainDb, milliseconds, numberIn } from "../format.js";
import { Store } from "../store.js";
import { Canvas } from "./canvas.js";
import { openAtFirst, treeOf } from "./tree.js";
import "../style/graph.css";

/** So many things are drawn at first at most. */
const AT_FIRST = 160;

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  host.classList.add("graph");
  const runs = data.runs.filter((run) => run.network);
  const trees = runs.map((run) => treeOf(run.network));
  const figures = FIGURES.filter((f) => runs.some((run) => figuresOf(run).includes(f)));
  const shared = new Store({
    view: { k: 1, x: 0, y: 0 },
    moved: false,
    open: openAtFirst(trees[0].root, AT_FIRST),
    focus: null,
    figure: figures.find((f) => f.name === store.get().figure) ?? figures[0] ?? null,
    paths: false,
    hulls: runs.some((run) => run.kind === "inspect" && fuses(run)),
  });
  const canvases = h("div", { class: "canvases" });
  const status = h("p", { class: "status", role: "status" });
  const legend = h("ul", { class: "legend" });
  const hint = "Drag to move. Click the graph, then the wheel zooms and the arrow keys follow the edges; 0 shows everything.";
  host.append(toolbar(), canvases, legend, status, h("p", { class: "hint muted screen" }, hint));
  const views = runs.map((run, k) => {
    const frame = h("div", { class: "canvas" });
    canvases.append(frame);
    const view = new Canvas(frame, run, data.runs, trees[k], shared, store, describe);
    if (runs.length > 1) frame.append(h("div", { class: "which" }, "AB"[k] ?? `${k + 1}`));
    return view;
  });

  const showLegend = () => legend.replaceChildren(...legendOf(shared.get(), views, runs));
  const showStatus = () => {
    const item = shared.get().focus;
    const view = [current(), ...views].find((v) => v.own(item)) ?? current();
    const focus = view.own(item);
    status.replaceChildren(...(focus ? described(describe(view.run, focus)) : []));
  };
  shared.on(["figure", "open", "hulls"], showLegend);
  shared.on(["focus"], showStatus);
  store.on(["pinned"], showLegend);
  store.on(["run"], showStatus);
  store.on(["run", "selected"], ({ selected }) => {
    if (selected !== null) goToLayer(selected);
  });
  for (const view of views) view.peers = views;
  showLegend();
  host.view = views[0];

  /** The view of the run whose layers are selected, or else the first. */
  function current() {
    return views.find((view) => view.run === data.runs[store.get().run]) ?? views[0];
  }

  /** A layer of a run without a network is found by its name. */
  function goToLayer(selected) {
    const view = current();
    const layer = sameLayer(data.runs[store.get().run], selected, view.run);
    const { nodes } = view.run.network;
    const k = layer === null ? -1 : nodes.findIndex((node) => node.layer === layer);
    if (k < 0) return;
    const focus = view.own(shared.get().focus);
    if (focus?.kind === "node" && nodes[focus.node].layer === layer) return;
    goTo(view.tree.leaves[k]);
  }

  function goTo(leaf) {
    const open = new Set(shared.get().open);
    for (let block = leaf.parent; block; block = block.parent) open.add(block.key);
    shared.set({ open, focus: leaf });
    const view = current();
    if (view.own(leaf)) view.bringInSight(view.own(leaf));
  }

  function toolbar() {
    const choice = h(
      "select",
      { "aria-label": "Colour by", onchange: (e) => shared.set({ figure: figures.find((f) => f.name === e.target.value) ?? null }) },
      ...figures.map((f) => h("option", { value: f.name, selected: f === shared.get().figure }, labelOf(f, runs))),
      h("option", { value: "" }, "No colour"),
    );
    const opened = (keys) => {
      shared.set({ open: new Set(keys) });
      const { focus } = shared.get();
      if (focus) views[0].bringInSight(focus);
      else views[0].fit();
    };
    const all = () => opened(trees[0].groups.keys());
    const none = () => {
      opened([""]);
      views[0].fit();
    };
    return h(
      "div",
      { class: "bar screen" },
      h("h2", {}, "Graph"),
      finder(),
      h("label", {}, h("span", {}, "Colour"), choice),
      switchOf("paths", "Paths", "Show what the node in focus depends on, and what depends on it"),
      runs.some(fuses) &&
        switchOf("hulls", "Kernels", "Frame the nodes that a kernel of the engine computes together"),
      trees[0].groups.size > 1 && h("button", { type: "button", onclick: all }, "Open all"),
      trees[0].groups.size > 1 && h("button", { type: "button", onclick: none }, "Close all"),
      h("button", { type: "button", onclick: () => views[0].fit() }, "Fit"),
      h("button", { type: "button", onclick: () => (document.fullscreenElement ? document.exitFullscreen() : host.requestFullscreen?.()) }, "Full screen"),
    );
  }

  function switchOf(key, label, title) {
    const button = h("button", { type: "button", "aria-pressed": String(shared.get()[key]), title }, label);
    button.addEventListener("click", () => shared.set({ [key]: !shared.get()[key] }));
    shared.on([key], (state) => button.setAttribute("aria-pressed", String(state[key])));
    return button;
  }

  function finder() {
    const input = h("input", { type: "search", placeholder: "Find a node", "aria-label": "Find a node" });
    const found = h("span", { class: "muted", role: "status" });
    let at = -1;
    let matches = [];
    input.addEventListener("input", () => {
      const text = input.value.toLowerCase();
      at = -1;
      matches = text ? trees[0].leaves.filter((leaf) => searchable(leaf).includes(text)) : [];
      found.textContent = text ? `${matches.length} found` : "";
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !matches.length) return;
      at = (at + (event.shiftKey ? matches.length - 1 : 1)) % matches.length;
      found.textContent = `${at + 1} of ${matches.length}`;
      goTo(matches[at]);
      const view = current().own(matches[at]) ? current() : views[0];
      view.choose(view.own(matches[at]));
    });
    return h("span", { class: "find" }, input, found);
  }

  function searchable(leaf) {
    if (leaf.kind !== "node") return `${leaf.label} ${leaf.sublabel}`.toLowerCase();
    const node = runs[0].network.nodes[leaf.node];
    return `${node.name} ${node.op} ${node.tensors.join(" ")}`.toLowerCase();
  }
}

/** A model that no one has built has precisions, but none that is built. */
const isModel = ({ result }) => result?.source === "onnx";
const labelOf = (figure, runs) => (figure.name === "built" && runs.every(isModel) ? "Precision" : figure.label);

/** Whether a kernel of the engine computes several nodes together. */
const fuses = (run) => !isModel(run) && run.kernels.some((kernel) => kernel.nodes.length > 1);

/** Lines about a node or a block, for the tip and the status. */
function describe(run, item) {
  if (item.kind === "group") return [h("strong", {}, item.label), `${item.nodes.length} nodes`];
  if (item.kind !== "node") return [h("strong", {}, item.label), nameOf(item.sublabel)];
  const node = run.network.nodes[item.node];
  const layer = layerOf(run, node);
  const figures = [
    ["gained at the outputs", (v) => `${gainDb(v)} dB`, layer ? gainOf(layer) : null],
    ["this tensor", decibels, numberIn(tensorOf(run, node), "sqnr_db")],
    ["local", decibels, numberIn(layer, "local_sqnr_db")],
    ["alone", decibels, layer ? aloneDb(layer) : null],
    ["time", milliseconds, timeOf(run, node)],
  ];
  const kernels = isModel(run) ? [] : run.kernels.filter((k) => k.nodes.includes(item.node));
  return [
    h("strong", {}, `${node.op} `, nameOf(node.name)),
    [node.shape, node.weight && `weight ${node.weight}`].filter(Boolean).join(", "),
    [node.planned && `requested: ${node.planned.toUpperCase()}`, node.built && `${isModel(run) ? "" : "built: "}${node.built.toUpperCase()}`]
      .filter(Boolean)
      .join(", "),
    figures
      .filter(([, , value]) => value !== null && value !== undefined)
      .map(([label, word, value]) => `${label} ${word(value)}`)
      .join(", "),
    kernels.length ? nameOf(`kernel ${kernels[0].name}`) : "",
  ].filter((line) => line !== "");
}

function described(lines) {
  return lines.flatMap((line, k) => (k ? [" · ", line] : [line]));
}

const SHAPES = {
  square: "M0 0H14V14H0Z",
  diamond: "M7 0L14 7L7 14L0 7Z",
  frame: "M0 0H14V14H0ZM3 3V11H11V3Z",
};

function legendOf({ figure, hulls }, views, runs) {
  const { extent, found } = views[0].scene;
  const entries = figure ? figure.legend(extent, found) : [];
  const title = figure ? [h("li", { class: "paper" }, `${labelOf(figure, runs)}:`)] : [];
  const items = entries.map(([colour, words]) => h("li", {}, swatch(SHAPES.square, colour), printable(words)));
  const change = views.some((view) => view.scene.edges.some((edge) => edge.change));
  if (change) items.push(h("li", {}, swatch(SHAPES.diamond, "none"), "the precision changes here, to the one of this colour"));
  if (hulls) items.push(...frames(views));
  for (const [k, run] of runs.entries()) {
    const reformats = run.kernels.filter(({ role }) => role === "reformat").length;
    const where = runs.length > 1 ? `${"AB"[k] ?? k + 1}: ` : "";
    if (reformats && !isModel(run)) items.push(h("li", {}, `${where}⇄ ${counted(reformats, "kernel")} that only ${reformats === 1 ? "moves or converts" : "move or convert"} data`));
  }
  return [...title, ...items];
}

/** What the frames of kernels stand for. */
function frames(views) {
  const hulls = views.flatMap((view) => view.scene.hulls);
  const found = new Map(hulls.map(({ kernel, colour }) => [kernel.precision, colour]));
  const words = (precision) => (precision ? `a kernel in ${precision.toUpperCase()}` : "a kernel, its precision unknown");
  const items = [...found].map(([precision, colour]) => h("li", {}, swatch(SHAPES.frame, colour), printable(words(precision))));
  return items;
}

function swatch(path, colour) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 14 14");
  svg.setAttribute("aria-hidden", "true");
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
  shape.setAttribute("d", path);
  shape.setAttribute("fill", colour);
  shape.setAttribute("stroke", "currentColor");
  shape.setAttribute("stroke-opacity", "0.4");
  svg.append(shape);
  return svg;
}
