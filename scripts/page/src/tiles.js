import { h, nameOf } from "./dom.js";
import "./style/card.css";

/**
 * Figures, each in a box of its own.
 * @param {[string, string, (string|null)?][]} rows what it is, its value, and a remark
 * @returns {HTMLElement}
 */
export function tiles(rows) {
  const tile = ([term, value, more]) =>
    h("div", {}, h("dt", {}, nameOf(term)), h("dd", {}, nameOf(value), more ? h("small", {}, " ", nameOf(more)) : null));
  return h("dl", { class: "figures" }, ...rows.map(tile));
}
