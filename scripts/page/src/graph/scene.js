/** What is drawn: boxes with their colours, edges with changes of precision, hulls of kernels. */

import { FIGURES } from "../figures.js";
import { visible } from "./tree.js";

const PLANNED = FIGURES.find((f) => f.name === "planned");

/**
 * @param {object} run
 * @param {object} layout of layout.js
 * @param {object} tree of tree.js
 * @param {Set<string>} open keys of the open blocks
 * @param {object} figure of figures.js, or null
 * @param {Map<string, string>|null} pinned layers kept in a higher precision, and in which
 */
export function sceneOf(run, layout, tree, open, figure, pinned) {
  const nodes = run.network.nodes;
  const values = nodes.map((node) => (figure ? valueOf(run, node, figure, pinned) : null));
  const extent = extentOf(values);
  const boxes = [...layout.boxes.values()].map((box) => {
    const value = figure && !box.open ? together(box.item, nodes, values, figure) : null;
    return {
      ...box,
      kept: box.item.kind === "node" && (pinned?.has(layerName(nodes[box.item.node])) ?? false),
      colour: value === null ? null : figure.colour(value, extent),
      word: value === null || figure.kind === "category" ? "" : figure.word(value),
    };
  });
  return {
    boxes,
    edges: layout.edges.map((edge) => ({ ...edge, ...around(edge.points), change: changeOf(run, edge, pinned) })),
    hulls: hullsOf(run, layout, tree, open),
    extent,
    found: [...new Set(values.filter((v) => v !== null))].sort(),
  };
}

function valueOf(run, node, figure, pinned) {
  return figure.name === "planned" ? planned(run, node, pinned) : figure.of(run, node);
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

/** A frame around all that a kernel of the engine computes, where that is more than one thing. */
function hullsOf(run, layout, tree, open) {
  return run.kernels.flatMap((kernel) => {
    const items = new Set(kernel.nodes.map((k) => visible(tree.leaves[k], open)));
    if (items.size < 2) return [];
    const boxes = [...items].map((item) => layout.boxes.get(item));
    const left = Math.min(...boxes.map((b) => b.x)) - 9;
    const top = Math.min(...boxes.map((b) => b.y)) - 9;
    const right = Math.max(...boxes.map((b) => b.x + b.w)) + 9;
    const bottom = Math.max(...boxes.map((b) => b.y + b.h)) + 9;
    return [{ kernel, x: left, y: top, w: right - left, h: bottom - top, colour: PLANNED.colour(kernel.precision || "mixed") }];
  });
}
