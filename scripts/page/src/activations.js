/** What the kept activations of a layer's tensors show. */

import { channelCharts } from "./charts/channels.js";
import { histogramChart } from "./charts/histogram.js";
import { pictures } from "./charts/picture.js";
import { scatterChart } from "./charts/scatter.js";
import { h, nameOf, printable } from "./dom.js";
import { counted } from "./format.js";
import "./style/charts.css";

/**
 * @param {object} layer
 * @param {{data: object, store: object, source: object}} page
 * @param {object} ways how the user wants charts drawn; kept while layers change
 * @returns {HTMLElement[]}
 */
export function activations(layer, { data, store, source }, ways) {
  const run = data.runs[store.get().run];
  const names = tensorsOf(layer, run, store.get().selected, data.served);
  const body = h("div", { "aria-live": "off" });
  const select = h("select", { "aria-label": "Tensor" }, ...names.map(([name, words]) => h("option", { value: name }, printable(words))));
  const shown = { tensor: names[0]?.[0] ?? null };
  const view = { data, store, source, ways, run, body, shown };
  select.addEventListener("change", () => {
    shown.tensor = select.value;
    store.set({ sample: null, channel: null });
    load(view);
  });
  const off = store.on(["sample", "channel"], () => (body.isConnected ? load(view) : off()));
  const choice = names.length > 1 ? h("div", { class: "choices screen" }, h("label", { class: "whole" }, "Tensor", select)) : null;
  load(view);
  return [h("h3", {}, "Activations"), choice, body].filter(Boolean);
}

/** The tensors of a layer that details may be at hand of, its output first: [name, words]. */
function tensorsOf(layer, run, selected, served) {
  const nodes = run.network?.nodes ?? [];
  const own = nodes.filter((node) => node.layer === selected);
  const reads = own.flatMap((node) => node.inputs.map((k) => nodes[k])).filter((node) => node.layer !== selected);
  const all = [
    [layer.tensor, `output: ${layer.tensor}`],
    ...own.flatMap((node) => node.tensors.map((t) => [t, `within: ${t}`])),
    ...reads.flatMap((node) => node.tensors.map((t) => [t, `input: ${t}`])),
  ];
  const first = new Map();
  for (const [name, words] of all) {
    const known = run.details?.[name] !== undefined || name === layer.tensor || (served && !run.details);
    if (known && !first.has(name)) first.set(name, words);
  }
  return [...first];
}

async function load(view) {
  const { store, source, body, shown } = view;
  const { run, sample, channel } = store.get();
  const asked = (view.asked = {});
  body.classList.add("busy");
  let parts;
  try {
    parts = shown.tensor === null ? [] : await source.detail(run, shown.tensor, { sample, channel });
    parts = parts ? detailed(parts, view) : lacking(view.run);
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

function detailed(details, view) {
  const { ways, data, store } = view;
  const choose = data.served ? (channel) => store.set({ channel }) : null;
  const parts = [];
  if (details.histogram) {
    const of = details.histogram.samples === "calibration" ? "FP32, of the calibration samples" : counted(details.samples, "kept sample");
    parts.push(h("h4", {}, "Values", h("small", {}, ` ${of}`)), histogramChart(details.histogram, (ways.histogram ??= {})));
  }
  if (details.channels) parts.push(h("h4", {}, "Channels"), channelCharts(details.channels, (ways.channels ??= {}), choose));
  if (details.scatter?.reference.length) {
    parts.push(h("h4", {}, "Reference against candidate"), scatterChart(details.scatter, details.histogram?.bounds ?? null));
  }
  if (details.picture) parts.push(h("h4", {}, pictureTitle(details, view)), ...pictured(details, view));
  if (!details.picture || !details.scatter) parts.push(...lacking(view.run));
  return parts;
}

function pictureTitle({ picture, kept }, { store }) {
  const worst = store.get().sample === null ? (kept.length > 1 ? ", the worst of those kept" : "") : "";
  const channel = picture.channel === null ? "" : `, channel ${picture.channel}`;
  return `Sample ${picture.sample}${worst}${channel}`;
}

const SHOWN = [
  ["", "side by side"],
  ["reference", "reference"],
  ["candidate", "candidate"],
  ["error", "error"],
];

function pictured(details, view) {
  const { picture } = details;
  const { ways } = view;
  const place = h("div", {});
  const fill = () => place.replaceChildren(pictures(picture, ways.picture || null));
  const shown = h("select", { class: "small" }, ...SHOWN.map(([v, t]) => h("option", { value: v, selected: v === ways.picture }, t)));
  shown.addEventListener("change", () => {
    ways.picture = shown.value;
    fill();
  });
  fill();
  const size = `${picture.shape.join("×")}, shown as ${picture.height} × ${picture.width}`;
  const choices = h("div", { class: "choices screen" }, ...(view.data.served ? parts(details, view) : []), h("label", {}, "Show", shown));
  return [choices, place, h("p", { class: "muted" }, `One sample's tensor is ${size}; the error has a scale of its own.`)];
}

/** Choice of the sample and of the channel, where there is someone to ask for them. */
function parts({ kept, picture, channels }, { store }) {
  const sample = h("select", { class: "small" }, ...kept.map((k) => h("option", { value: k, selected: k === picture.sample }, k)));
  sample.addEventListener("change", () => store.set({ sample: Number(sample.value) }));
  if (!channels) return [h("label", {}, "Sample", sample)];
  const value = picture.channel ?? "";
  const channel = h("input", { class: "small", type: "number", min: 0, max: channels.count - 1, step: 1, value, placeholder: "default" });
  channel.addEventListener("change", () => {
    if (channel.reportValidity()) store.set({ channel: channel.value === "" ? null : Number(channel.value) });
  });
  return [h("label", {}, "Sample", sample), h("label", {}, `Channel (0 to ${channels.count - 1})`, channel)];
}
