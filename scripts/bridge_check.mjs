// Whether the declared bridge (ts/native/bridge*.ts) and the binding (native/binding/*.cc) say the same: functions, their arguments and results, and
// names and kinds of every property that goes through. Both are read as text, in the regular form that native/binding/README.md asks for.
//   node scripts/bridge_check.mjs [root]     prints what differs; exit code 1
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from './command_line.mjs';

const [given = path.join(path.dirname(fileURLToPath(import.meta.url)), '..')] = commandLine({
  words: 1,
}).positionals;
const root = path.resolve(given);
const findings = [];
const report = (where, what) => findings.push(`${where}: ${what}`);

// ---- What TypeScript declares -------------------------------------------------------------------

const withoutComments = (text) => text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/\/\/.*$/gm, '');
const declared = withoutComments(
  [
    'bridge.ts',
    'bridge_data.ts',
    'bridge_model.ts',
    'bridge_losses.ts',
    'bridge_rollout.ts',
    'bridge_simulation.ts',
  ]
    .map((name) => readFileSync(path.join(root, 'ts', 'native', name), 'utf8'))
    .join('\n'),
);

/** Name -> { base, properties } of every interface; name -> text of every type alias. */
const interfaces = new Map();
const aliases = new Map();
for (const [, name, base, body] of declared.matchAll(
  /export interface (\w+)(?: extends (\w+))? \{([\s\S]*?)\n\}/g,
))
  interfaces.set(name, { base, body });
for (const [, name, text] of declared.matchAll(/export type (\w+) =([\s\S]*?);/g))
  aliases.set(name, text.trim());

for (const [name, { body }] of interfaces)
  if (body.includes('{')) report(name, 'a type without a name within it is not compared: give it one');

function propertiesOf(name) {
  const { base, body } = interfaces.get(name);
  const own = [...body.matchAll(/(\w+): ([^;]+);/g)].map(([, key, type]) => [
    key,
    type.replace(/\s+/g, ' ').trim(),
  ]);
  return new Map([...(base ? propertiesOf(base) : []), ...own]);
}

const squeezed = (text) => text.replace(/\s+/g, '').replace(/,\)/g, ')');

/** The functions of the bridge: name -> { parameters: [name, type][], result, signature }. */
const functions = new Map();
for (const [, name, list, result] of interfaces
  .get('NativeBinding')
  .body.matchAll(/(\w+)\(([^()]*)\): ([^;]+);/g)) {
  const parameters = list
    .split(',')
    .map((parameter) => parameter.trim())
    .filter(Boolean)
    .map((parameter) => parameter.split(/:(.*)/s).map((part) => part.trim()));
  functions.set(name, {
    parameters,
    result: result.trim(),
    signature: squeezed(`${name}(${list}):${result}`),
  });
}

/** A type without `null` and aliases, and whether it had null. */
function resolve(text) {
  const parts = text.split('|').map((part) => part.trim());
  const kept = parts.filter((part) => part !== 'null' && part !== '');
  const nullable = kept.length < parts.filter(Boolean).length;
  const alone = kept.length === 1 && aliases.get(kept[0]);
  if (!alone) return { type: kept.join(' | '), nullable };
  const inner = resolve(alone);
  return { type: inner.type, nullable: nullable || inner.nullable };
}

// ---- What the binding does ----------------------------------------------------------------------

const directory = path.join(root, 'native', 'binding');
const sources = readdirSync(directory)
  .filter((name) => name.endsWith('.cc'))
  .map((name) => ({ name, text: readFileSync(path.join(directory, name), 'utf8') }));

function block(text, open) {
  let depth = 0;
  for (let at = open; at < text.length; at++) {
    if (text[at] === '{') depth++;
    if (text[at] === '}' && --depth === 0) return text.slice(open + 1, at);
  }
  return text.slice(open + 1);
}

const bodies = new Map(); // function -> { parameter, body, comment, file }
const exported = new Map(); // name in JavaScript -> { fn, async }
for (const { name: file, text } of sources) {
  const definition =
    /((?:^\/\/.*\n)*)^[\w:<>,& ]+?\b(\w+)\((const Field& (\w+)|Napi::Env env|const Napi::CallbackInfo& info)[^{;]*\) \{/gm;
  for (const match of text.matchAll(definition)) {
    const [whole, comment, fn, first, parameter] = match;
    const body = withoutComments(block(text, match.index + whole.length - 1)).replace(/\s+/g, ' ');
    if (first.startsWith('Napi::Env') && !fn.startsWith('write_')) continue;
    if (bodies.has(fn)) report(file, `${fn} is there twice: the check needs one name for one function`);
    bodies.set(fn, { parameter, body, comment, file });
  }
  for (const [, kind, fn, name] of text.matchAll(/export_(async|sync)<(\w+)>\(env, exports, "(\w+)"\)/g))
    exported.set(name, { fn, async: kind === 'async' });
}

const ARRAYS = {
  read_int32: 'Int32Array',
  read_float32: 'Float32Array',
  read_uint8: 'Uint8Array',
  read_bytes: 'Uint8Array',
  read_float64s: 'Float64Array',
  read_uint64s: 'BigUint64Array',
  write_int32: 'Int32Array',
  write_float32: 'Float32Array',
  write_uint8: 'Uint8Array',
};
const KINDS = {
  number: 'number',
  integer: 'number',
  count: 'number',
  boolean: 'boolean',
  string: 'string',
  numbers: 'number[]',
  integers: 'number[]',
  booleans: 'boolean[]',
};

const usage = () => ({
  kinds: new Set(),
  words: null,
  nullable: false,
  properties: new Map(),
  element: null,
  record: null,
});

const ACCESS =
  /(?:const Field (\w+) = |for \(const Field& (\w+) : |for \(const auto& \[\w+, (\w+)\] : |\b(read_\w+|open_slot|any_slot)\()?(?<![.\w"])(?:args\((\d+), "(\w+)"\)|([a-z]\w*))((?:\["\w+"\])*)(?:\.(\w+)\((?:\s*\{([^}]*)\})?)?/g;

/** Adds to the usages of `fields` (variable -> usage) what a body does with them. `argument` gives the usage of args(i, "name"). */
function follow(body, fields, argument = () => null) {
  for (const match of body.matchAll(ACCESS)) {
    const [, bound, item, entry, caller, position, name, variable, keys, method, words] = match;
    let at = position === undefined ? fields.get(variable) : argument(Number(position), name);
    if (!at) continue;
    for (const [, key] of keys.matchAll(/\["(\w+)"\]/g)) {
      if (!at.properties.has(key)) at.properties.set(key, usage());
      at = at.properties.get(key);
    }
    if (bound) fields.set(bound, at);
    if (method === 'elements') {
      at.element ??= usage();
      if (item) fields.set(item, at.element);
    } else if (method === 'entries') {
      at.record ??= usage();
      if (entry) fields.set(entry, at.record);
    } else if (method === 'word') {
      at.words = [...words.matchAll(/"(\w+)"/g)].map(([, word]) => word);
    } else if (method === 'is_null') {
      at.nullable = true;
    } else if (KINDS[method]) {
      at.kinds.add(KINDS[method]);
    } else if (method === undefined && ARRAYS[caller]) {
      at.kinds.add(ARRAYS[caller]);
    } else if (method === undefined && caller?.startsWith('read_') && bodies.has(caller)) {
      const reader = bodies.get(caller);
      follow(reader.body, new Map([[reader.parameter, at]]));
    } else if (method === undefined && (caller === 'open_slot' || caller === 'any_slot')) {
      at.kinds.add('NativeEngine');
    }
  }
}

// ---- Both compared ------------------------------------------------------------------------------

const quoted = (words) => [...words].sort().join(', ');

function compare(where, text, used) {
  const { type, nullable } = resolve(text);
  if (nullable !== used.nullable)
    report(
      where,
      nullable
        ? 'TypeScript may pass null, the binding does not ask for it'
        : 'the binding takes null, TypeScript has none',
    );
  const literals = [...type.matchAll(/'(\w+)'/g)].map(([, word]) => word);
  const element = /^(\w+)\[\]$/.exec(type)?.[1];
  if (type.startsWith('Record<')) {
    if (used.record === null) report(where, `${type} in TypeScript, no record in the binding`);
    else compare(`${where}[name]`, /, (.+)>$/.exec(type)[1], used.record);
  } else if (interfaces.has(type)) {
    compareProperties(where, type, used);
  } else if (element !== undefined && interfaces.has(element)) {
    if (used.element === null) report(where, `${type} in TypeScript, no list in the binding`);
    else compareProperties(`${where}[]`, element, used.element);
  } else if (literals.length > 0) {
    if (used.words !== null && quoted(used.words) !== quoted(literals))
      report(where, `the words ${quoted(literals)} in TypeScript, ${quoted(used.words)} in the binding`);
    if (used.words === null && !used.kinds.has('string')) report(where, 'the binding reads no word');
  } else if (used.kinds.size !== 1 || !used.kinds.has(type)) {
    report(where, `${type} in TypeScript, ${quoted(used.kinds) || 'not read'} in the binding`);
  }
}

function compareProperties(where, name, used) {
  const properties = propertiesOf(name);
  for (const [key, type] of properties) {
    const at = used.properties.get(key);
    if (at === undefined) report(`${where}.${key}`, `${name} has it, the binding does not read it`);
    else compare(`${where}.${key}`, type, at);
  }
  for (const key of used.properties.keys())
    if (!properties.has(key)) report(`${where}.${key}`, `the binding reads it, ${name} does not have it`);
}

/** Names of all properties of a type, with the typed array that each is where it is one. */
function namesOf(text, names = new Map()) {
  const { type } = resolve(text.replace(/^Promise<(.*)>$/s, '$1'));
  const name = type.replace(/\[\]$/, '');
  if (!interfaces.has(name)) return names;
  for (const [key, inner] of propertiesOf(name)) {
    names.set(key, resolve(inner).type);
    namesOf(inner, names);
  }
  return names;
}

/** Names that a body sets, with the typed array that is set. */
function setsOf(body, names = new Map()) {
  for (const [, key, writer] of body.matchAll(/\.Set\("(\w+)", (?:(\w+)\()?/g))
    names.set(key, ARRAYS[writer] ?? null);
  for (const [, writer] of body.matchAll(/\b(write_\w+)\b/g))
    if (bodies.has(writer) && !ARRAYS[writer]) setsOf(bodies.get(writer).body, names);
  return names;
}

function compareResult(where, text, body) {
  const wanted = namesOf(text);
  const set = setsOf(body);
  for (const [key, type] of wanted) {
    if (!set.has(key))
      report(`${where} returns .${key}`, 'TypeScript expects it, the binding does not set it');
    else if (/Array$/.test(type) ? set.get(key) !== type : set.get(key) !== null)
      report(
        `${where} returns .${key}`,
        `${type} in TypeScript, ${set.get(key) ?? 'no array'} in the binding`,
      );
  }
  for (const key of set.keys())
    if (!wanted.has(key))
      report(`${where} returns .${key}`, 'the binding sets it, TypeScript does not know it');
  const array = /^Promise<(\w+Array)>$/.exec(text)?.[1];
  const written = [...body.matchAll(/\b(write_\w+)\b/g)].map(([, writer]) => ARRAYS[writer]);
  if (array !== undefined && !written.includes(array)) report(where, `TypeScript expects ${array}`);
}

for (const name of functions.keys())
  if (!exported.has(name)) report(name, 'NativeBinding has it, the addon does not export it');
for (const [name, { fn, async }] of exported) {
  const declaration = functions.get(name);
  const definition = bodies.get(fn);
  if (declaration === undefined) report(name, 'the addon exports it, NativeBinding does not have it');
  if (definition === undefined) report(name, `${fn} is not found in native/binding`);
  if (declaration === undefined || definition === undefined) continue;
  if (async !== declaration.result.startsWith('Promise<'))
    report(
      name,
      `${async ? 'asynchronous' : 'synchronous'} in the binding, ${declaration.result} in TypeScript`,
    );
  if (!squeezed(definition.comment.replace(/\/\//g, '')).endsWith(declaration.signature))
    report(`${definition.file}, above ${fn}`, `expected the signature ${declaration.signature}`);
  const used = declaration.parameters.map(() => null);
  follow(definition.body, new Map(), (position, parameter) => {
    const expected = declaration.parameters[position]?.[0];
    if (expected !== parameter)
      report(name, `argument ${position} is '${parameter}' in the binding, '${expected}' in TypeScript`);
    if (position >= used.length) return null;
    used[position] ??= usage();
    return used[position];
  });
  for (const [position, [parameter, type]] of declaration.parameters.entries()) {
    if (used[position] === null) report(`${name}.${parameter}`, 'the binding does not read this argument');
    else if (type !== 'NativeEngine') compare(`${name}.${parameter}`, type, used[position]);
  }
  compareResult(name, declaration.result, definition.body);
}

for (const finding of new Set(findings)) console.error(`bridge: ${finding}`);
if (findings.length > 0) process.exitCode = 1;
else console.log(`bridge: ${exported.size} functions and ${interfaces.size} types agree`);
