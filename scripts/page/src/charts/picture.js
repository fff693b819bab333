import { h } from "../dom.js";
import { number } from "../format.js";
import { ERRORS, VALUES } from "./colours.js";

/** Beyond this ratio of its sides a picture is stretched: a vector would be a hairline. */
const LONGEST = 5;

/**
 * A tensor of one sample: reference, candidate and error side by side.
 * @param {object} picture Picture of qdebug/page/data.py
 * @param {"reference"|"candidate"|"error"|null} only show this one, as large as there is room
 * @returns {HTMLElement}
 */
export function pictures(picture, only = null) {
  const range = [picture.low, picture.high];
  const inColour = picture.colours === 3;
  const parts = [
    ["reference", "Reference", inColour ? null : VALUES, range],
    ["candidate", "Candidate", inColour ? null : VALUES, range],
    ["error", "Error (magnitude)", ERRORS, [0, picture.largest_error]],
  ].filter(([key]) => only === null || key === only);
  return h("div", { class: only ? "pictures one" : "pictures" }, ...parts.map((part) => view(picture, ...part)));
}

function view(picture, key, title, colours, [low, high]) {
  const { height, width, sample } = picture;
  const canvas = h("canvas", {
    width,
    height,
    role: "img",
    "aria-label": `${title} of sample ${sample}, ${height} × ${width}, from ${number(low, 3)} to ${number(high, 3)}`,
  });
  const ratio = Math.min(LONGEST, Math.max(1 / 2, width / height));
  canvas.style.aspectRatio = `${ratio}`;
  paint(canvas, bytes(picture[key]), picture.colours, colours);
  const scale = colours
    ? h("div", { class: "colour-scale" }, h("span", {}, number(low, 3)), bar(colours), h("span", {}, number(high, 3)))
    : h("div", { class: "colour-scale" }, h("span", {}, `${number(low, 3)} to ${number(high, 3)}`));
  return h("figure", {}, h("figcaption", {}, title), canvas, scale);
}

function bytes(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

/** A picture in colours has three bytes for a point; of its error the largest is shown. */
function paint(canvas, values, channels, colours) {
  const { width, height } = canvas;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let k = 0; k < width * height; k++) {
    const own = values.subarray(k * channels, (k + 1) * channels);
    const from = colours ? colours.subarray(3 * Math.max(...own)) : own;
    image.data.set([from[0], from[1], from[2], 255], 4 * k);
  }
  context.putImageData(image, 0, 0);
}

function bar(colours) {
  const canvas = h("canvas", { class: "ramp", width: 256, height: 1, "aria-hidden": "true" });
  paint(canvas, Uint8Array.from({ length: 256 }, (_, k) => k), 1, colours);
  return canvas;
}
