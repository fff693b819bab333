/** The samples that lose most: the picture, the text or the sound, and what each run says of it. */

import { s } from "./charts/svg.js";
import { h, nameOf, printable } from "./dom.js";
import { counted, decibels, number } from "./format.js";
import { tiles } from "./tiles.js";
import "./style/samples.css";

/** Height of the letters at a box, as a part of the picture's longer side. */
const LETTERS = 1 / 16;
/** Letters of a class's name at a box. */
const LONGEST = 24;

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  const body = h("div", {});
  const title = h("h2", {});
  host.append(title, body);
  const fill = () => {
    const run = data.runs[store.get().run];
    const byNoise = run.shown.some((one) => one.lost === null);
    title.textContent = byNoise ? "Samples with the noisiest outputs" : "Samples that lose most by the task";
    const parts = run.shown.length ? run.shown.map((one) => shown(one, run.result.clusters)) : [h("p", { class: "lacking" }, "This run shows none.")];
    const boxed = run.shown.filter((one) => one.views.some((view) => view.boxes));
    body.replaceChildren(...(boxed.length ? [legend(boxed[0].views.some(isTruth))] : []), h("div", { class: "shown-samples" }, ...parts));
  };
  store.on(["run"], fill);
  fill();
}

const isTruth = ({ of }) => of === "truth";

/** @param {boolean} labelled Whether there are true boxes; else FP32's stand for them. */
function legend(labelled) {
  const key = (kind, words) => h("span", { class: "key" }, h("span", { class: `box-key ${kind}`, "aria-hidden": "true" }), words);
  const [right, wrong] = labelled
    ? ["right: one of the true boxes, or a true one that is found", "wrong: not a true box, or a true one that is lost"]
    : ["in both", "in one only: lost, or new"];
  return h("div", { class: "legend" }, key("right", right), key("wrong", wrong));
}

function shown(one, clusters) {
  const drawn = one.picture && one.views.some((view) => view.boxes || view.mask);
  const parts = drawn
    ? [h("div", { class: "views" }, ...one.views.map((view) => figure(one, view)))]
    : [one.picture ? picture(one, [], `Sample ${one.sample}`) : null, one.text ? text(one) : null, one.sound ? sound(one) : null, said(one)];
  const loss = one.lost === null ? decibels(one.sqnr_db) : `loses ${number(one.lost, 3)}`;
  return h("article", {}, h("h3", {}, `Sample ${one.sample} `, h("small", {}, loss)), ...parts, alike(one, clusters));
}

function text({ text }) {
  return h("blockquote", { class: "shown-text", dir: "auto" }, ...text.split("\n").map((line) => h("p", {}, printable(line))));
}

/** The curve of the whole recording, what can be heard of it brighter, and the player. */
function sound({ sample, sound }) {
  const { curve, seconds, heard_seconds: heard, rate, heard_rate: heardRate } = sound;
  const width = curve.length;
  const bars = curve.map(([low, high], x) => s("line", { x1: x + 0.5, x2: x + 0.5, y1: 1 - high, y2: Math.max(1 - low, 1 - high + 0.01), class: (x + 0.5) / width <= heard / seconds ? null : "unheard" }));
  const label = `Sample ${sample}: ${inSeconds(seconds)} of sound, up to ${number(Math.max(...curve.flat().map(Math.abs)), 2)} of full scale`;
  const parts = [
    heard < seconds ? `the first ${inSeconds(heard)} of ${inSeconds(seconds)}` : inSeconds(seconds),
    heardRate < rate ? `${heardRate} of ${rate} Hz` : `${rate} Hz`,
  ];
  const player = sound.url.startsWith("data:audio/wav;") ? h("audio", { controls: true, preload: "metadata", src: sound.url }) : null;
  return h(
    "div",
    { class: "shown-sound" },
    s("svg", { viewBox: `0 0 ${width} 2`, preserveAspectRatio: "none", role: "img", "aria-label": label }, s("line", { class: "zero", x1: 0, x2: width, y1: 1, y2: 1 }), ...bars),
    player,
    h("small", {}, parts.join(", ")),
  );
}

const inSeconds = (seconds) => `${number(seconds, 3)} s`;

/** What the sample has in common with others that fail; null where it has nothing. */
function alike({ sample }, clusters) {
  const cluster = clusters?.each.find(({ samples }) => samples.includes(sample));
  if (!cluster) return null;
  const others = counted(cluster.samples.length - 1, "other sample");
  const noisy = `after it their SQNR is ${decibels(cluster.sqnr_db)}, elsewhere ${decibels(cluster.others_sqnr_db)}`;
  return h("p", { class: "alike" }, `Fails like ${others}, at `, nameOf(cluster.layer), `: ${noisy}.`);
}

/** What each run says, in words. */
function said({ views }) {
  const words = views.filter((view) => view.says);
  return words.length ? tiles(words.map((view) => [view.of, view.says])) : null;
}

function figure(one, view) {
  const words = view.boxes ? summary(view, one) : "";
  const masks = view.mask ? [image(view.mask, one, "mask")] : [];
  const layers = [...masks, ...(view.boxes ?? []).flatMap((box) => drawnBox(box, one))];
  const label = `Sample ${one.sample}, ${view.of}${words && `: ${words}`}${listed(view, one)}`;
  return h("figure", {}, h("figcaption", {}, nameOf(view.of), words ? h("small", {}, ` ${words}`) : null), picture(one, layers, label));
}

function summary(view, { views }) {
  const { boxes } = view;
  const right = boxes.filter((box) => box.right).length;
  const rest = boxes.length - right;
  if (isTruth(view)) return `${right} of ${boxes.length} found`;
  if (views.some(isTruth)) return `${right} right, ${rest} wrong`;
  return view === views[0] ? `${right} of ${boxes.length} kept` : `${right} kept, ${rest} new`;
}

/** The boxes for a screen reader, which cannot see them. */
function listed(view, { views }) {
  const { boxes } = view;
  if (!boxes?.length) return "";
  const [right, wrong] = views.some(isTruth) ? ["right", "wrong"] : ["kept", view === views[0] ? "lost" : "new"];
  return `. ${boxes.map((box) => `${words(box)} ${box.right ? right : wrong}, at ${box.corners.map(Math.round).join(" ")}`).join("; ")}`;
}

function words({ label, score }) {
  const name = printable(label).slice(0, LONGEST);
  return score === null ? name : `${name} ${score.toFixed(2)}`;
}

function picture(one, layers, label) {
  const box = { viewBox: `0 0 ${one.width} ${one.height}`, role: "img", "aria-label": label };
  return s("svg", { class: "shown-picture", ...box }, image(one.picture, one), ...layers);
}

/** Pictures are data in the page, and nothing else. */
function image(url, { width, height }, kind = "") {
  return url.startsWith("data:image/") ? s("image", { href: url, width, height, class: kind, preserveAspectRatio: "none" }) : null;
}

function drawnBox(box, { width, height }) {
  const [x1, y1, x2, y2] = box.corners;
  const size = Math.max(width, height) * LETTERS;
  const kind = box.right ? "right" : "wrong";
  // Above what is right and below what is wrong: where both are of one object, both can be read.
  const y = box.right ? Math.max(size, y1 - size / 5) : Math.min(height - size / 5, y2 + size);
  const text = s("text", { x: Math.max(0, x1), y, "font-size": size, class: kind }, words(box));
  return [s("rect", { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1), class: kind }), text];
}
