import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { rayStarter } from '../../../ts/launch/ray';

// In the place of a Python with Ray: agents that end at once, and say in which process they were.
const PYTHON = `#!${process.execPath}
const lines = require('node:readline').createInterface({ input: process.stdin });
lines.on('line', (line) => {
  const { start } = JSON.parse(line);
  if (start !== undefined) console.log(JSON.stringify({ ended: start, how: 'process ' + process.pid }));
});
`;

const directory = mkdtempSync(path.join(tmpdir(), 'ray-'));
afterAll(() => rmSync(directory, { recursive: true }));

test('an agent that is started as soon as the last one has ended has a process of its own', async () => {
  const python = path.join(directory, 'python');
  writeFileSync(python, PYTHON);
  chmodSync(python, 0o755);
  const { start } = rayStarter({
    ...{ python, address: 'auto', hosts: 2, bundle: { CPU: 1 }, wait: 1, network: null },
    say: () => {},
  });
  const address = { controllers: ['127.0.0.1:1'], token: 'secret' };
  const first = await start(0, address).exited;
  const second = await start(0, address).exited;
  expect([first, second]).toEqual([
    expect.stringMatching(/^process \d+$/),
    expect.stringMatching(/^process \d+$/),
  ]);
  expect(second).not.toBe(first);
});
