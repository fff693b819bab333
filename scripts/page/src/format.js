/** How numbers are worded; the same words as in the terminal. */

/**
 * A number of a record as JavaScript has it: JSON has null for NaN and infinities, and says beside
 * it, in `non_finite`, which it was.
 * @returns {number|null} null where nothing was measured
 */
export function numberIn(record, key) {
  const value = record?.[key];
  if (typeof value === "number") return value;
  const kind = record?.non_finite?.[key];
  return kind ? { nan: NaN, inf: Infinity, "-inf": -Infinity }[kind] : null;
}

/** A number with a few significant digits. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "−inf";
  const rounded = Number(value.toPrecision(digits));
  const size = Math.abs(rounded);
  const text = size !== 0 && (size < 1e-4 || size >= 1e7) ? rounded.toExponential() : `${rounded}`;
  return text.replace("-", "−");
}

/** An SQNR with one decimal; "exact" where there is no error. */
export function decibel(value) {
  if (value === null || value === undefined) return "–";
  if (value === Infinity) return "exact";
  return Number.isFinite(value) ? value.toFixed(1).replace("-", "−") : number(value);
}

/** As `decibel`, with the unit where it is a number. */
export function decibels(value) {
  const text = decibel(value);
  return Number.isFinite(value) ? `${text} dB` : text;
}

/** A share of 1 in per cent. */
export function share(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return number(value);
  if (value === 0) return "0";
  if (value < 0) return `−${share(-value)}`;
  if (value < 1e-4) return "<0.01%";
  return value < 0.995 ? `${Number((100 * value).toPrecision(2))}%` : `${Math.round(100 * value)}%`;
}

/** A gain in decibels, with its sign. */
export function gainDb(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return decibel(value);
  const rounded = value.toFixed(1);
  return Number(rounded) === 0 ? "0.0" : rounded.startsWith("-") ? `−${rounded.slice(1)}` : `+${rounded}`;
}

/** Milliseconds. */
export function milliseconds(value) {
  return value === null || value === undefined ? "–" : `${number(value, 3)} ms`;
}

/** "1 layer", "3 layers". */
export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
