import { h } from "../dom.js";
import { decibel, number } from "../format.js";
import { axes, chart, extent, hint, linear, logarithmic, s } from "./svg.js";

const HEIGHT = 130;
/** Ranges that differ by more than this are drawn on a logarithmic scale. */
const WIDE = 30;
const ORDERS = [
  ["worst", "worst first", (c) => (a, b) => (c.sqnr_db[a] ?? Infinity) - (c.sqnr_db[b] ?? Infinity)],
  ["index", "by index", (c) => (a, b) => c.index[a] - c.index[b]],
  ["widest", "widest first", (c) => (a, b) => c.amax[b] - c.amax[a]],
];

/**
 * Error and range of each channel, as bars and as a table.
 * @param {object} channels Channels of qdebug/page/data.py
 * @param {object} state a place to keep the order
 * @param {((channel: number) => void)|null} choose called when a channel is clicked
 * @returns {HTMLElement}
 */
export function channelCharts(channels, state = {}, choose = null) {
  const host = h("div", {});
  const select = h("select", { class: "small", "aria-label": "Order of the channels" });
  for (const [name, words] of ORDERS) select.append(h("option", { value: name, selected: name === state.order }, words));
  select.addEventListener("change", () => {
    state.order = select.value;
    fill();
  });
  const plots = h("div", {});
  host.append(h("div", { class: "legend" }, h("span", {}, described(channels)), select), plots);
  const fill = () => plots.replaceChildren(...bars(channels, state.order ?? "worst", choose));
  fill();
  return host;
}

function described({ index, count, axis, sqnr_db }) {
  const which = index.length < count ? `the worst ${index.length} of ${count} channels` : `${count} channels`;
  const odd = sqnr_db.filter((v) => v === null).length;
  return `${which}, along axis ${axis}${odd ? `; ${odd} without a finite SQNR (grey)` : ""}`;
}

function bars(channels, order, choose) {
  const compare = ORDERS.find(([name]) => name === order)[2](channels);
  const places = channels.index.map((_, k) => k).sort(compare);
  const worst = channels.sqnr_db.reduce((a, b) => (b !== null && (a === null || b < a) ? b : a), null);
  const [narrow, wide] = extent(channels.amax);
  const errors = {
    label: `SQNR of the channels: the worst has ${worst === null ? "no finite value" : `${decibel(worst)} dB`}`,
    title: "SQNR, dB: short is bad",
    values: channels.sqnr_db,
    kind: "error-bar",
    positive: false,
  };
  const ranges = {
    label: `Largest magnitude of the channels, from ${number(narrow, 3)} to ${number(wide, 3)}`,
    title: "largest magnitude",
    values: channels.amax,
    kind: "range-bar",
    positive: true,
  };
  return [barChart(errors, channels, places, choose), barChart(ranges, channels, places, choose), table(channels, places)];
}

function barChart({ label, title, values, kind, positive }, channels, places, choose) {
  return chart(label, HEIGHT, (width) => {
    const area = { left: 46, right: width - 8, top: 20, bottom: HEIGHT - 10 };
    const y = positive ? ofRanges(values, area) : ofErrors(values, area);
    const each = (area.right - area.left) / places.length;
    const marks = places.map((k, place) => {
      const words = `channel ${channels.index[k]}\n${decibel(channels.sqnr_db[k])} dB SQNR\nlargest magnitude ${number(channels.amax[k])}`;
      const from = area.left + place * each;
      const v = values[k];
      const zero = positive ? area.bottom : y.at(Math.min(0, ...y.ticks));
      const at = v === null || (positive && !(v > 0)) ? zero : y.at(v);
      const gap = each > 4 ? 1 : 0;
      const box = { x: from, width: Math.max(0.4, each - gap), y: Math.min(at, zero - 1.5), height: Math.max(1.5, Math.abs(zero - at)) };
      const press = choose ? () => choose(channels.index[k]) : undefined;
      const hit = { class: choose ? "hit choosable" : "hit", x: from, width: each, y: area.top, height: area.bottom - area.top };
      return [
        s("rect", { class: v === null ? "no-bar" : kind, ...(v === null ? { ...box, y: area.top, height: area.bottom - area.top } : box) }),
        s("rect", { ...hit, onclick: press }, hint(words)),
      ];
    });
    return [...axes(area, null, y, { yLabel: title }), ...marks.flat()];
  });
}

function ofErrors(values, area) {
  const [low, high] = extent(values.map((v) => v ?? NaN));
  return linear([Math.min(0, low), Math.max(high, 1)], [area.bottom, area.top], 4);
}

function ofRanges(values, area) {
  const [low, high] = extent(values.filter((v) => v > 0));
  const place = [area.bottom, area.top];
  return high / low > WIDE ? logarithmic([low / 2, high], place) : linear([0, high], place, 4);
}

function table(channels, places) {
  const details = h("details", {}, h("summary", {}, "Values as a table"));
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    const head = h("tr", {}, ...["channel", "SQNR, dB", "largest magnitude"].map((t) => h("th", { scope: "col" }, t)));
    const rows = places.map((k) =>
      h("tr", {}, h("th", { scope: "row" }, channels.index[k]), h("td", {}, channels.sqnr_db[k] === null ? "not finite" : decibel(channels.sqnr_db[k])), h("td", {}, number(channels.amax[k]))),
    );
    const scroll = { class: "scroll short", tabindex: 0, role: "region", "aria-label": "Channels" };
    details.append(h("div", scroll, h("table", { class: "plain" }, h("thead", {}, head), h("tbody", {}, ...rows))));
  });
  return details;
}
