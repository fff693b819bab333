/** Groups of samples: what each loses. */

import { h } from "./dom.js";
import { counted, decibel, number, numberIn, share } from "./format.js";
import { plainTable } from "./grid.js";

/** Whether a run compared groups of samples; those of a calibration are of another form. */
export const has = (run) => run.kind === "compare" && Boolean(run.result?.groups);

/** @param {HTMLElement} host */
export function mount(host, { data, store }) {
  const note = h("span", { class: "muted" });
  const body = h("div", {});
  host.append(h("div", { class: "bar" }, h("h2", {}, "Groups of samples"), note), body);
  const draw = () => {
    const run = data.runs[store.get().run];
    const { groups, metric } = has(run) ? run.result : {};
    note.textContent = groups ? `by ${groups.name}, the worst first` : "";
    body.replaceChildren(groups ? table(groups, metric) : h("p", { class: "lacking" }, "This run has no groups."));
  };
  draw();
  store.on(["run"], draw);
}

function table(groups, metric) {
  const all = groups.calibration_samples;
  const columns = [
    ["group", (g) => (g.name === groups.worst ? h("strong", { class: "bad" }, g.name) : g.name)],
    ["samples", (g) => g.samples],
    ...(all ? [["calibrated on", (g) => `${g.calibration_samples} (${share(g.calibration_samples / all)})`]] : []),
    ["SQNR dB, 95%", (g) => `${inDecibels(numberIn(g, "noise"))}${ends(g.noise_interval?.map(inDecibels).reverse())}`],
    ...(metric ? [[metric.name, scores], ["change, 95%", change]] : []),
  ];
  return plainTable(counted(groups.each.length, "group"), columns.map(([head]) => head), groups.each.map((g) => columns.map(([, cell]) => cell(g))));
}

/** Noise Σerr²/Σref² as an SQNR; infinite noise stands for NaN. */
function inDecibels(noise) {
  if (noise === null) return "–";
  if (!Number.isFinite(noise)) return "NaN";
  return decibel(noise === 0 ? Infinity : -10 * Math.log10(noise));
}

const ends = (interval) => (interval ? ` (${interval[0]} to ${interval[1]})` : "");

const change = ({ score }) => score?.uncertainty?.change.map((v) => number(v)).join(" to ") ?? "–";

const scores = ({ score }) => (score ? `${number(score.reference)} → ${number(score.candidate)}` : "–");
