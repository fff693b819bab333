// Bundles the page's program and style into qdebug/page/assets. Run: npm ci && npm run build
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const target = "../../qdebug/page/assets";

/** The digest of all sources: a test holds the bundle current by it, without Node.js. */
function digest() {
  const hash = createHash("sha256");
  const files = readdirSync("src", { recursive: true }).filter((f) => /\.(js|css)$/.test(f)).sort();
  for (const file of [...files.map((f) => `src/${f}`), "package-lock.json"]) {
    hash.update(file + "\n").update(readFileSync(file));
  }
  return hash.digest("hex");
}

/** What is shipped of others: their licences ask that these texts go with it. */
function licences() {
  const { packages } = JSON.parse(readFileSync("package-lock.json", "utf8"));
  const shipped = Object.entries(packages).filter(([path, { dev }]) => path && !dev);
  const texts = shipped.map(([path, { version, license }]) => {
    const name = path.replace("node_modules/", "");
    return `${name} ${version} (${license})\n\n${readFileSync(`${path}/LICENSE`, "utf8").trim()}\n`;
  });
  const colours = "color specifications and designs developed by Cynthia Brewer (http://colorbrewer.org/)";
  return `The page includes ${colours}, and these packages:\n\n${texts.join(`\n${"-".repeat(72)}\n\n`)}`;
}

writeFileSync(`${target}/LICENSES.txt`, licences());
await build({
  entryPoints: { page: "src/main.js" },
  bundle: true,
  minify: true,
  target: ["es2022"],
  charset: "utf8",
  legalComments: "none",
  banner: { js: `/*! ${licences()}*/` },
  outdir: target,
});
writeFileSync(`${target}/sources.sha256`, digest() + "\n");
