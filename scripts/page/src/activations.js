/** What the kept activations of a layer's tensors show. */

import { channelCharts } from "./charts/channels.js";
import { histogramChart } from "./charts/histogram.js";
import { pictures } from "./charts/picture.js";
import { scatterChart } from "./charts/scatter.js";
import { h, nameOf, printable } from "./dom.js";
import { counted } from "./format.js";
import "./style/charts.css";
import "./style/activations.css";

/** @param {HTMLElement} host */
export function mount(host, page) {
  host.classList.add("activations");
  const { store, data } = page;
  const whose = h("p", { class: "mono muted" });
  const place = h("div", {});
  const body = h("div", { class: "quarters" });
  const view = { ...page, body, ways: {}, tensor: null };
  host.append(h("div", { class: "bar" }, h("h2", {}, "Activations"), place), whose, body);
  const fill = () => {
    const { run, selected } = store.get();
    const layer = data.runs[run].result?.layers?.[selected];
    whose.replaceChildren(layer ? nameOf(layer.name) : "Select a layer in the plot, the graph or the table.");
    const names = layer ? tensorsOf(layer, data.runs[run], selected, data.served) : [];
    view.tensor = names[0]?.[0] ?? null;
    place.replaceChildren(...choice(names, view));
    store.set({ sample: null, channel: null });
    load(view);
  };
  store.on(["run", "selected"], fill);
  store.on(["sample", "channel"], () => load(view));
  fill();
}

/** Which of a layer's tensors is shown. */
function choice(names, view) {
  if (names.length < 2) return [];
  const select = h("select", { class: "small" }, ...names.map(([name, words]) => h("option", { value: name }, printable(words))));
  select.addEventListener("change", () => {
    view.tensor = select.value;
    view.store.set({ sample: null, channel: null });
    load(view);
  });
  return [h("label", { class: "screen tensor-choice" }, "Tensor ", select)];
}

/** The tensors of a layer that details may be at hand of, its output first: [name, words]. */
function tensorsOf(layer, run, selected, served) {
  const nodes = run.network?.nodes ?? [];
  const own = nodes.filter((node) => node.layer === selected);
  const reads = own.flatMap((node) => node.inputs.map((k) => nodes[k])).filter((node) => node.layer !== selected);
  const readers = (run.network?.readers_of_inputs ?? []).map((places) => places.some((k) => nodes[k].layer === selected));
  const all = [
    [layer.tensor, `output: ${layer.tensor}`],
    ...own.flatMap((node) => node.tensors.map((t) => [t, `within: ${t}`])),
    ...reads.flatMap((node) => node.tensors.map((t) => [t, `input: ${t}`])),
    ...(run.network?.inputs ?? []).filter((_, k) => readers[k]).map((t) => [t, `input: ${t}`]),
  ];
  const first = new Map();
  for (const [name, words] of all) {
    const known = run.details?.[name] !== undefined || name === layer.tensor || (served && !run.details);
    if (known && !first.has(name)) first.set(name, words);
  }
  return [...first];
}

async function load(view) {
  const { store, source, body, data, tensor } = view;
  const { run, sample, channel } = store.get();
  const asked = (view.asked = {});
  body.classList.add("busy");
  let parts;
  try {
    const details = tensor === null ? null : await source.detail(run, tensor, { sample, channel });
    parts = details ? detailed(details, data.runs[run], view) : tensor === null ? [] : lacking(data.runs[run]);
  } catch (error) {
    parts = [h("p", { class: "lacking", role: "alert" }, "The activations could not be read: ", nameOf(error.message))];
  }
  if (view.asked !== asked) return;
  body.classList.remove("busy");
  body.replaceChildren(...parts);
}

const ABOUT_ACTIVATIONS = /activation|sample|detail|tensor|histogram/i;

/** Why there are no activations, and what keeps them. */
function lacking(run) {
  const known = run.missing.filter((m) => ABOUT_ACTIVATIONS.test(m.what));
  if (!known.length) return [h("p", { class: "lacking" }, "The run keeps no activations of this tensor.")];
  return known.map((m) => h("p", { class: "lacking" }, `No ${m.what}: `, nameOf(m.reason), " ", h("strong", {}, nameOf(m.remedy))));
}

function detailed(details, run, view) {
  const { histogram, channels, scatter, picture } = details;
  const { ways, store, data } = view;
  const planes = picture ? planesOf(picture) : 0;
  const choose = data.served && channels?.count === planes ? (channel) => store.set({ channel }) : null;
  const parts = [];
  if (histogram) parts.push(part("Values", [histogramChart(histogram, (ways.histogram ??= {}))], countedIn(histogram, details)));
  if (channels) parts.push(part("Channels", [channelCharts(channels, (ways.channels ??= {}), choose)]));
  if (scatter?.reference.length) parts.push(part("Reference against candidate", [scatterChart(scatter, histogram?.bounds ?? null)]));
  if (picture) parts.push(part(pictureTitle(details, view), pictured(details, planes, view)));
  if (!picture || !scatter) parts.push(...lacking(run));
  return parts;
}

function part(title, children, more = "") {
  return h("div", {}, h("h3", {}, title, more ? h("small", {}, ` ${more}`) : null), ...children);
}

function countedIn(histogram, { samples }) {
  return histogram.samples === "calibration" ? "in FP32, of the calibration samples" : `of ${counted(samples, "kept sample")}`;
}

function pictureTitle({ picture, kept }, { store }) {
  const worst = store.get().sample === null && kept.length > 1 ? ", the worst of those kept" : "";
  const channel = picture.channel === null ? "" : `, channel ${picture.channel}`;
  return `Sample ${picture.sample}${worst}${channel}`;
}

const SHOWN = [
  ["", "side by side"],
  ["reference", "reference"],
  ["candidate", "candidate"],
  ["error", "error"],
];

function pictured(details, planes, view) {
  const { picture } = details;
  const { ways, data } = view;
  const place = h("div", {});
  const fill = () => place.replaceChildren(pictures(picture, ways.picture || null));
  const shown = h("select", { class: "small" }, ...SHOWN.map(([v, t]) => h("option", { value: v, selected: v === ways.picture }, t)));
  shown.addEventListener("change", () => {
    ways.picture = shown.value;
    fill();
  });
  fill();
  const asked = data.served ? choices(details, planes, view) : [];
  const size = `${picture.shape.join("×")}, shown as ${picture.height}×${picture.width}`;
  return [
    h("div", { class: "choices screen" }, ...asked, h("label", {}, "Show", shown)),
    place,
    h("p", { class: "muted small-print" }, `The tensor is ${size}. The error has a scale of its own.`),
  ];
}

/** Of how many planes one is pictured at a time: [planes, rows, columns] of one sample. */
function planesOf({ shape }) {
  if (shape.length === 4 && shape[0] === 1) return shape[1];
  return shape.length === 3 && shape[0] !== 1 ? shape[0] : 0;
}

/** Choice of the sample and of the channel, where there is someone to ask for them. */
function choices({ kept, picture }, planes, { store }) {
  const sample = h("select", { class: "small" }, ...kept.map((k) => h("option", { value: k, selected: k === picture.sample }, k)));
  sample.addEventListener("change", () => store.set({ sample: Number(sample.value) }));
  if (!planes) return [h("label", {}, "Sample", sample)];
  const value = picture.channel ?? "";
  const channel = h("input", { class: "small", type: "number", min: 0, max: planes - 1, step: 1, value });
  channel.addEventListener("change", () => {
    if (channel.reportValidity()) store.set({ channel: channel.value === "" ? null : Number(channel.value) });
  });
  return [h("label", {}, "Sample", sample), h("label", {}, `Channel (0 to ${planes - 1})`, channel)];
}
