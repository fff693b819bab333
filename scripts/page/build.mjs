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

await build({
  entryPoints: { page: "src/main.js" },
  bundle: true,
  minify: true,
  target: ["es2022"],
  charset: "utf8",
  legalComments: "none",
  outdir: target,
});
writeFileSync(`${target}/sources.sha256`, digest() + "\n");
