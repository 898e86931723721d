import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { readTensors } from '../../../ts/checkpoint/safetensors';
import { findCheckpoint } from '../../../ts/export/find_checkpoint';

const dir = mkdtempSync(path.join(tmpdir(), 'json-object-'));
afterAll(() => rmSync(dir, { recursive: true }));
let next = 0;

/** A directory with one file in it. */
function holding(name: string, text: string | Buffer): string {
  const own = path.join(dir, String(next++));
  mkdirSync(own);
  writeFileSync(path.join(own, name), text);
  return own;
}

const messageOf = (work: () => unknown): string => {
  try {
    work();
  } catch (error) {
    return (error as Error).message;
  }
  throw new Error('it passed');
};

test.each<[string | Buffer, string]>([
  ['{"a": 1', ' is not valid JSON: '],
  ['[]', ' is not a JSON object'],
  ['{"a": 1,\n"a": 2}', ", line 2: the key 'a' appears twice in one object"],
  [`{"a": ${'['.repeat(300)}${']'.repeat(300)}}`, ', line 1: nested more than 200 levels deep'],
  [Buffer.from([0x7b, 0x0a, 0xff, 0x7d]), ':2: not valid UTF-8: write the file again as UTF-8'],
])('errors of a file begin with what it is about: %j', (text, what) => {
  const model = holding('config.json', text);
  const config = path.join(model, 'config.json');
  expect(messageOf(() => loadModelDirectory(model, 'lm'))).toContain(`[model] ${config}${what}`);
  const shards = holding('model.safetensors.index.json', text);
  const index = path.join(shards, 'model.safetensors.index.json');
  expect(messageOf(() => readTensors(shards))).toContain(`[safetensors] ${index}${what}`);
  const saved = holding('engine.json', text);
  const engine = path.join(saved, 'engine.json');
  expect(messageOf(() => findCheckpoint(saved, null))).toContain(`[export] ${engine}${what}`);
});
