/** One network on one canvas: what the pointer and the keys do to it. */

import { h, onTheme, style } from "../dom.js";
import { sameLayer } from "../figures.js";
import { laidOut } from "./layout.js";
import { paint } from "./paint.js";
import { sceneOf } from "./scene.js";
import { visible } from "./tree.js";

const THEME = ["fg", "muted", "line", "edge", "plain", "card", "accent", "bg"];
const [FARTHEST, NEAREST] = [0.01, 6];
/** At first the network is no smaller than the first of these; a wide one may be as small as the second. */
const [READABLE, SMALLEST] = [0.75, 0.6];

export class Canvas {
  /**
   * @param {HTMLElement} host
   * @param {object} run
   * @param {object[]} runs all of the page
   * @param {object} tree of tree.js
   * @param {import("../store.js").Store} shared {view, moved, open, focus, figure, paths, hulls}: of all canvases
   * @param {import("../store.js").Store} store of the page
   * @param {(run: object, item: object) => (Node|string)[]} describe lines about an item
   */
  constructor(host, run, runs, tree, shared, store, describe) {
    Object.assign(this, { host, run, runs, tree, shared, store, describe, peers: [this], hovered: null, asked: false });
    this.element = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-label": `Graph of ${run.label}: ${run.network.nodes.length} nodes. Arrow keys follow the edges, Enter opens and closes a block, plus and minus zoom, 0 shows everything. The table below lists the same layers.`,
      "aria-roledescription": "graph",
    });
    this.context = this.element.getContext("2d");
    this.tip = h("div", { class: "tip", hidden: true });
    host.append(this.element, this.tip);
    this.#listen();
    this.relayout();
    new ResizeObserver(() => this.#resized()).observe(host);
  }

  /** Lay out anew: blocks were opened or closed. */
  relayout() {
    this.layout = laidOut(this.tree.root, this.shared.get().open);
    this.recolour();
  }

  /** Colour anew. */
  recolour() {
    const { open, figure } = this.shared.get();
    this.scene = sceneOf(this.run, this.runs, this.layout, this.tree, open, figure, this.store.get().pinned);
    this.repaint();
  }

  /** Paint with the next frame. */
  repaint() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.#paint();
    });
  }

  #paint() {
    this.theme ??= Object.fromEntries(THEME.map((name) => [name, style(`--${name}`)]));
    const { paths, hulls, view } = this.shared.get();
    const focus = this.own(this.shared.get().focus);
    const shown = focus && this.#shown(focus);
    const marks = { focus: shown, hovered: this.hovered, lit: paths && focus ? this.#lit(focus) : null, hulls };
    paint(this.context, this.size, view, this.scene, marks, this.theme);
  }

  /** What an item of another network is in this one; null where it has none of it. */
  own(item) {
    if (!item || this.tree.leaves[item.node] === item) return item;
    return (item.kind === "group" ? this.tree.groups.get(item.key) : this.tree.byId.get(item.id)) ?? null;
  }

  #shown(item) {
    return item.kind === "group" ? item : visible(item, this.shared.get().open);
  }

  /** All that a node depends on and all that depends on it, as it is drawn. */
  #lit(focus) {
    const { open } = this.shared.get();
    const key = `${focus.key}|${[...open].join()}`;
    if (this.litKey !== key) {
      this.litKey = key;
      const reached = this.#reached(focus);
      this.litItems = new Set([...reached].map((leaf) => visible(leaf, open)));
    }
    return this.litItems;
  }

  #reached(focus) {
    const inside = focus.kind === "group" ? focus.nodes.map((k) => this.tree.leaves[k]) : [focus];
    const reached = new Set(inside);
    for (const ends of [this.#edges().before, this.#edges().after]) {
      const queue = [...inside];
      const seen = new Set(inside);
      while (queue.length) {
        for (const next of ends.get(queue.pop()) ?? []) {
          if (!seen.has(next)) {
            seen.add(next);
            reached.add(next);
            queue.push(next);
          }
        }
      }
    }
    return reached;
  }

  #edges() {
    if (!this.ends) {
      this.ends = { before: new Map(), after: new Map() };
      const add = (map, key, value) => (map.has(key) ? map.get(key).push(value) : map.set(key, [value]));
      for (const group of this.tree.groups.values()) {
        for (const { source, target } of group.edges) {
          add(this.ends.after, source, target);
          add(this.ends.before, target, source);
        }
      }
    }
    return this.ends;
  }

  /** Show everything, in all canvases: they are moved together. */
  fit() {
    const { width, height } = this.size;
    if (!width) return;
    const [w, h] = ["width", "height"].map((side) => Math.max(...this.peers.map(({ layout }) => layout[side])));
    const k = Math.min(1.4, (width - 24) / w, (height - 24) / h);
    this.shared.set({ view: { k, x: (width - k * w) / 2, y: Math.max(12, (height - k * h) / 2) } });
  }

  /** At first: everything if it can be read then, else the layer that is selected, or the start. */
  fitAtFirst() {
    const lead = this.peers.find(({ run }) => run === this.#selectedRun()) ?? this.peers[0];
    if (lead !== this) return lead.fitAtFirst();
    this.fit();
    const { width, height } = this.size;
    const { k } = this.shared.get().view;
    const least = Math.min(READABLE, Math.max(SMALLEST, (width - 24) / this.layout.width));
    const { selected } = this.store.get();
    const place = this.run.network.nodes.findIndex((node) => selected !== null && node.layer === selected);
    const leaf = place < 0 ? null : this.tree.leaves[place];
    if (leaf && !this.shared.get().focus) this.shared.set({ focus: leaf });
    if (k >= least) return;
    const box = leaf && this.layout.boxes.get(this.#shown(leaf));
    const first = [...this.layout.boxes.values()].find(({ open }) => !open);
    const [x, y] = box ? [box.x + box.w / 2, box.y + box.h / 2] : [first ? first.x + first.w / 2 : 0, height / 2 / least];
    // No empty space is shown at a side where there is more of the network at the other.
    const within = (at, room, whole) => (whole > room ? Math.max(room - whole - 12, Math.min(12, at)) : (room - whole) / 2);
    const view = {
      k: least,
      x: within(width / 2 - least * x, width, least * this.layout.width),
      y: within(height / 2 - least * y, height, least * this.layout.height),
    };
    this.shared.set({ view });
  }

  /** Move so that an item is in sight, and large enough to be read. */
  bringInSight(item) {
    const box = this.layout.boxes.get(this.#shown(item));
    if (!box) return;
    const { width, height } = this.size;
    const { view } = this.shared.get();
    const k = Math.max(view.k, 0.7);
    const [x, y] = [view.x + view.k * (box.x + box.w / 2), view.y + view.k * (box.y + box.h / 2)];
    if (k === view.k && x > 40 && x < width - 40 && y > 30 && y < height - 30) return;
    this.#move({ k, x: width / 2 - k * (box.x + box.w / 2), y: height / 2 - k * (box.y + box.h / 2) });
  }

  #resized() {
    this.#measure();
    if (!this.shared.get().moved) this.fitAtFirst();
    this.#paint();
  }

  #measure() {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.host.clientWidth, this.host.clientHeight];
    this.size = { width, height, ratio };
    this.element.width = Math.round(width * ratio);
    this.element.height = Math.round(height * ratio);
  }

  #listen() {
    this.#measure();
    const { element } = this;
    const pointers = new Map();
    let moved = 0;
    element.addEventListener("pointerdown", (event) => {
      element.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
      moved = 0;
    });
    element.addEventListener("pointermove", (event) => {
      if (!pointers.has(event.pointerId)) return this.#hover(event);
      moved += this.#dragged(pointers, event);
    });
    const up = (event) => {
      if (pointers.delete(event.pointerId) && moved < 5 && event.type === "pointerup") this.#click(event);
    };
    element.addEventListener("pointerup", up);
    element.addEventListener("pointercancel", up);
    element.addEventListener("pointerleave", () => this.#hoverItem(null));
    element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    element.addEventListener("keydown", (event) => this.#key(event));
    this.shared.on(["open"], () => this.relayout());
    this.shared.on(["figure"], () => this.recolour());
    this.shared.on(["view", "focus", "paths", "hulls"], () => this.repaint());
    this.store.on(["pinned"], () => this.recolour());
    this.store.on(["hovered"], ({ hovered }) => this.#hoverLayer(hovered));
    onTheme(() => {
      this.theme = undefined;
      this.repaint();
    });
  }

  /** One pointer moves the network, two zoom it. Returns how far it moved. */
  #dragged(pointers, event) {
    const before = pointers.get(event.pointerId);
    const now = [event.offsetX, event.offsetY];
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, now);
    const { view } = this.shared.get();
    if (other) {
      const apart = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]) || 1;
      this.#zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else {
      this.#move({ ...view, x: view.x + now[0] - before[0], y: view.y + now[1] - before[1] });
    }
    return Math.hypot(now[0] - before[0], now[1] - before[1]);
  }

  /** The wheel zooms once the graph has the focus, or with Ctrl; otherwise the page scrolls. */
  #wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.element) return;
    event.preventDefault();
    const step = event.deltaMode === 1 ? 30 * event.deltaY : event.deltaY;
    this.#zoom(Math.exp(-step / 400), event.offsetX, event.offsetY);
  }

  #zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    const { view } = this.shared.get();
    const k = Math.min(NEAREST, Math.max(FARTHEST, view.k * factor));
    const ratio = k / view.k;
    this.#move({ k, x: x - ratio * (x - view.x), y: y - ratio * (y - view.y) });
  }

  /** Look somewhere else, and stay there when the size of the canvas changes. */
  #move(view) {
    this.shared.set({ view, moved: true });
  }

  /** The innermost thing at a place of the canvas. */
  #at(x, y) {
    const { view } = this.shared.get();
    const [left, top] = [(x - view.x) / view.k, (y - view.y) / view.k];
    let found = null;
    for (const box of this.scene.boxes) {
      const within = left >= box.x && left <= box.x + box.w && top >= box.y && top <= box.y + box.h;
      if (within && box.depth > 0 && (!found || box.depth > found.depth)) found = box;
    }
    return found;
  }

  #hover(event) {
    const box = this.#at(event.offsetX, event.offsetY);
    const item = box && !box.open ? box.item : null;
    this.element.classList.toggle("over", Boolean(box));
    this.#hoverItem(item);
    if (item) this.#placeTip(event.offsetX, event.offsetY);
  }

  #hoverItem(item) {
    if (item === this.hovered) return;
    this.hovered = item;
    this.tip.hidden = !item;
    if (item) this.tip.replaceChildren(...this.describe(this.run, item).map((line) => h("div", {}, line)));
    this.store.set({ hovered: item ? sameLayer(this.run, this.#layerOf(item), this.#selectedRun()) : null });
    this.repaint();
  }

  #placeTip(x, y) {
    const left = x + this.tip.offsetWidth + 20 > this.size.width ? x - this.tip.offsetWidth - 12 : x + 14;
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = `${Math.min(y + 14, Math.max(4, this.size.height - this.tip.offsetHeight - 6))}px`;
  }

  #hoverLayer(hovered) {
    const layer = sameLayer(this.#selectedRun(), hovered, this.run);
    if (this.hovered && this.#layerOf(this.hovered) === layer) return;
    const k = layer === null ? -1 : this.run.network.nodes.findIndex((node) => node.layer === layer);
    this.hovered = k < 0 ? null : this.#shown(this.tree.leaves[k]);
    this.tip.hidden = true;
    this.repaint();
  }

  /** The run whose layers are selected. */
  #selectedRun() {
    return this.runs[this.store.get().run];
  }

  #layerOf(item) {
    return item.kind === "node" ? this.run.network.nodes[item.node].layer : null;
  }

  #click(event) {
    const box = this.#at(event.offsetX, event.offsetY);
    this.element.focus({ preventScroll: true });
    if (!box) return;
    if (box.open) {
      const { view } = this.shared.get();
      if ((event.offsetY - view.y) / view.k - box.y < 24) this.toggle(box.item);
    } else if (box.item.kind === "group") this.toggle(box.item);
    else this.choose(box.item);
  }

  /** Open or close a block, keeping it where it is on the screen. */
  toggle(item) {
    const { open, view } = this.shared.get();
    const before = this.layout.boxes.get(item);
    const next = new Set(open);
    if (!next.delete(item.key)) next.add(item.key);
    this.shared.set({ open: next, focus: item });
    const after = this.layout.boxes.get(item);
    if (before && after) {
      const middle = (box) => box.x + box.w / 2;
      const x = view.x + view.k * (middle(before) - middle(after));
      this.#move({ ...view, x, y: view.y + view.k * (before.y - after.y) });
    }
  }

  /** Look at an item; a node's layer is selected everywhere. */
  choose(item) {
    this.shared.set({ focus: item });
    const layer = this.#layerOf(item);
    if (layer !== null) this.store.set({ run: this.runs.indexOf(this.run), selected: layer });
  }

  #key(event) {
    const { view } = this.shared.get();
    const focus = this.own(this.shared.get().focus);
    const step = 60;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.key in moves) {
      if (event.shiftKey || !this.#follow(event.key)) {
        const [x, y] = moves[event.key];
        this.#move({ ...view, x: view.x + x, y: view.y + y });
      }
    } else if (event.key === "+" || event.key === "=") this.#zoom(1.25);
    else if (event.key === "-") this.#zoom(0.8);
    else if (event.key === "0") this.fit();
    else if ((event.key === "Enter" || event.key === " ") && focus) {
      const block = focus.kind === "group" ? focus : focus.parent;
      if (block.parent) this.toggle(block);
    } else return;
    event.preventDefault();
  }

  /** Go from the item in focus to its producer, reader or neighbour. Returns whether there is one. */
  #follow(key) {
    const { open } = this.shared.get();
    const focus = this.own(this.shared.get().focus);
    const boxes = this.scene.boxes.filter((b) => !b.open && b.depth > 0);
    if (focus?.kind === "group" && open.has(focus.key)) {
      this.#goTo(focus.children[0]);
      return true;
    }
    const here = focus && boxes.find((b) => b.item === this.#shown(focus));
    if (!here) {
      if (boxes.length) this.#goTo(boxes.reduce((a, b) => (a.y <= b.y ? a : b)).item);
      return boxes.length > 0;
    }
    const next =
      key === "ArrowUp"
        ? this.scene.edges.find((e) => e.to === here.item)?.from
        : key === "ArrowDown"
          ? this.scene.edges.find((e) => e.from === here.item)?.to
          : beside(boxes, here, key === "ArrowLeft" ? -1 : 1)?.item;
    if (next) this.#goTo(next);
    return true;
  }

  #goTo(item) {
    this.choose(item);
    this.bringInSight(item);
  }
}

/** The nearest box to one side, about as high up. */
function beside(boxes, here, side) {
  const ahead = boxes.filter((b) => side * (b.x - here.x) > 1 && Math.abs(b.y - here.y) < 120);
  const far = (b) => Math.abs(b.x - here.x) + 2 * Math.abs(b.y - here.y);
  return ahead.sort((a, b) => far(a) - far(b))[0];
}

