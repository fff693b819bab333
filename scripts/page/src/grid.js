/** Tables of many rows, sorted by the user. */

import {
  FilterModule,
  FormatModule,
  InteractionModule,
  ResizeColumnsModule,
  ResizeTableModule,
  SortModule,
  Tabulator,
} from "tabulator-tables";
import "tabulator-tables/dist/css/tabulator_simple.min.css";
import { cutName, h, nameOf, printable } from "./dom.js";
import { number } from "./format.js";
import { withScrollHints } from "./scroll.js";
import "./style/table.css";
import "./style/grid.css";

Tabulator.registerModule([
  FilterModule,
  FormatModule,
  InteractionModule,
  ResizeColumnsModule,
  ResizeTableModule,
  SortModule,
]);

/** Where there is less room than this, in pixels, names leave some of it for the figures. */
const NARROW = 600;
/** How wide a text is at first at most, in a place of any width and in a narrow one; the first column names the row. */
const widest = (isFirst, room) => (room < NARROW ? (isFirst ? 165 : 210) : isFirst ? 420 : Math.min(480, room / 4));

/** More rows than these scroll in a box of their own. */
const ROWS_IN_FULL = 14;

/**
 * @typedef {object} Column
 * @property {string} field
 * @property {string} title
 * @property {"text"|"number"} [kind] by default number
 * @property {(value: any, row: object) => string|Node} [word] of a value; by default the number or the text
 * @property {(value: any) => number} [key] what is sorted by, of values that are no numbers
 * @property {number} [width] at least, in pixels; then it is not sorted by
 * @property {string} [explain] what the column is, where its title is short
 * @property {boolean} [hidden] at first
 * @property {boolean} [lowFirst] the lowest is the worst, and comes first when it is sorted by
 */

/**
 * @param {string} label what a screen reader says of the table
 * @param {Column[]} columns the first holds the name of the row
 * @param {object[]} rows
 * @param {object} [options] `choose` is called with a row that is selected; `sort` is the field
 *   sorted by at first, `descending` its direction; `isSelected` says which row is marked, and
 *   `isHovered` which is looked at; `hover` is called with the row under the pointer, or null
 * @returns {HTMLElement} it holds the table; `mark()` marks the selected row anew, `show(row)`
 *   scrolls there, `ready` is a promise of the Tabulator
 */
export function grid(label, columns, rows, { choose, hover, sort, descending, isSelected = never, isHovered = never } = {}) {
  const inner = h("div", {});
  const host = h("div", { class: "grid", role: "region", "aria-label": label }, inner);
  const withMarks = new Set(); // rows that are scrolled away keep their marks until they are back
  const markAll = (table) => new Set([...withMarks, ...table.getRows("visible")]).forEach(marked);
  const marked = (row) => {
    const [selected, hovered] = [isSelected(row.getData()), isHovered(row.getData())];
    row.getElement().classList.toggle("selected", selected);
    row.getElement().classList.toggle("hovered", hovered);
    row.getElement().setAttribute("aria-selected", String(selected));
    withMarks[selected || hovered ? "add" : "delete"](row);
  };
  const make = () => new Tabulator(inner, {
    data: rows.map((row, index) => ({ ...row, [INDEX]: index })),
    index: INDEX,
    columns: columns.map((c, k) => column(c, k === 0, host.clientWidth, k === 0 ? choose : undefined)),
    layout: "fitDataTable",
    maxHeight: "min(56vh, 560px)",
    ...(rows.length > ROWS_IN_FULL ? { height: "min(56vh, 560px)" } : { renderVertical: "basic" }),
    initialSort: sort ? [{ column: sort, dir: descending ? "desc" : "asc" }] : [],
    placeholder: "Nothing to show",
    rowFormatter: marked,
  });
  const ready = whenShown(host).then(() => new Promise((done) => {
    host.classList.toggle("narrow", host.clientWidth < NARROW);
    const table = make();
    if (choose) table.on("rowClick", (_, row) => choose(row.getData()));
    if (hover) {
      table.on("rowMouseEnter", (_, row) => hover(row.getData()));
      table.on("rowMouseLeave", () => hover(null));
    }
    table.on("scrollVertical", () => requestAnimationFrame(() => markAll(table)));
    table.on("tableBuilt", () => {
      nameParts(inner);
      // Heights were measured before the columns had their widths, where names are broken into lines.
      if (host.classList.contains("narrow")) table.redraw(true);
      withScrollHints(host, { inner: inner.querySelector(".tabulator-tableholder"), right: "More columns to the right: scroll →" });
      done(table);
    });
  }));
  onPaper(host, columns, ready);
  host.ready = ready;
  host.mark = () => ready.then(markAll);
  host.show = (index) => ready.then((table) => table.scrollToRow(index, "center", false).then(() => markAll(table))).catch(() => {});
  return host;
}

/** Printed, a table has all its rows, filtered and sorted as they are: not only those in sight. */
function onPaper(host, columns, ready) {
  let whole = null;
  addEventListener("beforeprint", () => {
    if (!host.made || !host.isConnected) return;
    const shown = columns.filter((c) => host.made.getColumn(c.field)?.isVisible());
    const rows = host.made.getData("active").map((row) => shown.map((c) => worded(c, row[c.field], row)));
    whole = plainTable(host.getAttribute("aria-label"), shown.map((c) => c.title), rows);
    whole.classList.add("paper");
    host.append(whole);
  });
  addEventListener("afterprint", () => whole?.remove());
  ready.then((made) => (host.made = made));
}

/** The words of a cell. */
function worded({ word, kind }, value, row) {
  if (word) return word(value, row);
  return kind === "text" ? (value ?? "") : number(value);
}

const never = () => false;

/** Tabulator's box that scrolls takes the focus, so it needs a role that a grid may hold. */
function nameParts(inner) {
  inner.querySelector(".tabulator-tableholder").setAttribute("role", "rowgroup");
  inner.querySelector(".tabulator-table").setAttribute("role", "presentation");
  inner.removeAttribute("aria-owns");
}

/** Columns get the width that their words take, which is known once they are in the page. */
function whenShown(host) {
  return new Promise((done) => {
    const observer = new ResizeObserver(() => {
      if (!host.clientWidth) return;
      observer.disconnect();
      done();
    });
    observer.observe(host);
  });
}

const INDEX = "_index";

function column({ field, title, kind = "number", word, key, width, explain, hidden, lowFirst }, isFirst, room, choose) {
  const isText = kind === "text";
  const align = isText ? "left" : "right";
  return {
    field,
    title: field,
    visible: !hidden,
    minWidth: width ?? (room < NARROW && !isText ? longestWord(title) : 40),
    headerSort: !width,
    titleFormatter: () => width ? h("span", {}, printable(title)) : h("button", { type: "button", class: "sorter", title: explain }, printable(title)),
    sorter: isText && !key ? (a, b) => String(a ?? "").localeCompare(String(b ?? "")) : (a, b, _x, _y, _column, direction) => byNumber(a, b, key ?? ((v) => v), direction),
    headerSortStartingDir: isText || lowFirst ? "asc" : "desc",
    hozAlign: width ? "left" : align,
    headerHozAlign: width ? "left" : align,
    maxInitialWidth: isText ? widest(isFirst, room) : room < NARROW ? Math.max(110, longestWord(title)) : 300,
    formatter: (cell) => {
      const value = cell.getValue();
      const shown = worded({ word, kind }, value, cell.getData());
      if (shown instanceof Node) return shown;
      if (!choose) return named(shown, isFirst);
      const open = (event) => {
        event.stopPropagation();
        choose(cell.getData());
      };
      return h("button", { type: "button", class: "link", onclick: open, title: printable(shown) }, cutName(shown));
    },
  };
}

/** The room of a title that is broken between its words, with the arrow beside it, in pixels. */
function longestWord(title) {
  return 38 + 8.6 * Math.max(...title.split(" ").map((word) => word.length));
}

function named(words, isName) {
  const span = isName ? cutName(words) : nameOf(words);
  span.title = printable(words);
  return span;
}

/** Nothing measured comes last either way; NaN counts as the smallest: the worst of an SQNR. */
function byNumber(a, b, key, direction) {
  const of = (v) => {
    if (v === null || v === undefined) return direction === "asc" ? Infinity : -Infinity;
    const value = key(v);
    return Number.isNaN(value) ? -Number.MAX_VALUE : value;
  };
  const [x, y] = [of(a), of(b)];
  return x === y ? 0 : x < y ? -1 : 1;
}

/** A column with a cell of more characters than these is read as a text: from the left, and in lines. */
const PROSE = 24;

/**
 * A small table, as it is.
 * @param {string} caption
 * @param {string[]} heads
 * @param {(string|Node|number)[][]} rows the first of each names it
 */
export function plainTable(caption, heads, rows) {
  const cell = (value) => (value instanceof Node ? value : nameOf(String(value)));
  const isProse = (k) => k > 0 && rows.some((row) => typeof row[k] === "string" && row[k].length > PROSE);
  const kinds = heads.map((_, k) => (isProse(k) ? "prose" : null));
  const head = h("tr", {}, ...heads.map((t, k) => h("th", { scope: "col", class: kinds[k] }, nameOf(t))));
  const body = rows.map(([first, ...rest]) =>
    h("tr", {}, h("th", { scope: "row" }, cell(first)), ...rest.map((v, k) => h("td", { class: kinds[k + 1] }, cell(v)))),
  );
  const table = h("table", { class: "plain" }, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, ...body));
  return withScrollHints(h("div", {}, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table)));
}
