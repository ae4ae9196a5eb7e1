// Validates each line of its input, a Thing Description, with the published JSON Schema; answers one line for each, a
// list of faults.
"use strict";

const readline = require("node:readline");
const Ajv = require("ajv");
const formats = require("ajv-formats");

const schema = require("wot-thing-description-types/schema/td-json-schema-validation.json");
const ajv = new Ajv({ strict: false, allErrors: true });
formats(ajv);
const valid = ajv.compile(schema);

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const faults = valid(JSON.parse(line)) ? [] : valid.errors.map(({ instancePath, message }) => `${instancePath} ${message}`);
  process.stdout.write(`${JSON.stringify(faults)}\n`);
});
