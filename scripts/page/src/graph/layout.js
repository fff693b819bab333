/**
 * Where everything is drawn. Each open block is laid out by itself, inside out (dagre: layers of
 * nodes, as Sugiyama, Tagawa and Toda 1981), so a large network costs no more than its parts.
 *
 * @typedef {{item: object, x: number, y: number, w: number, h: number, depth: number, open: boolean}} Box
 *   x and y are those of the upper left corner
 * @typedef {{source: object, target: object, from: object, to: object, points: number[]}} Edge
 *   source and target: leaves; from and to: the boxes' items; points: x and y by turns
 */

import dagre from "@dagrejs/dagre";
import { visible } from "./tree.js";

const PADDING = 16;
const TITLE = 24;
const MANY = 250;

/** @returns {{boxes: Map<object, Box>, edges: Edge[], width: number, height: number}} */
export function laidOut(root, open) {
  const placed = place(root, open);
  const boxes = new Map();
  const edges = [];
  spread(placed, 0, 0, 0, boxes, edges, open);
  return { boxes, edges, width: placed.w, height: placed.h };
}

/** The size of an item, and, for an open block, where its children are in it. */
function place(item, open) {
  if (item.kind !== "group") return { item, w: width(item.label, item.sublabel), h: 40 };
  if (!open.has(item.key)) return { item, w: width(item.label, `${item.nodes.length} nodes`) + 24, h: 46 };
  const children = item.children.map((child) => place(child, open));
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({
    rankdir: "TB",
    nodesep: 22,
    ranksep: 34,
    edgesep: 12,
    ranker: children.length > MANY ? "longest-path" : "network-simplex",
  });
  graph.setDefaultEdgeLabel(() => ({}));
  children.forEach((child) => graph.setNode(child.item.key, { width: child.w, height: child.h }));
  const joins = new Map();
  for (const edge of item.edges) {
    const key = `${edge.from.key}\u0000${edge.to.key}`;
    if (!joins.has(key)) joins.set(key, []);
    joins.get(key).push(edge);
    graph.setEdge(edge.from.key, edge.to.key);
  }
  dagre.layout(graph);
  const { width: w = 0, height: h = 0 } = graph.graph();
  for (const child of children) {
    const { x, y } = graph.node(child.item.key);
    child.x = x - child.w / 2 + PADDING;
    child.y = y - child.h / 2 + PADDING + TITLE;
  }
  const paths = [...joins.values()].map((all) => {
    const { points } = graph.edge(all[0].from.key, all[0].to.key);
    return { all, points: points.flatMap(({ x, y }) => [x + PADDING, y + PADDING + TITLE]) };
  });
  return { item, w: w + 2 * PADDING, h: h + 2 * PADDING + TITLE, children, paths };
}

/** Of a box with these lines, the first of which is bold. */
function width(head, line) {
  const longest = Math.max(7.6 * Math.min(26, head.length), 6.2 * Math.min(30, line.length));
  return Math.max(84, Math.round(longest) + 18);
}

/** Absolute positions; edges go on into open blocks, to what they really join. */
function spread(placed, left, top, depth, boxes, edges, open) {
  const isOpen = placed.children !== undefined;
  boxes.set(placed.item, { item: placed.item, x: left, y: top, w: placed.w, h: placed.h, depth, open: isOpen });
  if (!isOpen) return;
  for (const child of placed.children) {
    spread(child, left + child.x, top + child.y, depth + 1, boxes, edges, open);
  }
  for (const { all, points } of placed.paths) {
    const moved = points.map((p, k) => p + (k % 2 ? top : left));
    const drawn = new Set();
    for (const { source, target } of all) {
      const [from, to] = [visible(source, open), visible(target, open)];
      const key = `${from.key}\u0000${to.key}`;
      if (drawn.has(key)) continue;
      drawn.add(key);
      edges.push({ source, target, from, to, points: extended(moved, boxes.get(from), boxes.get(to)) });
    }
  }
}

/** A path that starts and ends at these boxes, which may lie within those it was laid out for. */
function extended(points, from, to) {
  const path = [...points];
  const [start, end] = [from.y + from.h, to.y];
  if (start < path[1] - 1) path.unshift(from.x + from.w / 2, start);
  if (end > path.at(-1) + 1) path.push(to.x + to.w / 2, end);
  return path;
}
