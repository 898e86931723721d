// The command `troupe serve`: its options, its workers, and how it ends.
import { spawnSync } from 'node:child_process';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { readTensors } from '../../ts/checkpoint/safetensors';
import { CONFORMANCE } from '../helpers/conformance';
import { Command, type Exit, runCommand } from '../helpers/e2e_process';
import { Workspace, writeSafetensors } from '../helpers/e2e_workspace';
import { announced, ask, client, OPTIONS, writeServedModel } from '../helpers/serve/served_model';

const END_ONCE_TOLD = resolve('test/helpers/end_once_told.cjs');

let workspace: Workspace;

beforeAll(async () => {
  workspace = await Workspace.create();
  await writeServedModel(workspace.file('model'));
  copyModel('large', { max_position_embeddings: 1_000_000 });
});
afterAll(() => workspace.remove());

/** The model under another name, with these changes of its configuration. */
function copyModel(name: string, changes: object): void {
  cpSync(workspace.file('model'), workspace.file(name), { recursive: true });
  const file = join(workspace.file(name), 'config.json');
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...changes }));
}

test('a server whose worker dies ends with an error, and its streams with them', async () => {
  const own = new Command(['serve', workspace.file('model'), ...OPTIONS]);
  const base = await announced(own);
  const health = async (): Promise<number> => (await fetch(`${base}/health`)).status;
  expect(await health()).toBe(200);
  const stream = await client(base).chat.completions.create({ ...ask, max_tokens: 900, stream: true });
  const read = async (): Promise<void> => {
    for await (const _ of stream) for (const pid of own.workers()) process.kill(pid, 'SIGKILL');
  };
  await expect(read()).rejects.toThrow(/worker rank 0 died/);
  const { code, stderr } = await own.exited;
  expect([code, stderr]).toEqual([
    1,
    expect.stringMatching(/troupe: error \(WORKER_DIED\): worker rank 0 died/),
  ]);
});

test('a cache that is smaller than the model bounds requests, and serve has the options for it', async () => {
  // 256 bytes per position: on a machine with less than 10 TB the cache has no room for a million.
  const share = ['--gpu-memory-utilization', '0.0001'];
  const own = new Command(['serve', workspace.file('large'), ...OPTIONS, ...share]);
  const base = await announced(own);
  const room = (await client(base).models.list()).data[0] as unknown as { max_model_len: number };
  expect(room.max_model_len).toBeLessThan(1_000_000);
  expect(own.stderr).toContain(`requests may have ${room.max_model_len} tokens of the model's 1000000`);
  // As long as it likes.
  const stream = await client(base).chat.completions.create({ ...ask, max_tokens: null, stream: true });
  for await (const { choices } of stream) if (choices[0]?.delta.content) break;
  own.kill('SIGTERM');
  expect((await own.exited).code).toBe(0);

  const run = (...options: string[]): Promise<Exit> =>
    runCommand(['serve', workspace.file('large'), ...OPTIONS, ...options]);
  expect(await run(...share, '--max-model-len', '900000')).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(
      /--max-model-len: expected at most \d+, for which the cache .*got 900000: --gpu-memory-utilization/,
    ),
  });
  expect(await run('--max-model-len', '2000000')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--max-model-len: expected at most 1000000, the positions of the model'),
  });
  expect(await run('--num-speculative-tokens', '-1')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--num-speculative-tokens: expected an integer from 0 to'),
  });
  expect(await run('--gpu-memory-utilization', '1.5')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--gpu-memory-utilization: expected a number above 0 and at most 1'),
  });
});

test('latents are kept where the model has them, unless keys and values are asked for', async () => {
  const moonlight = join(CONFORMANCE, 'models', 'moonlight', 'actor');
  const read = (directory: string) => JSON.parse(readFileSync(join(directory, 'config.json'), 'utf8'));
  const vocabulary = read(workspace.file('model')).vocab_size as number; // the tokenizer's
  copyModel('latents', { ...read(moonlight), max_position_embeddings: 1_000_000, vocab_size: vocabulary });
  const tensors = [...readTensors(moonlight).values()].map(({ name, dtype, shape, file, offset, bytes }) => {
    const data = readFileSync(file).subarray(offset, offset + bytes);
    if (!/embed_tokens|lm_head/.test(name)) return { name, dtype, shape, data };
    const [rows, width] = shape as [number, number];
    const more = Buffer.alloc(((vocabulary - rows) * bytes) / rows);
    return { name, dtype, shape: [vocabulary, width], data: Buffer.concat([data, more]) };
  });
  writeSafetensors(join(workspace.file('latents'), 'model.safetensors'), tensors);
  // Tokens that the cache has room for.
  const room = async (...options: string[]): Promise<number> => {
    const args = ['serve', workspace.file('latents'), ...OPTIONS, '--gpu-memory-utilization', '0.001'];
    const own = new Command([...args, ...options]);
    const [model] = (await client(await announced(own)).models.list()).data;
    own.kill('SIGTERM');
    expect((await own.exited).code).toBe(0);
    return (model as unknown as { max_model_len: number }).max_model_len;
  };
  // 10 + 4 numbers per layer in the place of 4 heads x 2 x 12, in whole pages.
  expect((await room()) / (await room('--no-latent-cache'))).toBeCloseTo(96 / 14, 1);
  expect(await runCommand(['serve', workspace.file('model'), ...OPTIONS, '--latent-cache'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--latent-cache: the model has no latent attention'),
  });
});

test('asked to end in the moment in which it says that it serves, it ends by itself', async () => {
  const args = ['--require', END_ONCE_TOLD, resolve('dist/cli.js'), 'serve', workspace.file('model')];
  const own = spawnSync(process.execPath, [...args, ...OPTIONS], {
    encoding: 'utf8',
    env: { ...process.env, TROUPE_TEST_TOLD: 'serving tiny at' },
  });
  expect(own.stderr).toContain('SIGTERM: ending once what runs is done; once more leaves at once');
  expect([own.status, own.signal]).toEqual([0, null]);
});

test('workers that share every matrix answer as one does', async () => {
  const answer = async (...options: string[]): Promise<unknown> => {
    const own = new Command(['serve', workspace.file('model'), ...OPTIONS, ...options]);
    const base = await announced(own);
    expect(own.workers()).toHaveLength(options.length === 0 ? 1 : 2);
    const { choices } = await client(base).chat.completions.create({
      ...ask,
      max_tokens: 24,
      temperature: 0.7,
      seed: 3,
    });
    own.kill('SIGTERM');
    expect((await own.exited).code).toBe(0);
    return choices.map(({ message, finish_reason }) => [message.content, finish_reason]);
  };
  expect(await answer('--tensor-parallel-size', '2')).toEqual(await answer());

  const refused = (...options: string[]): Promise<Exit> =>
    runCommand(['serve', workspace.file('model'), ...OPTIONS, ...options]);
  expect(await refused('--tensor-parallel-size', '2', '--workers', '3')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining(
      '--tensor-parallel-size: expected a divisor of the 3 workers (--workers), got 2',
    ),
  });
  expect(await refused('--tensor-parallel-size', '64')).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(
      /--tensor-parallel-size: expected a divisor of the \d+ attention heads of the model, got 64/,
    ),
  });
});
