// Answer the questions of a JSON file by fedrecsk.js: node ask.mjs fedrecsk.js questions.json
//
// A question is { file, ask, arguments }; its answer is what `ask` returns, or { error }. JSON has no
// integers beyond 2^53, so these are { "integer": "9007199254740993" } on both sides.
import { readFileSync } from "node:fs";

const [, , source, path] = process.argv;
// As a module, whatever Node takes a file named .js for.
const { load } = await import(`data:text/javascript;base64,${readFileSync(source, "base64")}`);
const read = (_, value) => (value?.integer === undefined ? value : BigInt(value.integer));
const write = (_, value) => {
  if (typeof value === "bigint") return { integer: `${value}` };
  return ArrayBuffer.isView(value) ? [...value] : value;
};
const models = new Map();
const answers = JSON.parse(readFileSync(path, "utf8"), read).map(({ file, ask, arguments: given }) => {
  try {
    if (!models.has(file)) models.set(file, load(readFileSync(file), file));
    return ask === "itemIds" ? models.get(file).itemIds : models.get(file)[ask](...given);
  } catch (error) {
    return { error: error.message };
  }
});
process.stdout.write(JSON.stringify(answers, write));
