/**
 * Colour scales, even to the eye and readable by the colour-blind: cividis for values (Nuñez,
 * Anderton, Renslow: PLOS ONE 13(7), 2018), inferno for errors (van der Walt, Smith: 2015). Thirteen
 * of their colours; those between are mixed.
 */

const CIVIDIS =
  "00224e 003170 2a3f6d 434e6c 575d6d 6a6c71 7d7c78 918b78 a59c74 bcae6c d2c060 e9d34e fee838";
const INFERNO =
  "000004 110a30 320a5e 57106e 781c6d 9a2865 bc3754 d84c3e ed6925 f98e09 fbb61a f4df53 fcffa4";

export const VALUES = table(CIVIDIS);
export const ERRORS = table(INFERNO);

/** Red, green and blue for 0 to 255. */
function table(colours) {
  const stops = colours.split(" ").map((c) => [0, 2, 4].map((k) => Number.parseInt(c.slice(k, k + 2), 16)));
  const out = new Uint8Array(256 * 3);
  for (let v = 0; v < 256; v++) {
    const at = (v / 255) * (stops.length - 1);
    const [a, b] = [stops[Math.floor(at)], stops[Math.ceil(at)]];
    for (let k = 0; k < 3; k++) out[3 * v + k] = Math.round(a[k] + (b[k] - a[k]) * (at - Math.floor(at)));
  }
  return out;
}
