// Bundles the page: node build.mjs MODULES OUTPUT. MODULES: the folder with node_modules. The same sources give the same
// bytes.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const [modules, output] = process.argv.slice(2);
const source = dirname(fileURLToPath(import.meta.url));
const require = createRequire(join(modules, "package.json"));
const esbuild = require("esbuild");

const bundled = await esbuild.build({
    absWorkingDir: source,
    bundle: true,
    entryPoints: ["main.js", "style.css"],
    format: "esm",
    legalComments: "none",
    logLevel: "warning",
    minify: true,
    nodePaths: [join(modules, "node_modules")],
    outdir: "out",
    target: ["chrome109", "firefox115", "safari16"],
    write: false,
});

const assets = join(output, "assets");
rmSync(output, { recursive: true, force: true });
mkdirSync(assets, { recursive: true });

function write(path, data) {
    const packed = gzipSync(data, { level: 9 });
    packed[9] = 255; // the operating system, which is not the same everywhere
    writeFileSync(path, data);
    writeFileSync(`${path}.gz`, packed);
}

function hashed(name, data) {
    const dot = name.lastIndexOf(".");
    const hash = createHash("sha256").update(data).digest("hex").slice(0, 12);
    const full = `${name.slice(0, dot)}-${hash}${name.slice(dot)}`;
    write(join(assets, full), data);
    return `assets/${full}`;
}

const filled = (text, names) => text.replace(/{{(\w+)}}/g, (_, name) => names[name]);
const places = { icon: hashed("icon.svg", readFileSync(join(source, "icon.svg"))) };
for (const size of [180, 192, 512]) places[`icon${size}`] = hashed(`icon-${size}.png`, readFileSync(join(source, `icon-${size}.png`)));
const beside = Object.fromEntries(Object.entries(places).map(([name, place]) => [name, place.slice("assets/".length)]));
places.manifest = hashed("manifest.webmanifest", Buffer.from(filled(readFileSync(join(source, "manifest.json"), "utf8"), beside)));
for (const file of bundled.outputFiles) {
    const name = file.path.split("/").pop();
    places[name === "main.js" ? "script" : "style"] = hashed(name, file.contents);
}
const index = filled(readFileSync(join(source, "index.html"), "utf8"), places);
write(join(output, "index.html"), Buffer.from(index));

const { dependencies } = JSON.parse(readFileSync(join(source, "package.json"), "utf8"));
const licenses = Object.keys(dependencies).map((name) => {
    const folder = join(modules, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    return `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(output, "licenses.txt"), licenses.join("\n\n"));
