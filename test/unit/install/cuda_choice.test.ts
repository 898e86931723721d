import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { askedByEnvironment, chooseCuda, findNvcc, systemTools } from '../../../ts/install/cuda_choice';
import { inspectLibTorch } from '../../../ts/install/libtorch';
import { fakeLibTorch, temporaryDirectory } from './fake_libtorch';

const tools = (version: string | null, problem: string | null = null) => ({
  nvcc: () => (version === null ? null : { file: '/usr/bin/nvcc', version }),
  loadProblem: () => problem,
});
const torch = (variant: string) => ({ variant, libDir: '/opt/torch/lib' });
const dir = (): string => mkdtempSync(path.join(tmpdir(), 'nvcc-'));

/** An nvcc that says it is of this CUDA; null: one that fails. */
function fakeNvcc(folder: string, version: string | null): string {
  mkdirSync(folder, { recursive: true });
  const file = path.join(folder, 'nvcc');
  const says =
    version === null ? 'exit 1' : `echo "Cuda compilation tools, release ${version}, V${version}.88"`;
  writeFileSync(file, `#!/bin/sh\n${says}\n`, { mode: 0o755 });
  return file;
}

test.each([
  ['cu130', '13.0', null],
  ['cu128', '12.4', null],
  ['cuda', '11.8', null],
])('LibTorch for %s and nvcc %s: with CUDA', (variant, version) => {
  expect(chooseCuda(torch(variant), null, tools(version)).nvcc).toEqual({ file: '/usr/bin/nvcc', version });
});

test.each<[string, string, string | null, string | null, RegExp]>([
  ['LibTorch for the CPU, nvcc or not', 'cpu', '13.0', null, /LibTorch is a CPU build/],
  ['no nvcc', 'cu130', null, null, /there is no nvcc/],
  ['nvcc of another CUDA', 'cu130', '12.8', null, /nvcc is of CUDA 12.8, and LibTorch was built for cu130/],
  [
    'libraries that are not there',
    'cu118',
    '11.8',
    'libcudnn.so.9: gone',
    /cannot be loaded \(libcudnn.so.9: gone\)/,
  ],
])('%s: without CUDA, or an error where it is asked for', (_, variant, version, problem, why) => {
  const available = tools(version, problem);
  expect(chooseCuda(torch(variant), null, available)).toEqual({
    nvcc: null,
    reason: expect.stringMatching(why),
  });
  expect(() => chooseCuda(torch(variant), true, available)).toThrow(why);
});

test('it can be left out', () => {
  expect(chooseCuda(torch('cu130'), false, tools('13.0')).nvcc).toBeNull();
  expect(askedByEnvironment({ TROUPE_CUDA: '0' })).toBe(false);
  expect(askedByEnvironment({ TROUPE_CUDA: '1' })).toBe(true);
  expect(askedByEnvironment({})).toBeNull();
  expect(() => askedByEnvironment({ TROUPE_CUDA: 'yes' })).toThrow('TROUPE_CUDA: expected 0 or 1, got "yes"');
});

test('nvcc: CUDACXX, then the PATH, then a toolkit; one that does not run is passed over', () => {
  const [named, onPath, toolkit] = [dir(), dir(), dir()];
  const CUDACXX = fakeNvcc(named, '13.1');
  const file = fakeNvcc(onPath, '12.8');
  const PATH = `${onPath}:/usr/bin:/bin`;
  const CUDA_HOME = toolkit;
  fakeNvcc(path.join(toolkit, 'bin'), '11.8');
  expect(findNvcc({ CUDACXX, PATH, CUDA_HOME })).toEqual({ file: CUDACXX, version: '13.1' });
  expect(findNvcc({ PATH, CUDA_HOME })).toEqual({ file, version: '12.8' });
  fakeNvcc(onPath, null);
  expect(findNvcc({ PATH: onPath, CUDA_HOME })).toEqual({
    file: path.join(toolkit, 'bin/nvcc'),
    version: '11.8',
  });
});

test('libraries that only look right are found out', () => {
  const libtorch = inspectLibTorch(fakeLibTorch(temporaryDirectory(), { cuda: 'cu130' }), 'cache', 'a test');
  const available = { ...systemTools, nvcc: () => ({ file: '/usr/bin/nvcc', version: '13.0' }) };
  expect(chooseCuda(libtorch, null, available)).toEqual({
    nvcc: null,
    reason: expect.stringMatching(/the CUDA libraries of LibTorch cannot be loaded \(.*libtorch_cuda\.so/),
  });
});
