/** Error against depth: one point for each layer, in the order of execution. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { h, onTheme, style } from "./dom.js";
import { aloneDb } from "./figures.js";
import { decibel, numberIn } from "./format.js";
import "./style/depth.css";

const SERIES = [
  { label: "cumulative", colour: "#d55e00", of: (l) => numberIn(l, "sqnr_db") },
  { label: "local", colour: "#0072b2", of: (l) => numberIn(l, "local_sqnr_db") },
  { label: "outputs, this layer alone", colour: "#009e73", of: aloneDb },
];

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  host.classList.add("depth");
  const plot = h("div", { class: "plot" });
  host.append(
    h("div", { class: "bar" }, h("h2", {}, "Error against depth"), h("span", { class: "muted" }, "SQNR in dB; lower is worse")),
    plot,
  );
  let chart = null;
  const draw = () => {
    chart?.destroy();
    chart = drawn(plot, data.runs[store.get().run], store);
  };
  draw();
  onTheme(draw);
  store.on(["run"], draw);
  store.on(["selected", "hovered"], () => chart?.redraw(false, false));
  new ResizeObserver(() => chart?.setSize({ width: plot.clientWidth, height: 240 })).observe(plot);
}

/** The positions of the layers in `result.layers`, in the order of execution. */
export function inOrder(result) {
  const order = new Map(result.tensors.map((t, k) => [t.name, k]));
  const place = (k) => order.get(result.layers[k].tensor) ?? Number.MAX_SAFE_INTEGER;
  return result.layers.map((_, k) => k).sort((a, b) => place(a) - place(b));
}

/** Above this nothing is wrong, and nothing has to be told apart. */
const HIGHEST_DB = 90;
/** Beyond float32: tensors of huge magnitude, such as masks. No more an error than none at all. */
const EXACT_DB = 160;

function inSight(_, low, high) {
  if (low === null) return [0, 60];
  const [least, most] = [Math.min(low, HIGHEST_DB - 10), Math.min(high, HIGHEST_DB)];
  const margin = Math.max(2, 0.08 * (most - least));
  return [least - margin, most + margin];
}

function drawn(plot, run, store) {
  const order = inOrder(run.result);
  const layers = order.map((k) => run.result.layers[k]);
  const shown = SERIES.filter((s) => layers.some((l) => s.of(l) !== null));
  const finite = (v) => (v === null || !Number.isFinite(v) || v > EXACT_DB ? null : v);
  const values = [layers.map((_, k) => k + 1), ...shown.map((s) => layers.map((l) => finite(s.of(l))))];
  const worst = layers.length ? layers.reduce((a, b) => (a.rank < b.rank ? a : b)) : null;
  plot.setAttribute("role", "img");
  plot.setAttribute(
    "aria-label",
    worst
      ? `Error of ${layers.length} layers in network order; ranked first: ${worst.name}, cumulative ${decibel(numberIn(worst, "sqnr_db"))} dB`
      : "No layers were compared",
  );
  const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
  const marker = (chart) => {
    const { selected, hovered } = store.get();
    for (const [layer, width] of [[hovered, 1], [selected, 2]]) {
      const at = layer === null ? -1 : order.indexOf(layer);
      if (at < 0) continue;
      const x = chart.valToPos(at + 1, "x", true);
      chart.ctx.save();
      chart.ctx.strokeStyle = style("--accent");
      chart.ctx.lineWidth = width * devicePixelRatio;
      chart.ctx.beginPath();
      chart.ctx.moveTo(x, chart.bbox.top);
      chart.ctx.lineTo(x, chart.bbox.top + chart.bbox.height);
      chart.ctx.stroke();
      chart.ctx.restore();
    }
  };
  const chart = new uPlot(
    {
      width: plot.clientWidth || 600,
      height: 240,
      scales: { x: { time: false, range: [0.5, layers.length + 0.5] }, y: { range: inSight } },
      axes: [
        { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], label: "layers in the order of execution", labelSize: 22, labelFont: "12px system-ui", size: 34 },
        { ...axis, size: 44 },
      ],
      series: [
        { label: "layer", value: (_, v) => (v === null ? "–" : layers[v - 1].name.slice(-60)) },
        ...shown.map((s) => ({
          label: s.label,
          stroke: s.colour,
          width: 1.5,
          points: { size: 5, show: layers.length < 300 },
          spanGaps: true,
          value: (_, v) => decibel(v),
        })),
      ],
      cursor: { drag: { x: false, y: false } },
      hooks: {
        setCursor: [(c) => store.set({ hovered: c.cursor.idx === null ? null : (order[c.cursor.idx] ?? null) })],
        draw: [marker],
      },
    },
    values,
    plot,
  );
  chart.over.addEventListener("click", () => {
    if (chart.cursor.idx !== null) store.set({ selected: order[chart.cursor.idx] });
  });
  return chart;
}
