import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

// scripts/bridge_check.mjs, on copies of both sides of which one has drifted.

const root = path.join(__dirname, '..', '..', '..');
let copy: string;
beforeEach(() => {
  copy = mkdtempSync(path.join(tmpdir(), 'troupe-bridge-'));
  for (const folder of [path.join('ts', 'native'), path.join('native', 'binding')])
    cpSync(path.join(root, folder), path.join(copy, folder), { recursive: true });
});
afterEach(() => rmSync(copy, { recursive: true }));

function check(): { status: number | null; findings: string[] } {
  const script = path.join(root, 'scripts', 'bridge_check.mjs');
  const { status, stderr } = spawnSync(process.execPath, [script, copy], { encoding: 'utf8' });
  return { status, findings: stderr.split('\n').filter(Boolean) };
}

function edit(file: string, from: string, to: string): void {
  const at = path.join(copy, file);
  const text = readFileSync(at, 'utf8');
  expect(text).toContain(from);
  writeFileSync(at, text.replace(from, to));
}

const DATA = 'ts/native/bridge_data.ts';
const MODEL = 'ts/native/bridge_model.ts';
const ROLLOUT = 'ts/native/bridge_rollout.ts';
const BRIDGE = 'ts/native/bridge.ts';
const ENGINE = 'native/binding/engine_binding.cc';
const ROLLOUT_BINDING = 'native/binding/rollout_binding.cc';

test('both sides agree', () => {
  expect(check()).toEqual({ status: 0, findings: [] });
});

test.each([
  [
    'a property that nobody reads',
    ROLLOUT,
    'topK: number;',
    'topK: number;\n  typicalP: number;',
    'rolloutTurn.commands.submit[].sampling.typicalP: NativeRequestSampling has it',
  ],
  [
    'a property that nobody declares',
    ROLLOUT_BINDING,
    'dto["topP"].number()',
    'dto["top_p"].number()',
    'rolloutTurn.commands.submit[].sampling.top_p: the binding reads it',
  ],
  [
    'another kind',
    DATA,
    'prefetch: boolean',
    'prefetch: string',
    'createEngine.options.prefetch: string in TypeScript, boolean in the binding',
  ],
  [
    'another typed array',
    DATA,
    'seqOffsets: Int32Array',
    'seqOffsets: Float64Array',
    'computeLogProb.batch.seqOffsets: Float64Array in TypeScript, Int32Array',
  ],
  [
    'null that is not asked for',
    DATA,
    'seed: number',
    'seed: number | null',
    'createEngine.options.seed: TypeScript may pass null',
  ],
  [
    'a word more',
    MODEL,
    "'rope' | 'learned'",
    "'rope' | 'learned' | 'alibi'",
    'createEngine.options.model.positions: the words alibi, learned, none, rope',
  ],
  [
    'a result under another name',
    'native/binding/results.cc',
    'dto.Set("sumPiSquared"',
    'dto.Set("sumSquared"',
    'computeLogProb returns .sumPiSquared: TypeScript expects it',
  ],
  [
    'an argument under another name',
    ENGINE,
    'args(2, "temperature")',
    'args(2, "tau")',
    "computeLogProb: argument 2 is 'tau' in the binding, 'temperature'",
  ],
  [
    'arguments in another order',
    BRIDGE,
    'kind: NativeTensorKind, param: string',
    'param: string, kind: NativeTensorKind',
    "getTensor: argument 1 is 'kind' in the binding, 'param'",
  ],
  [
    'an argument that nobody reads',
    BRIDGE,
    'learningRate(engine: NativeEngine)',
    'learningRate(engine: NativeEngine, at: number)',
    'learningRate.at: the binding does not read this argument',
  ],
  [
    'a function that is not exported',
    ROLLOUT_BINDING,
    '  export_async<park_rollout>(env, exports, "parkRollout");\n',
    '',
    'parkRollout: NativeBinding has it, the addon does not',
  ],
  [
    'a function that is not declared',
    ENGINE,
    'exports, "bytesSent"',
    'exports, "bytesReceived"',
    'bytesReceived: the addon exports it, NativeBinding does not',
  ],
  [
    'a promise where none is',
    BRIDGE,
    'reason: string): void',
    'reason: string): Promise<null>',
    'abort: synchronous in the binding, Promise<null>',
  ],
  [
    'a signature in a comment',
    ENGINE,
    '// bytesSent(engine: NativeEngine): Promise<number>',
    '// bytesSent(): Promise<number>',
    'expected the signature bytesSent(engine:NativeEngine)',
  ],
])('%s is found', (_what, file, from, to, finding) => {
  edit(file, from, to);
  const { status, findings } = check();
  expect(status).toBe(1);
  expect(findings.join('\n')).toContain(`bridge: ${finding}`.replace('bridge: expected', 'expected'));
});
