import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { hostname } from 'node:os';
import path from 'node:path';
import { cudaRequirements, fetchLibTorch } from '../../../ts/install/fetch';
import { temporaryDirectory } from './fake_libtorch';

let root: string;
beforeEach(() => {
  root = temporaryDirectory();
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

/** A python3 whose pip does as the script says; `$dest` is where it should put wheels. Other programs run for real. */
function pythonWithPip(script: string): string {
  const file = path.join(root, 'python3');
  const program = `#!/bin/sh
if [ "$1" != -m ]; then exec python3 "$@"; fi
printf '%s ' "$@" >> '${root}/pip-calls'
while [ "$1" != --dest ]; do shift; done
dest=$2; mkdir -p "$dest"
${script}
`;
  writeFileSync(file, program);
  chmodSync(file, 0o755);
  return file;
}

/** Shell that makes a wheel with just enough in it. */
function makeWheel(version: string): string {
  const library =
    "b'\\x7fELF' + bytes(36) + (64).to_bytes(8, 'little') + bytes(10) + (64).to_bytes(2, 'little') + bytes(1000)";
  const [major, minor, patch] = version.split('.');
  return `python3 - "$dest" <<'END'
import sys, zipfile
library = ${library}
with zipfile.ZipFile(sys.argv[1] + '/torch-${version}-cp311-none-any.whl', 'w') as wheel:
    wheel.writestr('torch/include/ATen/ATen.h', '')
    wheel.writestr('torch/include/torch/headeronly/version.h', '#define TORCH_VERSION_MAJOR ${major}\\n#define TORCH_VERSION_MINOR ${minor}\\n#define TORCH_VERSION_PATCH ${patch}\\n')
    wheel.writestr('torch/version.py', "__version__ = '${version}+cpu'")
    for name in ('libc10.so', 'libtorch_cpu.so', 'libtorch_python.so'):
        wheel.writestr('torch/lib/' + name, library)
    wheel.writestr('torch/nn/functional.py', 'unused')
    wheel.writestr('torch-${version}.dist-info/METADATA', '')
END`;
}

function fetch(python: string, version = '2.13.0', pipArgs: string[] = []) {
  const cache = path.join(root, 'cache');
  return fetchLibTorch({ version, cache, python, pipArgs, cuda: false, log: () => undefined });
}

test('keeps headers, libraries and the version, and nothing else', async () => {
  const torch = await fetch(pythonWithPip(makeWheel('2.13.0')), '2.13.0', ['--index-url', 'file:///wheels']);
  expect(torch).toMatchObject({
    version: '2.13.0',
    variant: 'cpu',
    dir: path.join(root, 'cache/2.13.0-cpu/torch'),
  });
  expect(readdirSync(path.join(torch.dir, 'lib')).sort()).toEqual(['libc10.so', 'libtorch_cpu.so']);
  expect(existsSync(path.join(torch.dir, 'nn'))).toBe(false);
  expect(readdirSync(path.join(root, 'cache'))).toEqual(['2.13.0-cpu']);
  expect(readFileSync(path.join(root, 'pip-calls'), 'utf8')).toMatch(
    /pip download .*--index-url file:\/\/\/wheels --no-deps torch==2\.13\.0/,
  );
});

test('a failing pip leaves nothing behind and says what to do', async () => {
  await expect(fetch(pythonWithPip('exit 1'))).rejects.toMatchObject({
    code: 'IO',
    message: expect.stringContaining('could not download torch==2.13.0'),
  });
  expect(readdirSync(path.join(root, 'cache'))).toEqual([]);
});

test('a damaged wheel leaves nothing behind', async () => {
  await expect(fetch(pythonWithPip('echo no > "$dest/torch.whl"'))).rejects.toThrow('Unpacking torch.whl');
  expect(readdirSync(path.join(root, 'cache'))).toEqual([]);
});

test('what a killed fetch left is removed by the next one: of this host, of no process, and old', async () => {
  const days = (count: number): Date => new Date(Date.now() - count * 24 * 3600 * 1000);
  const gone = 999999999;
  const partial = (name: string, age: number, wheelAge = age): string => {
    const directory = path.join(root, 'cache', `.partial-${name}`);
    mkdirSync(path.join(directory, 'wheels'), { recursive: true });
    utimesSync(path.join(directory, 'wheels'), days(wheelAge), days(wheelAge));
    utimesSync(directory, days(age), days(age));
    return path.basename(directory);
  };
  partial(`${hostname()}-${gone}-abcdef`, 2);
  const kept = [
    partial(`${hostname()}-${gone}-recent`, 0),
    partial(`${hostname()}-${gone}-wheels`, 2, 0),
    partial(`${hostname()}-${process.pid}-alive0`, 2),
    partial(`another-host-${gone}-abcdef`, 2),
    partial(`${hostname()}-and-more-${gone}-abcdef`, 2),
  ];
  await fetch(pythonWithPip(makeWheel('2.13.0')));
  expect(readdirSync(path.join(root, 'cache')).sort()).toEqual([...kept, '2.13.0-cpu'].sort());
});

test('refuses versions that are not supported before it downloads anything', async () => {
  await expect(fetch('/nonexistent', '2.9.0')).rejects.toThrow('supports LibTorch 2.11 to 2.14; "2.9.0"');
  await expect(fetch('/nonexistent', 'latest')).rejects.toThrow('"latest"');
});

test('the CUDA packages of a wheel are read from its metadata', () => {
  const metadata = [
    'Requires-Dist: filelock',
    'Requires-Dist: cuda-toolkit[cublas,cudart,cupti,nvtx]==13.0.3; platform_system == "Linux"',
    'Requires-Dist: nvidia-nccl-cu13==2.30.7; platform_system == "Linux"',
    'Requires-Dist: triton~=3.8.0',
  ].join('\n');
  expect(cudaRequirements(metadata, true)).toEqual([
    'cuda-toolkit[cublas,cudart,cupti,nvtx]==13.0.3',
    'nvidia-nccl-cu13==2.30.7',
  ]);
  expect(cudaRequirements(metadata, false)).toEqual(['cuda-toolkit[cudart,cupti]==13.0.3']);
  const older =
    'Requires-Dist: nvidia-cuda-runtime-cu12==12.8.90\nRequires-Dist: nvidia-cudnn-cu12==9\nRequires-Dist: nvidia-cuda-cupti-cu12==12.8.90';
  expect(cudaRequirements(older, false)).toEqual([
    'nvidia-cuda-runtime-cu12==12.8.90',
    'nvidia-cuda-cupti-cu12==12.8.90',
  ]);
  expect(cudaRequirements('', false)).toEqual([]);
});
