/**
 * Where the details of tensors come from: blocks of the file, unpacked when they are asked for, or
 * the server of `qdebug view`.
 *
 * @typedef {{sample?: number|null, channel?: number|null}} Part
 */

/** Details that stand in the page itself. */
export class FileSource {
  #data;
  #chunks = new Map();

  constructor(data) {
    this.#data = data;
  }

  /**
   * @param {number} run
   * @param {string} tensor
   * @returns {Promise<object|null>} TensorDetails; null where the page has none of the tensor
   */
  async detail(run, tensor) {
    const chunk = this.#data.runs[run].details?.[tensor];
    if (chunk === undefined) return null;
    const id = `details-${run}-${chunk}`;
    if (!this.#chunks.has(id)) this.#chunks.set(id, unpack(id));
    return (await this.#chunks.get(id))[tensor] ?? null;
  }
}

/** Details that `qdebug view` reads when they are asked for. */
export class ServerSource {
  #version;

  /** @param {string} version of what the page shows */
  constructor(version) {
    this.#version = version;
  }

  /**
   * @param {number} run
   * @param {string} tensor
   * @param {Part} part
   * @returns {Promise<object|null>} TensorDetails; null where the run has none of the tensor
   */
  async detail(run, tensor, { sample = null, channel = null } = {}) {
    const query = new URLSearchParams({ run, tensor, version: this.#version });
    if (sample !== null) query.set("sample", sample);
    if (channel !== null) query.set("channel", channel);
    const answer = await fetch(`detail?${query}`, { cache: "no-store" }).catch(() => {
      throw new Error("qdebug view has ended. Start it again.");
    });
    if (answer.status === 404) return null;
    if (!answer.ok) throw new Error((await answer.text()) || `the server answered ${answer.status}`);
    return answer.json();
  }
}

/** The JSON in a block of gzip as base64. */
async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/**
 * Ask the server again and again what it would show now.
 * @param {string} version of what the page shows
 * @param {(progress: string) => void} onProgress
 * @param {(why: string) => void} onOld the page shows something old, or the server is gone
 */
export function follow(version, onProgress, onOld) {
  let failures = 0;
  const ask = async () => {
    try {
      const status = await (await fetch("status", { cache: "no-store" })).json();
      failures = 0;
      if (status.version !== version) return onOld("new");
      onProgress(status.progress ?? "");
    } catch {
      failures += 1;
      if (failures > 2) return onOld("gone");
    }
    setTimeout(ask, 1000);
  };
  setTimeout(ask, 1000);
}
