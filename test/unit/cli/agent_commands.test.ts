// The commands of agents, as people type them.
import { spawnSync } from 'node:child_process';
import { join, resolve } from 'node:path';

const CLI = join(resolve(__dirname, '../../..'), 'dist', 'cli.js');

test.each([
  [['retriever', 'c.jsonl', '--port', '70000'], 2, /--port: expected an integer from 0 to 65535, got 70000/],
  [['retriever', 'c.jsonl', '--topk', '0'], 2, /--topk: expected an integer from 1 to 1000, got 0/],
  [['retriever'], 2, /Expected a \.jsonl, \.json or \.parquet file with passages/],
  [['retriever', 'no/such/corpus.jsonl'], 1, /no\/such\/corpus\.jsonl/],
  [['agent', 'try', 'x.yaml'], 2, /Missing required argument: task/],
])('troupe %j', (args, code, message) => {
  const run = spawnSync(process.execPath, [CLI, ...args], { encoding: 'utf8' });
  expect(run.stderr).toMatch(message);
  expect(run.status).toBe(code);
});
