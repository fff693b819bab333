/**
 * The network as blocks within blocks, and which of its edges each block sees.
 *
 * @typedef {object} Leaf a node, or an input or output of the network
 * @property {string} key
 * @property {string} id the same in the trees of all networks that have it
 * @property {"node"|"input"|"output"} kind
 * @property {number|null} node its position in network.nodes
 * @property {string} label @property {string} sublabel
 * @property {Group} parent
 *
 * @typedef {object} Group
 * @property {string} key
 * @property {"group"} kind
 * @property {string} label
 * @property {Group|null} parent
 * @property {(Leaf|Group)[]} children
 * @property {number[]} nodes all nodes within, as positions in network.nodes
 * @property {{from: Leaf|Group, to: Leaf|Group, source: Leaf, target: Leaf}[]} edges those between
 *   its children: the children, and the leaves within them that they really join
 */

import { printable } from "../dom.js";

/** More children than this are divided into parts of about so many. */
const [MOST, PART] = [300, 100];

/**
 * @returns {{root: Group, leaves: Leaf[], groups: Map<string, Group>, byId: Map<string, Leaf>}}
 *   leaves: first the nodes
 */
export function treeOf(network) {
  const groups = new Map();
  const root = group("", "network", null, groups);
  const leaves = network.nodes.map((node, k) => {
    const parent = node.scope.reduce(
      (inside, part) =>
        groups.get(`${inside.key}\n${part}`) ?? group(`${inside.key}\n${part}`, printable(part), inside, groups),
      root,
    );
    for (let above = parent; above; above = above.parent) above.nodes.push(k);
    return leaf("node", k, node.op, shortened(node), parent, node.name);
  });
  simplify(root, groups);
  divide(root, groups);
  const producers = new Map();
  network.nodes.forEach((node, k) => node.tensors.forEach((t) => producers.set(t, leaves[k])));
  const joins = network.nodes.flatMap((node, k) => node.inputs.map((from) => [leaves[from], leaves[k]]));
  network.inputs.forEach((name, k) => {
    const input = leaf("input", null, "input", printable(name), root, name, `input ${k}`);
    joins.push(...network.readers_of_inputs[k].map((reader) => [input, leaves[reader]]));
    leaves.push(input);
  });
  network.outputs.forEach((name, k) => {
    const output = leaf("output", null, "output", printable(name), root, name, `output ${k}`);
    if (producers.has(name)) joins.push([producers.get(name), output]);
    leaves.push(output);
  });
  for (const [source, target] of joins) join(source, target);
  return { root, leaves, groups, byId: new Map(leaves.map((leaf) => [leaf.id, leaf])) };
}

function group(key, label, parent, groups) {
  const made = { key, kind: "group", label, parent, children: [], nodes: [], edges: [] };
  parent?.children.push(made);
  groups.set(key, made);
  return made;
}

function leaf(kind, node, label, sublabel, parent, name, key = `node ${node}`) {
  const made = { key, id: `${kind} ${name}`, kind, node, label, sublabel, parent };
  parent.children.push(made);
  return made;
}

/** Blocks that hold one thing only are that thing: modules of one node are everywhere in exports. */
function simplify(block, groups) {
  block.children = block.children.map((child) => {
    if (child.kind !== "group") return child;
    simplify(child, groups);
    if (child.children.length > 1) return child;
    const [only] = child.children;
    groups.delete(child.key);
    only.parent = block;
    if (only.kind === "group") only.label = `${child.label} / ${only.label}`;
    else if (only.sublabel === only.label) only.sublabel = child.label;
    else only.sublabel = `${child.label} / ${only.sublabel}`;
    return only;
  });
}

/** A block of very many things is divided into parts, in the order of execution. */
function divide(block, groups) {
  for (const child of block.children) if (child.kind === "group") divide(child, groups);
  if (block.children.length <= MOST) return;
  const all = block.children;
  const size = Math.ceil(all.length / Math.ceil(all.length / PART));
  block.children = [];
  for (let start = 0; start < all.length; start += size) {
    const inside = all.slice(start, start + size);
    const label = `${start + 1}–${start + inside.length} of ${all.length}`;
    const part = group(`${block.key}\n${label}`, label, block, groups);
    part.children = inside;
    part.nodes = inside.flatMap((item) => (item.kind === "group" ? item.nodes : [item.node]));
    for (const item of inside) item.parent = part;
  }
}

/** The part of a node's name that its blocks do not say already. */
function shortened(node) {
  let name = node.name;
  for (const part of node.scope) {
    const bare = name.replace(/^(\/|\.|::)+/, "");
    if (!bare.startsWith(part)) break;
    name = bare.slice(part.length);
  }
  return printable(name.replace(/^(\/|\.|::)+/, "") || node.name);
}

/** Give the edge to the innermost block that holds both ends. */
function join(source, target) {
  const above = new Map();
  for (let item = source; item.parent; item = item.parent) above.set(item.parent, item);
  for (let item = target; item.parent; item = item.parent) {
    const from = above.get(item.parent);
    if (from) {
      item.parent.edges.push({ from, to: item, source, target });
      return;
    }
  }
}

/** The innermost thing that is drawn for a leaf: itself, or the closed block that it is in. */
export function visible(leaf, open) {
  let shown = leaf;
  for (let item = leaf; item; item = item.parent) {
    if (item.kind === "group" && !open.has(item.key)) shown = item;
  }
  return shown;
}

/**
 * Which blocks are open at first: whole levels, as long as no more than `most` things are drawn.
 * @returns {Set<string>} keys
 */
export function openAtFirst(root, most) {
  let open = new Set([root.key]);
  for (let level = [root]; level.length; ) {
    level = level.flatMap((g) => g.children.filter((c) => c.kind === "group"));
    const next = new Set([...open, ...level.map((g) => g.key)]);
    if (!level.length || countOf(root, next) > most) break;
    open = next;
  }
  return open;
}

function countOf(item, open) {
  if (item.kind !== "group" || !open.has(item.key)) return 1;
  return item.children.reduce((sum, child) => sum + countOf(child, open), 0);
}
