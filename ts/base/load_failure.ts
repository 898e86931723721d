import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import { pathToFileURL } from 'node:url';
import { reasonOf } from './text';
import { atPlace, PACKAGE, type Place, placeOf, unparsedAt } from './thrown_at';

const PARSE_MS = 10_000;

/**
 * Why `file`, a module of the user's, could not be loaded: what was thrown, at which line, and what to do. `caller`: our file that
 * loads it.
 */
export function loadFailure(file: string, error: unknown, caller: string): string {
  const code = typeof error === 'object' && error !== null && 'code' in error ? error.code : null;
  if (code === 'ERR_REQUIRE_ASYNC_MODULE')
    return 'it, or a module that it imports, awaits at its top level, outside of functions: expected await in functions only';
  if (code === 'ERR_MODULE_NOT_FOUND' || code === 'MODULE_NOT_FOUND') return missingModule(error, caller);
  const found = placeOf(error, caller) ?? (isSyntaxError(error) ? syntaxErrorPlace(file) : null);
  return `${reasonOf(error)}${atPlace(found)}${typescriptHint(file)}`;
}

/** Errors of `require` may come from another realm. */
const isSyntaxError = (error: unknown): boolean =>
  typeof error === 'object' && error !== null && 'name' in error && error.name === 'SyntaxError';

function typescriptHint(file: string): string {
  const typescript =
    /\.[cm]?ts$/.test(file) && !('typescript' in process.features && process.features.typescript);
  return typescript
    ? ` (this Node, ${process.version}, cannot load TypeScript: use Node >= 22.18 or compile the file to JavaScript)`
    : '';
}

/** CommonJS: "Cannot find module 'NAME'" and a list of who required it; ES modules: "Cannot find package 'NAME' imported from FILE". */
function missingModule(error: unknown, caller: string): string {
  const [reason = ''] = reasonOf(error).split('\nRequire stack:');
  const [, name = ''] = /'([^']+)'/.exec(reason) ?? [];
  const importer = / imported from (\/.*)$/m.exec(reason)?.[1];
  const found = placeOf(error, caller) ?? (importer === undefined ? null : importLine(importer, name));
  const from = importer ?? found?.file;
  return `${reason.replaceAll(/\s*\n\s*/g, '. ')}${atPlace(found)}${from === undefined ? '' : installHint(name, from)}`;
}

function installHint(name: string, importer: string): string {
  if (/^[./]|^node:/.test(name)) return '';
  const named = name.split('/', name.startsWith('@') ? 2 : 1).join('/');
  // This package need not be in a registry.
  const what = named === 'troupe' ? PACKAGE : named;
  return `: run npm install ${what} in ${dirname(importer)} or a folder above it`;
}

/** The line of an ES module that imports `name`: errors tell the file only. */
function importLine(file: string, name: string): Place | null {
  // What is relative there is told as a whole path.
  const last = basename(name);
  const line = readFileSync(file, 'utf8')
    .split('\n')
    .findIndex(
      (text) =>
        /\b(?:import|from)\b/.test(text) &&
        [`'${last}`, `"${last}`, `/${last}`].some((start) => text.includes(start)),
    );
  return line < 0 ? null : { file, line: line + 1 };
}

/**
 * Where the syntax of an ES module, or of one that it imports, is wrong: such errors do not tell, but Node does when it ends by one. All of them are
 * parsed before the first is run, and that one ends the process: nothing of the user's is run again.
 */
function syntaxErrorPlace(file: string): Place | null {
  const program = `import 'data:text/javascript,process.exit()'; import ${JSON.stringify(pathToFileURL(file).href)};`;
  const { stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', program], {
    encoding: 'utf8',
    stdio: ['ignore', 'ignore', 'pipe'],
    timeout: PARSE_MS,
  });
  return unparsedAt(stderr);
}
