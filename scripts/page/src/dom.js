/**
 * An element. Text is always text: nothing here reads markup.
 * @param {string} tag
 * @param {Record<string, any>} [properties] `class`, `on…` listeners, attributes
 * @param {...(Node|string|number|null|undefined|false)} children
 * @returns {HTMLElement}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((c) => c !== null && c !== undefined && c !== false).map(asNode));
  return element;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** A name from the model: shown literally, whatever is in it. */
export function nameOf(text) {
  return h("span", { class: "name", dir: "auto" }, printable(text));
}

/** So many characters at the end of a name are shown wherever it is cut short. */
const TAIL = 14;

/** A name for a place that may be too narrow: what is left out there is its beginning, not its end. */
export function cutName(text) {
  const words = [...printable(text)];
  const cut = Math.max(0, words.length - TAIL);
  return h(
    "span",
    { class: "name cut-name", dir: "auto" },
    cut ? h("span", { class: "cut-head" }, words.slice(0, cut).join("")) : null,
    h("span", { class: "cut-tail" }, words.slice(cut).join("")),
  );
}

/** Control characters and those that turn the direction of text, written as escapes. */
export function printable(text) {
  return text.replace(
    /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** A colour, or another custom property of the style sheet, as it is now. */
export function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Call `run` when the page turns light or dark. */
export function onTheme(run) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", run);
}
