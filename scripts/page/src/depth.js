/** Error against depth: one point for each layer, in the order of execution. */

import { GROUPS, groupMark, pointMark } from "./charts/points.js";
import { axes, chart, linear, s, withExact } from "./charts/svg.js";
import { cutName, h } from "./dom.js";
import { aloneDb } from "./figures.js";
import { counted, decibel, decibels, numberIn } from "./format.js";
import "./style/charts.css";
import "./style/depth.css";

const SERIES = [
  { words: "this layer's output in the quantized network (cumulative)", group: 1, of: (l) => numberIn(l, "sqnr_db") },
  { words: "its own error only (local)", group: 0, of: (l) => numberIn(l, "local_sqnr_db"), samples: (r) => r.local_samples },
  { words: "the network's outputs, only this layer quantized (alone)", group: 2, of: aloneDb, samples: (r) => r.effect?.alone_samples },
];

const HEIGHT = 225;
/** Above this nothing is wrong, and nothing has to be told apart: it is drawn with what is exact. */
const HIGHEST_DB = 90;
/** The band for that at the upper edge, in pixels. */
const BAND = 26;
/** Points are drawn where they are at least so far apart, in pixels; without neighbours always. */
const APART = 3;

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  host.classList.add("depth");
  const legend = h("div", { class: "legend depth-legend" });
  const whose = h("p", { class: "depth-layer" });
  const place = h("div", {});
  host.append(
    h("div", { class: "bar" }, h("h2", {}, "Error against depth"), h("span", { class: "muted" }, "SQNR in dB; lower is worse")),
    legend,
    whose,
    place,
  );
  let plot = null;
  const say = () => {
    const run = data.runs[store.get().run];
    const { selected, hovered } = store.get();
    const layer = run.result?.layers?.[hovered ?? selected];
    legend.replaceChildren(...plot.shown.map((series) => entry(series, layer, run.result)));
    whose.replaceChildren(...(layer ? [cutName(layer.name)] : ["No layer is selected."]));
    plot.mark();
  };
  const draw = () => {
    plot = drawn(data.runs[store.get().run], store);
    place.replaceChildren(plot.host);
    say();
  };
  draw();
  store.on(["run"], draw);
  store.on(["selected", "hovered"], say);
}

/** What a mark means, and its value for the layer that is looked at. */
function entry({ words, group, of, samples }, layer, result) {
  const fewer = samples?.(result);
  const on = fewer && fewer < result.samples ? ` on ${counted(fewer, "sample")}` : "";
  return h("span", { class: "key" }, groupMark(group), `${words}${on}`, layer ? h("b", {}, ` ${decibels(of(layer))}`) : null);
}

/** The positions of the layers in `result.layers`, in the order of execution. */
export function inOrder(result) {
  const order = new Map(result.tensors.map((t, k) => [t.name, k]));
  const place = (k) => order.get(result.layers[k].tensor) ?? Number.MAX_SAFE_INTEGER;
  return result.layers.map((_, k) => k).sort((a, b) => place(a) - place(b));
}

/** A value as it is drawn: what is exact, or nearly, has one place. NaN and what was not measured have none. */
function placed(value) {
  if (value === null || Number.isNaN(value)) return null;
  return value > HIGHEST_DB ? Infinity : value;
}

function drawn(run, store) {
  const order = inOrder(run.result);
  const layers = order.map((k) => run.result.layers[k]);
  const shown = SERIES.map((series) => ({ ...series, values: layers.map((l) => placed(series.of(l))) })).filter(({ values }) => values.some((v) => v !== null));
  const worst = layers.length ? layers.reduce((a, b) => (a.rank < b.rank ? a : b)) : null;
  const label = worst
    ? `Error of ${layers.length} layers in network order; ranked first: ${worst.name}, cumulative ${decibel(numberIn(worst, "sqnr_db"))} dB`
    : "No layers were compared";
  const markers = s("g");
  let at = null;
  const mark = () => {
    const { selected, hovered } = store.get();
    const line = (layer, kind) => {
      const k = layer === null ? -1 : order.indexOf(layer);
      return k < 0 || !at ? [] : [s("line", { class: kind, x1: at.x(k), x2: at.x(k), y1: at.top, y2: at.bottom })];
    };
    markers.replaceChildren(...line(hovered, "looked-at"), ...line(selected, "chosen"));
  };
  const host = chart(label, HEIGHT, (width) => {
    const area = { left: 44, right: width - 12, top: 10, bottom: HEIGHT - 40 };
    const { x, y } = scales(shown, layers.length, area);
    at = { x: (k) => x.at(k + 1), top: area.top, bottom: area.bottom };
    const apart = (area.right - area.left) / layers.length;
    mark();
    const find = (event) => {
      const k = Math.round(((event.offsetX - x.at(1)) / apart));
      return order[Math.min(layers.length - 1, Math.max(0, k))] ?? null;
    };
    const hit = {
      class: "hit choosable", x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top,
      onpointermove: (event) => store.set({ hovered: find(event) }),
      onpointerleave: () => store.set({ hovered: null }),
      onclick: (event) => store.set({ selected: find(event) }),
    };
    return [
      ...axes(area, x, y, { xLabel: "layers in the order of execution" }),
      markers,
      ...shown.flatMap((series) => curve(series, x, y, apart)),
      s("rect", hit),
    ];
  });
  return { host, shown, mark };
}

function scales(shown, count, area) {
  const all = shown.flatMap(({ values }) => values).filter((v) => v !== null);
  const finite = all.filter(Number.isFinite);
  const isExact = finite.length < all.length;
  const [low, high] = finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 60];
  const margin = Math.max(2, 0.08 * (high - low));
  const y = linear([low - margin, high + margin], [area.bottom, isExact ? area.top + BAND : area.top], 6);
  const across = Math.max(2, Math.min(count, Math.round((area.right - area.left) / 60)));
  const x = linear([0.5, count + 0.5], [area.left, area.right], across);
  x.ticks = x.ticks.filter((v) => Number.isInteger(v) && v >= 1);
  x.word = (v) => `${v}`;
  if (!isExact) return { x, y };
  const named = withExact(y, area.top + BAND / 3);
  return { x, y: { ...named, word: (v) => (v === Infinity ? `>${HIGHEST_DB}` : y.word(v)) } };
}

/** A line from layer to layer, broken where there is no value or no error, and its points. */
function curve({ values, group }, x, y, apart) {
  const isJoined = (k) => Number.isFinite(values[k] ?? NaN);
  let path = "";
  values.forEach((v, k) => {
    if (isJoined(k)) path += `${isJoined(k - 1) ? "L" : "M"}${x.at(k + 1).toFixed(1)},${y.at(v).toFixed(1)}`;
  });
  const points = values.flatMap((v, k) => {
    const alone = !isJoined(k) || !(isJoined(k - 1) || isJoined(k + 1));
    if (v === null || (apart < APART && !alone)) return [];
    return [pointMark(group, [x.at(k + 1), y.at(v)], { hollow: v === Infinity, scale: apart < 10 ? 0.4 : apart < 20 ? 0.55 : 0.7 })];
  });
  return [s("path", { class: `series g${group % GROUPS}`, d: path }), ...points];
}
