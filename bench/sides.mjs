import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { NATIVE_CALL, ROLE_OPERATIONS } from './measure.mjs';
import { runProgram } from './python.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const SHARED = ['repeat', 'warmup', 'threads', 'dtype', 'device', 'micro-tokens'];
/** Of the peer's variants those that sample, and those that do nothing else. */
const GENERATING = ['padded', 'continuous', 'vllm'];
const SAMPLING_ONLY = ['continuous', 'vllm'];
const flags = (args, names) => names.flatMap((name) => [`--${name}`, args[name]]);

/** The wanted operations of each role, for one process each: a role's peak memory is its own. */
const byRole = (args) =>
  Object.values(ROLE_OPERATIONS)
    .map((names) => names.filter((name) => args.ops.split(',').includes(name)))
    .filter((names) => names.length > 0);

/** One round of our side. The worker logs each native call, which gives the time that is not spent in it. */
export async function runOurs(directory, args) {
  const lines = [];
  for (const ops of byRole(args)) {
    const own = [];
    const native = {};
    const options = [...flags(args, SHARED), ...flags(args, ['new-tokens']), '--ops', ops.join(',')];
    if (args.quantization !== undefined) options.push('--quantization', args.quantization);
    await runProgram(process.execPath, [join(HERE, 'subject.mjs'), directory, ...options], {
      env: { TROUPE_TRACE_NATIVE_CALLS: '1' },
      onLine: (line) => own.push(JSON.parse(line)),
      onError: (line) => {
        const call = line.match(/\[native #\d+\] (\w+) done in ([\d.]+) ms/);
        if (call) native[call[1]] = [...(native[call[1]] ?? []), Number(call[2]) / 1000];
        else if (!line.includes('[native #')) console.error(line);
      },
    });
    for (const line of own) {
      const each = line.native_calls ?? 1;
      const runs = Number(args.warmup) + Number(args.repeat);
      const calls = (native[NATIVE_CALL[line.op]] ?? []).splice(0, runs * each);
      const sums = Array.from({ length: calls.length / each }, (_, i) =>
        calls.slice(i * each, (i + 1) * each).reduce((a, b) => a + b),
      );
      line.native_all = sums.slice(Number(args.warmup));
    }
    lines.push(...own);
  }
  return lines;
}

/** One round of a peer. A side that died becomes an error line per operation, so that the others still count. */
export async function runPeer(directory, args, variant, python) {
  const own = args.peer === 'own';
  const script = own ? join(HERE, 'peer', 'peer_hf.py') : join(args.peer, 'peer_hf.py');
  const options = [directory, '--variant', variant, '--malloc', 'keep', ...flags(args, SHARED)];
  if (own) options.push(...flags(args, ['new-tokens']));
  const lines = [];
  for (const all of byRole(args)) {
    const generates = own && GENERATING.includes(variant);
    const ops = all.filter((op) =>
      op === 'generate' ? generates : op !== 'export_weights' && !SAMPLING_ONLY.includes(variant),
    );
    if (ops.length === 0) continue;
    const found = await python
      .jsonLines(script, [...options, '--ops', ops.join(',')])
      .catch(({ message }) => ops.map((op) => ({ peer: 'hf', variant, op, error: message })));
    lines.push(...found);
  }
  return lines;
}

/** One round of the head alone: ours, and PyTorch's chunked formula where there is a peer. */
export async function runHead(shape, args, python) {
  const options = [shape, ...flags(args, ['repeat', 'warmup', 'threads', 'dtype', 'device'])];
  const lines = [];
  await runProgram(process.execPath, [join(HERE, 'head.mjs'), ...options], {
    onLine: (line) => lines.push(JSON.parse(line)),
  });
  if (args.peer) lines.push(...(await python.jsonLines(join(HERE, 'peer', 'peer_head.py'), options)));
  return lines;
}
