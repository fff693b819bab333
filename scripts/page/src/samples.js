/** The samples that lose most: the picture, the text or the sound of each. */

import { h, printable } from "./dom.js";
import { number } from "./format.js";
import "./style/samples.css";

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  const body = h("div", {});
  host.append(h("h2", {}, "Samples that lose most by the task"), body);
  const fill = () => {
    const run = data.runs[store.get().run];
    const parts = run.shown.length ? run.shown.map(shown) : [h("p", { class: "lacking" }, "This run shows none.")];
    body.replaceChildren(h("div", { class: "shown-samples" }, ...parts));
  };
  store.on(["run"], fill);
  fill();
}

function shown(one) {
  const heading = h("h3", {}, `Sample ${one.sample} `, h("small", {}, `loses ${number(one.lost, 3)}`));
  return h("article", {}, heading, one.picture ? picture(one) : null, one.text ? text(one) : null, one.sound ? sound(one) : null);
}

/** Pictures and sounds are data in the page, and nothing else. */
function picture({ picture, sample }) {
  return picture.startsWith("data:image/") ? h("img", { src: picture, alt: `Sample ${sample}` }) : null;
}

function text({ text }) {
  return h("blockquote", { class: "shown-text", dir: "auto" }, ...text.split("\n").map((line) => h("p", {}, printable(line))));
}

function sound({ sound }) {
  const { url, seconds, heard_seconds: heard } = sound;
  const player = url.startsWith("data:audio/wav;") ? h("audio", { controls: true, preload: "metadata", src: url }) : null;
  const length = heard < seconds ? `the first ${inSeconds(heard)} of ${inSeconds(seconds)}` : inSeconds(seconds);
  return h("div", { class: "shown-sound" }, player, h("small", {}, length));
}

const inSeconds = (seconds) => `${number(seconds, 3)} s`;
