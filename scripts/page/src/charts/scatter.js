import { number } from "../format.js";
import { axes, chart, extent, linear, s, text } from "./svg.js";

const HEIGHT = 260;

/**
 * The candidate's values against the reference's: on the diagonal where they are equal.
 * @param {object} scatter Scatter of qdebug/page/data.py
 * @param {[number, number]|null} bounds of the candidate's scale
 * @returns {HTMLElement}
 */
export function scatterChart({ reference, candidate }, bounds = null) {
  const pairs = reference.map((r, k) => [r, candidate[k]]).filter(([r, c]) => Number.isFinite(r) && Number.isFinite(c));
  const all = extent([...reference, ...candidate], 0.03);
  const left = reference.length - pairs.length;
  const label =
    `Scatter plot of ${pairs.length} pairs of values, reference against candidate, from ` +
    `${number(all[0], 3)} to ${number(all[1], 3)}${left ? `; ${left} pairs with NaN or Inf are not drawn` : ""}`;
  return chart(label, HEIGHT, (width) => {
    const area = { left: 52, right: width - 12, top: 22, bottom: HEIGHT - 40 };
    const x = linear(all, [area.left, area.right], Math.max(3, Math.round(width / 100)));
    const y = linear(all, [area.bottom, area.top], 5);
    const dots = pairs.map(([r, c]) => `M${x.at(r).toFixed(1)},${y.at(c).toFixed(1)}h0`).join("");
    const diagonal = { x1: x.at(all[0]), y1: y.at(all[0]), x2: x.at(all[1]), y2: y.at(all[1]) };
    const lines = (bounds ?? [])
      .filter((b) => b >= all[0] && b <= all[1])
      .map((b) => s("line", { class: "amax", x1: area.left, x2: area.right, y1: y.at(b), y2: y.at(b) }));
    return [
      ...axes(area, x, y, { xLabel: "reference", yLabel: "candidate" }),
      s("line", { class: "diagonal", ...diagonal }),
      ...lines,
      s("path", { class: "dots", d: dots }),
      left ? text(area.right, area.top - 8, `${left} with NaN or Inf not drawn`, "end", { class: "warn-word" }) : null,
    ].filter(Boolean);
  });
}
