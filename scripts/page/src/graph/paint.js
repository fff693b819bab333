/** Draws a laid out network on a canvas. What is out of sight or too small to read is left out. */

import { inkOn } from "../figures.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const READABLE = 6.5;
/** Below this scale there is nothing but coloured boxes and lines. */
const TINY = 0.3;

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{width: number, height: number, ratio: number}} size in CSS pixels
 * @param {{x: number, y: number, k: number}} view where the network's origin is, and the scale
 * @param {object} scene what scene.js made
 * @param {object} marks {focus, hovered: items; lit: Set of items or null; hulls: boolean}
 * @param {Record<string, string>} theme colours by the name of their custom property
 */
export function paint(context, size, view, scene, marks, theme) {
  const { ratio } = size;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, size.width, size.height);
  context.setTransform(ratio * view.k, 0, 0, ratio * view.k, ratio * view.x, ratio * view.y);
  const sight = {
    left: -view.x / view.k,
    top: -view.y / view.k,
    right: (size.width - view.x) / view.k,
    bottom: (size.height - view.y) / view.k,
  };
  const seen = scene.boxes.filter((box) => meets(box, sight));
  for (const box of seen) if (box.open) openBlock(context, box, view, theme);
  if (marks.hulls) for (const hull of scene.hulls) if (meets(hull, sight)) hullOf(context, hull, view);
  edges(context, scene, sight, view, marks, theme);
  for (const box of seen) if (box.open) title(context, box, view, theme);
  for (const box of seen) if (!box.open) closed(context, box, view, marks, theme);
  context.globalAlpha = 1;
}

const meets = (box, sight) =>
  box.x <= sight.right && box.x + box.w >= sight.left && box.y <= sight.bottom && box.y + box.h >= sight.top;

function rounded(context, { x, y, w, h }, radius) {
  context.beginPath();
  context.roundRect(x, y, w, h, radius);
}

function openBlock(context, box, view, theme) {
  if (box.depth === 0) return;
  rounded(context, box, 8);
  context.fillStyle = box.depth % 2 ? theme.plain : theme.card;
  context.fill();
  context.lineWidth = 1;
  context.strokeStyle = theme.line;
  context.stroke();
}

/** The title of an open block: over the edges, which may cross it. */
function title(context, box, view, theme) {
  if (box.depth === 0 || view.k * 12 < READABLE) return;
  const words = `− ${fitted(box.item.label, box.w - 34)}`;
  context.font = `600 12px ${FONT}`;
  context.textAlign = "left";
  context.fillStyle = box.depth % 2 ? theme.plain : theme.card;
  context.fillRect(box.x + 8, box.y + 6, context.measureText(words).width + 4, 15);
  context.fillStyle = theme.muted;
  context.fillText(words, box.x + 10, box.y + 17);
}

function edges(context, scene, sight, view, marks, theme) {
  context.lineWidth = Math.max(1, 0.7 / view.k);
  if (view.k < TINY && !marks.lit) {
    scene.allEdges ??= allOf(scene.edges);
    context.strokeStyle = theme.edge;
    context.stroke(scene.allEdges);
    return;
  }
  const plain = new Path2D();
  const lit = new Path2D();
  for (const edge of scene.edges) {
    if (!meets(edge, sight)) continue;
    const strong = marks.lit?.has(edge.from) && marks.lit.has(edge.to);
    curve(strong ? lit : plain, edge.points);
  }
  context.globalAlpha = marks.lit ? 0.25 : 1;
  context.strokeStyle = theme.edge;
  context.stroke(plain);
  context.globalAlpha = 1;
  if (marks.lit) {
    context.lineWidth = Math.max(2, 1.4 / view.k);
    context.strokeStyle = theme.accent;
    context.stroke(lit);
  }
  if (view.k < TINY) return;
  for (const edge of scene.edges) {
    if (!meets(edge, sight)) continue;
    arrow(context, edge.points, theme);
    if (edge.change) change(context, edge, theme);
  }
}

/** All edges as straight lines. */
function allOf(edges) {
  const path = new Path2D();
  for (const { points } of edges) {
    path.moveTo(points[0], points[1]);
    for (let k = 2; k < points.length; k += 2) path.lineTo(points[k], points[k + 1]);
  }
  return path;
}

/** Through the points, rounded at each. */
function curve(path, points) {
  path.moveTo(points[0], points[1]);
  for (let k = 2; k < points.length - 2; k += 2) {
    const [x, y] = [points[k], points[k + 1]];
    path.quadraticCurveTo(x, y, (x + points[k + 2]) / 2, (y + points[k + 3]) / 2);
  }
  path.lineTo(points.at(-2), points.at(-1));
}

function arrow(context, points, theme) {
  const [x, y] = [points.at(-2), points.at(-1)];
  context.fillStyle = theme.edge;
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x - 3.5, y - 7);
  context.lineTo(x + 3.5, y - 7);
  context.fill();
}

/** A diamond where the precision changes, in the colour of the one that follows. */
function change(context, { points, change: colour }, theme) {
  const at = 2 * Math.floor(points.length / 4);
  const [x, y] = [points[at], points[at + 1]];
  context.beginPath();
  context.moveTo(x, y - 6);
  context.lineTo(x + 6, y);
  context.lineTo(x, y + 6);
  context.lineTo(x - 6, y);
  context.closePath();
  context.fillStyle = colour;
  context.fill();
  context.lineWidth = 1;
  context.strokeStyle = theme.fg;
  context.stroke();
}

function hullOf(context, { parts, colour }, view) {
  context.beginPath();
  for (const { x, y, w, h } of parts) context.roundRect(x, y, w, h, 12);
  context.lineWidth = Math.max(2, 1 / view.k);
  context.setLineDash([6, 4]);
  context.strokeStyle = colour;
  context.stroke();
  context.globalAlpha = 0.12;
  context.fillStyle = colour;
  context.fill();
  context.globalAlpha = 1;
  context.beginPath();
  for (const { x, y, w, h } of parts) context.lineTo(x + w / 2, y + h / 2);
  if (parts.length > 1) context.stroke();
  context.setLineDash([]);
}

function closed(context, box, view, marks, theme) {
  const { item } = box;
  context.globalAlpha = marks.lit && !marks.lit.has(item) ? 0.3 : 1;
  const colour = box.colour ?? theme.plain;
  const marked = item === marks.focus || item === marks.hovered;
  if (view.k < TINY && !marked && !box.kept) {
    context.fillStyle = box.colour ?? theme.line;
    context.fillRect(box.x, box.y, box.w, box.h);
    return;
  }
  if (item.kind === "group") {
    rounded(context, { x: box.x + 4, y: box.y + 4, w: box.w, h: box.h }, 8);
    context.fillStyle = theme.line;
    context.fill();
  }
  rounded(context, box, item.kind === "node" ? 6 : item.kind === "group" ? 8 : box.h / 2);
  context.fillStyle = colour;
  context.fill();
  context.lineWidth = item === marks.focus ? Math.max(3, 2 / view.k) : box.kept || marked ? 2.5 : 1;
  context.strokeStyle = marked ? theme.accent : box.kept ? theme.fg : theme.edge;
  context.stroke();
  if (view.k * 13 >= READABLE) label(context, box, box.colour ? inkOn(box.colour) : theme.fg);
  if (box.reformats) reformats(context, box, theme);
  context.globalAlpha = 1;
}

/** A tag at the corner of what data is moved or converted for. */
function reformats(context, { x, y, reformats: count }, theme) {
  const text = count > 1 ? `⇄${count}` : "⇄";
  rounded(context, { x: x - 10, y: y - 9, w: 12 + 8 * text.length, h: 17 }, 5);
  context.fillStyle = theme.card;
  context.fill();
  context.lineWidth = 1;
  context.strokeStyle = theme.fg;
  context.stroke();
  context.fillStyle = theme.fg;
  context.textAlign = "left";
  context.font = `12px ${FONT}`;
  context.fillText(text, x - 5, y + 4);
}

function label(context, box, ink) {
  const { item } = box;
  const middle = box.x + box.w / 2;
  context.fillStyle = ink;
  context.textAlign = "center";
  context.font = `600 13px ${FONT}`;
  const head = item.kind === "group" ? `+ ${item.label}` : item.label;
  context.fillText(fitted(head, box.w - 12), middle, box.y + 17);
  context.font = `11px ${FONT}`;
  const under = item.kind === "group" ? `${item.nodes.length} nodes` : item.sublabel;
  context.fillText(fitted(box.word ? `${box.word}` : under, box.w - 12), middle, box.y + 32);
}

/** Text that fits into a width: its end says more than its middle. */
function fitted(text, room) {
  const most = Math.max(4, Math.floor(room / 6.3));
  if (text.length <= most) return text;
  const head = Math.floor((most - 1) / 3);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}
