// node bench/serve_soak.mjs [STREAMS [SECONDS]]: so many chat streams at a time against `troupe serve` with a small model of random weights; each is
// followed by another one until the time is over. A stream is lost when it does not end with its finish reason, its usage and [DONE].
import { spawn } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeInitialModel } from '../examples/arithmetic/initial_model.mjs';
import { Random } from '../examples/arithmetic/random.mjs';
import { commandLine, wholeNumber } from '../scripts/command_line.mjs';
import { writeByteTokenizer } from './byte_tokenizer.mjs';
import { scratchDirectory } from './scratch.mjs';

const given = commandLine({ words: 2 }).positionals;
const streams = wholeNumber(given[0] ?? '200', 1, 'STREAMS');
const seconds = wholeNumber(given[1] ?? '60', 1, 'SECONDS');
const TOKENS = 64;
const CLI = fileURLToPath(new URL('../dist/cli.js', import.meta.url));

/** The example's decoder with the vocabulary of the byte tokenizer: its embedding is repeated. */
function writeModel(directory) {
  writeInitialModel(directory, new Random(1));
  const file = join(directory, 'model.safetensors');
  const bytes = readFileSync(file);
  const end = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, end).toString());
  const embedding = header['model.embed_tokens.weight'];
  const [rows, width] = embedding.shape;
  const [from, to] = embedding.data_offsets;
  const wide = Buffer.alloc(257 * width * 4);
  for (let row = 0; row < 257; row++) {
    const at = end + from + (row % rows) * width * 4;
    bytes.copy(wide, row * width * 4, at, at + width * 4);
  }
  const tensors = bytes.subarray(end);
  delete header['model.embed_tokens.weight'];
  delete header.__metadata__;
  const moved = {
    'model.embed_tokens.weight': { ...embedding, shape: [257, width], data_offsets: [0, wide.length] },
  };
  const shift = wide.length - (to - from);
  const parts = [wide];
  for (const [name, entry] of Object.entries(header).sort(
    (a, b) => a[1].data_offsets[0] - b[1].data_offsets[0],
  )) {
    moved[name] = { ...entry, data_offsets: entry.data_offsets.map((offset) => offset + shift) };
    parts.push(tensors.subarray(...entry.data_offsets));
  }
  if (from !== 0) throw new Error('expected the embedding to be the first tensor');
  const json = Buffer.from(JSON.stringify(moved).padEnd(Math.ceil(JSON.stringify(moved).length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  writeFileSync(file, Buffer.concat([length, json, ...parts]));
  const config = JSON.parse(readFileSync(join(directory, 'config.json'), 'utf8'));
  const changed = { ...config, vocab_size: 257, eos_token_id: 256, max_position_embeddings: 512 };
  writeFileSync(join(directory, 'config.json'), JSON.stringify(changed));
  rmSync(join(directory, 'generation_config.json'), { force: true });
  writeByteTokenizer(directory);
}

/** One stream: whether it came to its end, how many tokens it had, and how long its first one took. */
async function follow(url, seed) {
  const started = performance.now();
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({
      messages: [{ role: 'user', content: `Question ${seed % 7}: how are you?` }],
      max_tokens: TOKENS,
      seed,
      ignore_eos: true,
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  let text = '';
  let first = null;
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    if (first === null && text.includes('"content":"') && text.split('data: ').length > 2)
      first = performance.now() - started;
  }
  const usage = /"completion_tokens":(\d+)/.exec(text);
  const complete =
    text.endsWith('data: [DONE]\n\n') && text.includes('"finish_reason":"length"') && usage !== null;
  return { complete, tokens: Number(usage?.[1] ?? 0), first: first ?? 0, all: performance.now() - started };
}

const quantile = (values, share) => values.sort((a, b) => a - b)[Math.floor(share * (values.length - 1))];

const directory = scratchDirectory('soak');
writeModel(directory);
const server = spawn(process.execPath, [CLI, 'serve', directory, '--port', '0'], {
  stdio: ['ignore', 'ignore', 'pipe'],
});
// Also where something fails here.
process.once('exit', () => server.kill());
let said = '';
server.stderr.on('data', (text) => {
  said += text;
});
while (!/at (\S+)\/v1/.test(said)) {
  if (server.exitCode !== null) throw new Error(said);
  await new Promise((done) => setTimeout(done, 100));
}
const url = /at (\S+)\/v1/.exec(said)[1];
const began = performance.now();
const until = began + 1000 * seconds;
const done = [];
let failed = 0;
let seed = 0;
await Promise.all(
  Array.from({ length: streams }, async () => {
    while (performance.now() < until) {
      try {
        done.push(await follow(url, seed++));
      } catch {
        failed++;
      }
    }
  }),
);
// Those that run when the time is over are followed to their end.
const elapsed = (performance.now() - began) / 1000;
const memory = Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`, 'utf8'))[1]) / 1024;
server.kill('SIGTERM');
await new Promise((ended) => server.once('close', ended));
const lost = failed + done.filter(({ complete }) => !complete).length;
const tokens = done.reduce((sum, one) => sum + one.tokens, 0);
console.log(
  `${streams} streams at a time for ${elapsed.toFixed(1)} s: ${done.length} streams, ${lost} lost, ${(tokens / elapsed).toFixed(0)} tokens/s; ` +
    `first text after ${quantile(
      done.map(({ first }) => first),
      0.5,
    ).toFixed(0)} ms (median), all after ${quantile(
      done.map(({ all }) => all),
      0.5,
    ).toFixed(0)} ms; ` +
    `the server took ${memory.toFixed(0)} MiB`,
);
process.exit(lost === 0 ? 0 : 1);
