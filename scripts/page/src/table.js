/** The table of layers: sorted, filtered, its columns chosen, copied as CSV. */

import { h } from "./dom.js";
import { aloneDb, gainOf } from "./figures.js";
import { counted, decibel, gainDb, number, numberIn, share } from "./format.js";
import { grid } from "./grid.js";
import { copyText } from "./top.js";

/** Every column: its key, head, value of a layer, words (none for a text), whether it is hidden. */
const COLUMNS = [
  ["layer", "layer", (l) => l.name, null],
  ["rank", "#", (l) => l.rank, String],
  ["gain", "gain dB", gainOf, gainDb],
  ["causes", "causes", (l) => l.causes.map(cause).join(", "), null],
  ["precision", "prec.", (l) => l.precision, null],
  ["op", "op", (l) => l.op_type, null],
  ["alone", "alone dB", aloneDb, decibel],
  ["local", "local dB", (l) => numberIn(l, "local_sqnr_db"), decibel],
  ["cumulative", "cum. dB", (l) => numberIn(l, "sqnr_db"), decibel],
  ["clipped", "clip", (l) => numberIn(l, "input_clipped_fraction"), share],
  ["metric_gain", "metric gained", (l) => numberIn(l.effect, "metric_gain"), number, true],
  ["cosine", "cosine", (l) => numberIn(l, "cosine"), (v) => number(v, 5), true],
  ["max_abs_err", "largest error", (l) => numberIn(l, "max_abs_err"), number, true],
  ["rmse", "RMSE", (l) => numberIn(l, "rmse"), number, true],
  ["ref_amax", "largest magnitude", (l) => numberIn(l, "ref_amax"), number, true],
  ["worst_sample", "worst sample", (l) => l.worst_sample, number, true],
  ["tensor", "tensor", (l) => l.tensor, null, true],
].map(([field, title, of, word, hidden = false]) => ({ field, title, of, word, hidden }));

const EXPLAINED = {
  gain: "What the SQNR of the outputs gains when only this layer stays in FP32; negative where its error cancels that of others. Errors overlap: gains do not add up",
  alone: "SQNR of the outputs when only this layer is quantized",
  local: "SQNR of the layer's output when it reads the reference's activations",
  cumulative: "SQNR of the layer's output in the quantized network",
  clipped: "The largest share of an input's values that is clipped",
};

/** A cause in a few characters. */
export function cause({ label, share: part }) {
  return part === null ? label : `${label} (${Math.round(100 * part)}%)`;
}

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  host.classList.add("layers");
  const known = COLUMNS.filter((c) => data.runs.some((r) => (r.result?.layers ?? []).some((l) => has(c.of(l)))));
  const search = h("input", { type: "search", placeholder: "Filter layers", "aria-label": "Filter layers", title: "By name, op, precision or cause" });
  const count = h("span", { class: "muted", role: "status" });
  const copy = h("button", { type: "button" }, "Copy as CSV");
  const place = h("div", {});
  const measured = h("p", { class: "muted measured" });
  let table = null;
  host.append(
    h("div", { class: "bar screen" }, h("h2", {}, "Layers"), count, search, columnChoice(known, () => table.ready), copy),
    measured,
    place,
  );
  const fill = () => {
    const { result } = data.runs[store.get().run];
    const layers = result?.layers ?? [];
    measured.replaceChildren(result ? samplesOf(result) : "");
    table = grid("Table of layers", known.map(declared), rows(layers, known), {
      choose: ({ index }) => store.set({ selected: index }),
      hover: (row) => store.set({ hovered: row?.index ?? null }),
      isSelected: ({ index }) => index === store.get().selected,
      isHovered: ({ index }) => index === store.get().hovered,
      sort: "rank",
    });
    place.replaceChildren(table);
    count.textContent = `${layers.length} of ${layers.length}`;
    table.ready.then((made) => made.on("dataFiltered", (_, kept) => (count.textContent = `${kept.length} of ${layers.length}`)));
  };
  fill();
  search.addEventListener("input", async () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    (await table.ready).setFilter((row) => words.every((word) => row.text.includes(word)));
  });
  copy.addEventListener("click", async () => copyText(csv(await table.ready, known), copy));
  store.on(["run"], fill);
  store.on(["hovered", "selected"], () => table.mark());
  store.on(["run", "selected"], ({ selected }) => selected !== null && table.show(selected));
}

/** On how many samples the figures were measured, where they are not the same. */
function samplesOf({ samples, local_samples: local, effect }) {
  const parts = [["gain", effect?.samples], ["alone dB", effect?.alone_samples], ["local dB", local]];
  const fewer = parts.filter(([, count]) => count && count < samples).map(([words, count]) => `${words} on ${count}`);
  return fewer.length ? `Measured on ${counted(samples, "sample")}; ${fewer.join(", ")} of them.` : `Measured on ${counted(samples, "sample")}.`;
}

const has = (value) => value !== null && value !== undefined && value !== "";

function declared({ field, title, word, hidden }) {
  const kind = word ? "number" : "text";
  const lowFirst = word === decibel || field === "cosine" || field === "rank";
  return { field, title, hidden, kind, lowFirst, explain: EXPLAINED[field], ...(word && { word: (v) => word(v) }) };
}

function rows(layers, columns) {
  return layers.map((layer, index) => ({
    index,
    text: `${layer.name} ${layer.op_type} ${layer.precision} ${layer.causes.map((c) => c.label).join(" ")}`.toLowerCase(),
    ...Object.fromEntries(columns.map((c) => [c.field, c.of(layer) ?? null])),
  }));
}

function columnChoice(columns, ready) {
  const boxes = columns.map(({ field, title, hidden }) => {
    const box = h("input", { type: "checkbox", checked: !hidden });
    box.addEventListener("change", async () => (await ready())[box.checked ? "showColumn" : "hideColumn"](field));
    return h("label", {}, box, " ", title);
  });
  const menu = h("details", { class: "columns" }, h("summary", {}, "Columns"), h("div", {}, ...boxes));
  const close = () => (menu.open = false);
  menu.addEventListener("keydown", ({ key }) => key === "Escape" && close());
  addEventListener("pointerdown", ({ target }) => menu.contains(target) || close());
  return menu;
}

/** The rows that are shown, sorted as they are, with all columns. */
function csv(table, columns) {
  const quoted = (v) => (/[",\n\r]/.test(v) ? `"${v.replaceAll('"', '""')}"` : v);
  const cell = (v) => quoted(v === null ? "" : String(v));
  const lines = table.getData("active").map((row) => columns.map((c) => cell(row[c.field])).join(","));
  return [columns.map((c) => c.field).join(","), ...lines].join("\n") + "\n";
}
