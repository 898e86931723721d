// node grammar_memory.cjs COUNT...: what the memory of xgrammar has grown to, in bytes, after each of these numbers of schemas, as JSON. Its memory
// only ever grows, and the same work takes the same of it.
const memories = [];
const { instantiate } = WebAssembly;
WebAssembly.instantiate = async (...args) => {
  const made = await instantiate(...args);
  const { exports } = made.instance ?? made;
  memories.push(...Object.values(exports).filter((one) => one instanceof WebAssembly.Memory));
  return made;
};
const { CompiledGrammars } = require('../../../dist/serve/grammar/compiled_grammars.js');
const { loadLibrary } = require('../../../dist/serve/grammar/xgrammar.js');

const schemaOf = (i) => {
  const properties = Object.fromEntries(
    Array.from({ length: 40 }, (_, k) => [`field_${i}_${k}`, { type: 'string', maxLength: 8 }]),
  );
  return JSON.stringify({ type: 'object', properties, required: Object.keys(properties) });
};

async function main() {
  const tokens = Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i)).concat('');
  const grammars = new CompiledGrammars(loadLibrary(), { tokens, stopTokenIds: [95] });
  const sizes = [];
  let made = 0;
  for (const count of process.argv.slice(2)) {
    for (; made < Number(count); made++) await grammars.of({ kind: 'json-schema', schema: schemaOf(made) });
    sizes.push(memories.reduce((sum, { buffer }) => sum + buffer.byteLength, 0));
  }
  console.log(JSON.stringify(sizes));
}

void main();
