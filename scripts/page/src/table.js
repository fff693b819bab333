/** The table of layers: sorted, filtered, its columns chosen, copied as CSV. */

import {
  FilterModule,
  FormatModule,
  InteractionModule,
  ResizeColumnsModule,
  ResizeTableModule,
  SortModule,
  Tabulator,
} from "tabulator-tables";
import "tabulator-tables/dist/css/tabulator_simple.min.css";
import { h, nameOf, printable } from "./dom.js";
import { aloneDb } from "./figures.js";
import { decibel, number, numberIn, share } from "./format.js";
import { copyText } from "./top.js";
import "./style/table.css";

Tabulator.registerModule([
  FilterModule,
  FormatModule,
  InteractionModule,
  ResizeColumnsModule,
  ResizeTableModule,
  SortModule,
]);

/** Every column: its key, head, value of a layer, words, and whether it is shown at first. */
const COLUMNS = [
  ["rank", "#", (l) => l.rank, String, true],
  ["layer", "layer", (l) => l.name, String, true],
  ["op", "op", (l) => l.op_type, String, true],
  ["precision", "precision", (l) => l.precision, String, true],
  ["share", "share of the outputs' error", (l) => numberIn(l.effect, "output_share"), share, true],
  ["alone", "outputs, alone (dB)", aloneDb, decibel, true],
  ["local", "local (dB)", (l) => numberIn(l, "local_sqnr_db"), decibel, true],
  ["cumulative", "cumulative (dB)", (l) => numberIn(l, "sqnr_db"), decibel, true],
  ["clipped", "inputs clipped", (l) => numberIn(l, "input_clipped_fraction"), share, true],
  ["causes", "causes", (l) => l.causes.map(cause).join(", "), String, true],
  ["metric_gain", "metric gained", (l) => numberIn(l.effect, "metric_gain"), number, false],
  ["cosine", "cosine", (l) => numberIn(l, "cosine"), (v) => number(v, 5), false],
  ["max_abs_err", "largest error", (l) => numberIn(l, "max_abs_err"), number, false],
  ["rmse", "RMSE", (l) => numberIn(l, "rmse"), number, false],
  ["ref_amax", "largest magnitude", (l) => numberIn(l, "ref_amax"), number, false],
  ["worst_sample", "worst sample", (l) => l.worst_sample, number, false],
  ["tensor", "tensor", (l) => l.tensor, String, false],
].map(([field, title, of, word, shown]) => ({ field, title, of, word, shown }));

const TEXT = new Set(["layer", "op", "precision", "causes", "tensor"]);

/** A cause in a few characters. */
export function cause({ label, share: part }) {
  return part === null ? label : `${label} (${Math.round(100 * part)}%)`;
}

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  host.classList.add("layers");
  const layers = () => data.runs[store.get().run].result.layers;
  const known = COLUMNS.filter((c) => data.runs.some((r) => (r.result.layers ?? []).some((l) => has(c.of(l)))));
  const grid = h("div", { class: "grid" });
  const search = h("input", { type: "search", placeholder: "Filter by name, op, precision, cause", "aria-label": "Filter layers" });
  const count = h("span", { class: "muted", role: "status" });
  const copy = h("button", { type: "button" }, "Copy as CSV");
  host.append(
    h("div", { class: "bar screen" }, h("h2", {}, "Layers"), count, search, columnChoice(known, () => table), copy),
    grid,
  );
  const table = new Tabulator(grid, {
    data: rows(layers(), known),
    columns: known.map((c) => column(c, store)),
    layout: "fitDataStretch",
    height: 560,
    initialSort: [{ column: "rank", dir: "asc" }],
    placeholder: "No layer matches",
    rowFormatter: (row) => marked(row, store.get()),
  });
  table.on("dataFiltered", (_, kept) => (count.textContent = `${kept.length} of ${layers().length}`));
  table.on("rowMouseEnter", (_, row) => store.set({ hovered: row.getData().index }));
  table.on("rowMouseLeave", () => store.set({ hovered: null }));
  table.on("rowClick", (_, row) => store.set({ selected: row.getData().index }));
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    table.setFilter((row) => words.every((word) => row.text.includes(word)));
  });
  copy.addEventListener("click", () => copyText(csv(table, known), copy));
  const ready = new Promise((done) => table.on("tableBuilt", done));
  const remark = () => ready.then(() => table.getRows("visible").forEach((row) => marked(row, store.get())));
  store.on(["hovered", "selected"], remark);
  store.on(["selected"], ({ selected }) => ready.then(() => reveal(table, selected)));
  store.on(["run"], () => ready.then(() => table.setData(rows(layers(), known))));
}

const has = (value) => value !== null && value !== undefined && value !== "";

function rows(layers, columns) {
  return layers.map((layer, index) => ({
    index,
    text: `${layer.name} ${layer.op_type} ${layer.precision} ${layer.causes.map((c) => c.label).join(" ")}`.toLowerCase(),
    ...Object.fromEntries(columns.map((c) => [c.field, c.of(layer) ?? null])),
  }));
}

function column({ field, title, word, shown }, store) {
  const text = TEXT.has(field);
  return {
    field,
    title,
    visible: shown,
    sorter: text ? "string" : byNumber,
    hozAlign: text ? "left" : "right",
    headerHozAlign: text ? "left" : "right",
    maxInitialWidth: field === "layer" ? 420 : 300,
    ...(text ? {} : { width: field === "rank" ? 58 : 116 }),
    formatter: (cell) => {
      const value = cell.getValue();
      if (field !== "layer") return nameOf(text ? (value ?? "") : word(value));
      const open = () => store.set({ selected: cell.getData().index });
      return h("button", { type: "button", class: "link name", onclick: open, title: printable(value) }, printable(value));
    },
  };
}

/** What is not a number comes last when ascending: nothing measured, then NaN as the worst. */
function byNumber(a, b) {
  const key = (v) => (v === null ? Number.POSITIVE_INFINITY : Number.isNaN(v) ? Number.NEGATIVE_INFINITY : v);
  const [x, y] = [key(a), key(b)];
  return x === y ? 0 : x < y ? -1 : 1;
}

function marked(row, { hovered, selected }) {
  const { index } = row.getData();
  row.getElement().classList.toggle("hovered", index === hovered);
  row.getElement().classList.toggle("selected", index === selected);
}

function reveal(table, selected) {
  if (selected === null) return;
  const row = table.getRows("active").find((r) => r.getData().index === selected);
  if (row) table.scrollToRow(row, "center", false).catch(() => {});
}

function columnChoice(columns, table) {
  const boxes = columns.map(({ field, title, shown }) => {
    const box = h("input", { type: "checkbox", checked: shown });
    box.addEventListener("change", () => table()[box.checked ? "showColumn" : "hideColumn"](field));
    return h("label", {}, box, " ", title);
  });
  return h("details", { class: "columns" }, h("summary", {}, "Columns"), h("div", {}, ...boxes));
}

/** The rows that are shown, sorted as they are, with all columns. */
function csv(table, columns) {
  const quoted = (v) => (/[",\n\r]/.test(v) ? `"${v.replaceAll('"', '""')}"` : v);
  const cell = (v) => quoted(v === null ? "" : String(v));
  const lines = table.getData("active").map((row) => columns.map((c) => cell(row[c.field])).join(","));
  return [columns.map((c) => c.field).join(","), ...lines].join("\n") + "\n";
}
