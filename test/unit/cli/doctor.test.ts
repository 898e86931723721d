import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { doctor, explainDevice, runDoctor } from '../../../ts/cli/doctor';
import { checkPrerequisites } from '../../../ts/install/prerequisites';
import { fakeLibTorch, temporaryDirectory } from '../install/fake_libtorch';

const environment = { ...process.env };
afterEach(() => {
  process.env = { ...environment };
});

test('the report covers what the native core depends on, and every problem has a fix', async () => {
  const report = await doctor();
  const names = report.items.map((item) => item.name);
  expect(names).toEqual(
    [
      'troupe',
      'node',
      'npm',
      'python',
      'cmake',
      'compiler',
      'make',
      'libc',
      'cpu',
      'memory',
      'libtorch',
    ].concat(['addon', 'loading', 'gpu']),
  );
  for (const item of report.items) {
    expect(item.found).not.toBe('');
    if (item.severity === 'problem') expect(item.fix).not.toBeNull();
  }
  expect(report.ok).toBe(report.items.every((item) => item.severity !== 'problem'));
});

test('a wrong TROUPE_LIBTORCH is a problem that names it, and the exit code is 1', async () => {
  process.env['TROUPE_LIBTORCH'] = '/nonexistent';
  const lines: string[] = [];
  expect(await runDoctor({ log: (line) => lines.push(line) })).toBe(1);
  const at = lines.findIndex((line) => line.startsWith('FAIL  libtorch'));
  expect(lines[at]).toContain('TROUPE_LIBTORCH is /nonexistent, which does not exist');
  expect(lines[at + 1]).toContain('-> Run `npx troupe setup`');
});

test('tools that build the addon are a problem where there is none', async () => {
  process.env['TROUPE_LIBTORCH'] = '/nonexistent';
  process.env['PATH'] = '';
  const { items } = await doctor();
  expect(items.find(({ name }) => name === 'cmake')).toMatchObject({ severity: 'problem' });
});

test('Python is worth a warning where there is a LibTorch, which it need not fetch', async () => {
  process.env['TROUPE_LIBTORCH'] = fakeLibTorch(temporaryDirectory(), { version: '2.11.0' });
  process.env['PATH'] = '';
  const { items } = await doctor();
  const severities = Object.fromEntries(items.map(({ name, severity }) => [name, severity]));
  expect(severities).toMatchObject({
    python: 'warning',
    cmake: 'problem',
    libtorch: 'ok',
    addon: 'problem',
  });
});

test('each missing tool is one message that says what to install', () => {
  const empty = mkdtempSync(path.join(tmpdir(), 'troupe-path-'));
  process.env['PATH'] = empty;
  process.env['CXX'] = '';
  const found = checkPrerequisites();
  expect(found.map((tool) => [tool.name, tool.ok])).toEqual([
    ['node', true],
    ['python', false],
    ['cmake', false],
    ['compiler', false],
    ['make', false],
  ]);
  for (const tool of found.slice(1)) {
    expect(tool.found).toMatch(/ (is|are) needed/);
    expect(tool.fix).toMatch(/^Install /);
  }
  rmSync(empty, { recursive: true });
});

describe('why engines run where they run', () => {
  const nothing = { cards: null, driver: false, visible: null };
  const h100 = { cards: 'NVIDIA H100, 580.65, 81559 MiB', driver: true, visible: null };
  const build = (cuda: boolean, deviceCount: number) => ({
    libtorch: '2.14.1',
    cuda,
    deviceCount,
    threads: 1,
  });

  it.each([
    ['a CPU build without a GPU', build(false, 0), nothing, 'info', 'no NVIDIA GPU'],
    ['a CPU build beside a GPU', build(false, 0), h100, 'warning', 'the addon was built without CUDA'],
    ['a CUDA build without a driver', build(true, 0), nothing, 'info', 'no NVIDIA driver'],
    ['a CUDA build and a GPU', build(true, 1), h100, 'ok', 'GPU: NVIDIA H100'],
    ['a hidden GPU', build(true, 0), { ...h100, visible: '' }, 'warning', "CUDA_VISIBLE_DEVICES=''"],
    ['a GPU that CUDA cannot use', build(true, 0), h100, 'warning', 'CUDA finds no usable GPU'],
    ['no addon', null, h100, 'info', 'NVIDIA H100'],
  ])('%s', (_, info, signs, severity, text) => {
    const item = explainDevice(info, signs);
    expect([item.name, item.severity]).toEqual(['gpu', severity]);
    expect(item.found).toContain(text);
    expect(item.fix !== null).toBe(severity === 'warning');
  });
});
