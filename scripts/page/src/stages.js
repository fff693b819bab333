/** The steps from the training framework to the engine, and whether each holds; the export's causes. */

import { h, nameOf } from "./dom.js";
import { plainTable } from "./grid.js";

const STATES = { passed: ["passed", "good"], failed: ["failed", "bad"], measured: ["measured", ""], "not-run": ["not run", "muted"] };

/** What opens a comparison below its sentence; nothing for other results. */
export function stages(result, caption) {
  if (!result?.stages?.length) return [];
  const rows = result.stages.map((stage) => {
    const [word, tone] = STATES[stage.state];
    const told = [stage.told, stage.next_step].filter(Boolean).join(": ");
    return [stage.between, h("strong", { class: tone }, word), told];
  });
  const causes = result.framework?.agrees === false ? result.framework.causes : [];
  return [
    h("div", { class: "stages" }, plainTable(caption, ["stage", "state", "what was found"], rows)),
    ...causes.slice(0, 3).map(({ label, evidence, remedy, proven }) =>
      h("p", { class: "remedy" }, nameOf(remedy), h("span", { class: "muted" }, nameOf(` (${proven ? "" : "suspected: "}${label}: ${evidence})`))),
    ),
  ];
}
