// The library that turns grammars into masks of tokens.
import { readFileSync } from 'node:fs';
import { createRequire, Module } from 'node:module';

export type Library = typeof import('@mlc-ai/web-xgrammar', { with: { 'resolution-mode': 'import' }});

/** The package calls itself an ES module, but what it ships is none: neither import nor require can load it as it is. */
export function loadLibrary(): Library {
  const file = createRequire(__filename).resolve('@mlc-ai/web-xgrammar');
  const loaded = new Module(file) as Module & { _compile(source: string, file: string): void };
  loaded._compile(readFileSync(file, 'utf8'), file.replace(/\.js$/, '.cjs'));
  return loaded.exports as Library;
}
