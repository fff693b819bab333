/** What is drawn: boxes with their colours, edges with changes of precision, hulls of kernels. */

import { FIGURES } from "../figures.js";
import { visible } from "./tree.js";

const PLANNED = FIGURES.find((f) => f.name === "planned");

/**
 * @param {object} run
 * @param {object[]} runs all of the page, whose values share one scale
 * @param {object} layout of layout.js
 * @param {object} tree of tree.js
 * @param {Set<string>} open keys of the open blocks
 * @param {object} figure of figures.js, or null
 * @param {Map<string, string>|null} pinned layers kept in a higher precision, and in which
 */
export function sceneOf(run, runs, layout, tree, open, figure, pinned) {
  const nodes = run.network.nodes;
  const valuesOf = (of) => of.network?.nodes.map((node) => (figure ? valueOf(of, node, figure, pinned) : null)) ?? [];
  const values = valuesOf(run);
  const all = runs.flatMap((of) => (of === run ? values : valuesOf(of)));
  const extent = extentOf(all);
  const boxes = [...layout.boxes.values()].map((box) => {
    const value = figure && !box.open ? together(box.item, nodes, values, figure) : null;
    return {
      ...box,
      reformats: box.open ? 0 : reformatsOf(run, box.item),
      kept: box.item.kind === "node" && (pinned?.has(layerName(nodes[box.item.node])) ?? false),
      colour: value === null ? null : figure.colour(value, extent),
      word: value === null || figure.kind === "category" ? "" : figure.word(value),
    };
  });
  return {
    boxes,
    edges: layout.edges.map((edge) => ({ ...edge, ...around(edge.points), change: changeOf(run, edge, pinned) })),
    hulls: run.kernels.filter(({ role }) => role !== "reformat").map((kernel) => hullOf(kernel, layout, tree, open)).filter(Boolean),
    extent,
    found: [...new Set(all.filter((v) => v !== null))].sort(),
  };
}

function valueOf(run, node, figure, pinned) {
  return figure.name === "planned" ? planned(run, node, pinned) : figure.of(run, node);
}

const reformatted = new WeakMap();

/** How many kernels only move or convert data for a node, or for the nodes of a block. */
function reformatsOf(run, item) {
  if (!reformatted.has(run)) {
    const first = run.kernels.filter(({ role, nodes }) => role === "reformat" && nodes.length).map(({ nodes }) => nodes[0]);
    reformatted.set(run, first);
  }
  const counts = (node) => reformatted.get(run).filter((k) => k === node).length;
  if (item.kind === "node") return counts(item.node);
  return item.kind === "group" ? item.nodes.reduce((sum, node) => sum + counts(node), 0) : 0;
}

/** The layer that a node belongs to, whether the result has it or not. */
const layerName = (node) => node.group || node.name;

const planned = (run, node, pinned) => pinned?.get(layerName(node)) ?? PLANNED.of(run, node);

function extentOf(values) {
  const finite = values.filter((v) => Number.isFinite(v));
  return finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1];
}

/** The value of a node, or that of all nodes of a block. */
function together(item, nodes, values, figure) {
  if (item.kind === "node") return values[item.node];
  if (item.kind !== "group") return null;
  const seen = new Set();
  const known = item.nodes
    .filter((k) => {
      if (values[k] === null) return false;
      if (!figure.perLayer) return true;
      const fresh = !seen.has(nodes[k].layer);
      seen.add(nodes[k].layer);
      return fresh;
    })
    .map((k) => values[k]);
  return known.length ? figure.together(known) : null;
}

/** The colour of the precision that follows, where an edge leads from one to another. */
function changeOf(run, edge, pinned) {
  if (edge.source.kind !== "node" || edge.target.kind !== "node") return null;
  const { nodes } = run.network;
  const [a, b] = [nodes[edge.source.node], nodes[edge.target.node]];
  const of = (node) => node.built || planned(run, node, pinned);
  const [before, after] = [of(a), of(b)];
  if (!before || !after || before === after) return null;
  return PLANNED.colour(after);
}

function around(points) {
  const xs = points.filter((_, k) => k % 2 === 0);
  const ys = points.filter((_, k) => k % 2 === 1);
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return { x, y, w: Math.max(...xs) - x, h: Math.max(...ys) - y };
}

/**
 * A frame around all that a kernel of the engine computes, where that is more than one thing. It
 * holds nothing else: where something lies between, it is of several parts, joined by lines. A
 * closed block of which the kernel computes a part has no frame.
 */
function hullOf(kernel, layout, tree, open) {
  const items = new Set(kernel.nodes.map((k) => visible(tree.leaves[k], open)));
  const nodes = new Set(kernel.nodes);
  const whole = (item) => item.kind !== "group" || item.nodes.every((k) => nodes.has(k));
  if (items.size < 2 || ![...items].every(whole)) return null;
  const others = [...layout.boxes.values()].filter((box) => !box.open && !items.has(box.item));
  const parts = [];
  for (const item of items) {
    const frame = framed(layout.boxes.get(item));
    const k = parts.findIndex((part) => !others.some((box) => overlap(box, union(part, frame))));
    if (k < 0) parts.push(frame);
    else parts[k] = union(parts[k], frame);
  }
  return { kernel, parts, ...parts.reduce(union), colour: kernel.precision ? PLANNED.colour(kernel.precision) : UNKNOWN };
}

const MARGIN = 9;
/** Of a kernel whose precision is not known. */
const UNKNOWN = "#888888";

const framed = ({ x, y, w, h }) => ({ x: x - MARGIN, y: y - MARGIN, w: w + 2 * MARGIN, h: h + 2 * MARGIN });

function union(a, b) {
  const [x, y] = [Math.min(a.x, b.x), Math.min(a.y, b.y)];
  return { x, y, w: Math.max(a.x + a.w, b.x + b.w) - x, h: Math.max(a.y + a.h, b.y + b.h) - y };
}

const overlap = (a, b) => a.x < b.x + b.w && a.x + a.w > b.x && a.y < b.y + b.h && a.y + a.h > b.y;
