/**
 * What the parts of the page share: which run, layer and figure are looked at.
 *
 * @typedef {object} State
 * @property {number} run the run that the card and the graph show
 * @property {number|null} selected a layer, as a position in result.layers
 * @property {number|null} hovered the same, of the one under the pointer
 * @property {string} figure the name of the figure that the graph is coloured by (figures.js)
 * @property {Set<string>|null} pinned layers kept in higher precision by the point looked at
 * @property {number|null} sample the sample that pictures show; null for the worst
 * @property {number|null} channel the channel that pictures show; null for the whole
 */

/** An observable record: listeners hear of the keys that they name, after all are set. */
export class Store {
  #state;
  #listeners = new Set();

  /** @param {State} state */
  constructor(state) {
    this.#state = Object.freeze({ ...state });
  }

  /** @returns {State} */
  get() {
    return this.#state;
  }

  /** @param {Partial<State>} changes */
  set(changes) {
    const before = this.#state;
    const changed = Object.keys(changes).filter((key) => before[key] !== changes[key]);
    if (!changed.length) return;
    this.#state = Object.freeze({ ...before, ...changes });
    for (const listener of [...this.#listeners]) {
      if (listener.keys.some((key) => changed.includes(key))) listener.run(this.#state, before);
    }
  }

  /**
   * Call `run(state, before)` when one of `keys` changes.
   * @param {string[]} keys
   * @param {(state: State, before: State) => void} run
   * @returns {() => void} ends that
   */
  on(keys, run) {
    const listener = { keys, run };
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}
