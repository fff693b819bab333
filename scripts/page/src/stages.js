/** The steps from the training framework to the engine, and whether each holds. */

import { h } from "./dom.js";
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
  return [h("div", { class: "stages" }, plainTable(caption, ["stage", "state", "what was found"], rows))];
}
