import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readHeader } from '../../ts/checkpoint/safetensors';

/** The module, untyped. */
const measure = (name = 'measure') => import(`../../bench/${name}.mjs`);

const line = (peer: string, seconds: number[], extra: object = {}) => ({
  peer,
  variant: peer === 'troupe' ? 'core' : 'packed',
  op: 'update_policy',
  seconds_all: seconds,
  peak_gb: peer === 'troupe' ? 1 : 2,
  valid_tokens: 100,
  ...extra,
});

describe('results', () => {
  it('takes the median over all rounds, the largest peak and the first loss', async () => {
    const { combine } = await measure();
    const records = combine([
      line('hf', [4, 6], { loss: 0.5, peak_gb: 1 }),
      line('hf', [5], { loss: 0.4, peak_gb: 3 }),
    ]);
    expect(records).toHaveLength(1);
    expect(records[0]).toMatchObject({
      side: 'hf packed',
      seconds: 5,
      peak_gb: 3,
      loss: 0.5,
      tokens_per_s: 20,
    });
  });

  it('reports the time outside the native call, the floor, speed and memory', async () => {
    const { combine, compare } = await measure();
    const { renderTables } = await measure('report');
    const records = combine([
      line('troupe', [2, 2], { native_all: [1.98, 1.98], loss: 0.5, grad_norm: 2 }),
      line('hf', [8, 8], { loss: 0.5, grad_norm: 2.02 }),
    ]);
    const [result] = compare(records, () => 1e12, 1, 4);
    expect(result).toMatchObject({ op: 'update_policy', floor: 1, timesFloor: 2, mfu: 0.125 });
    expect(result.overhead).toBeCloseTo(0.01);
    expect(result.peers[0]).toMatchObject({ side: 'hf packed', speedup: 4, memory: 0.5, timesFloor: 8 });
    expect(result.peers[0].difference).toBe(0);
    expect(result.peers[0].gradNorm).toBeCloseTo(0.0099, 3);
    expect(renderTables(records, [result])).toContain('4.00x');
  });

  it('shows a side that failed', async () => {
    const { combine, compare } = await measure();
    const { renderTables } = await measure('report');
    const records = combine([{ peer: 'hf', variant: 'padded', op: 'update_policy', error: 'out of memory' }]);
    expect(
      renderTables(
        records,
        compare(records, () => 1, 1, null),
      ),
    ).toContain('out of memory');
  });

  it('shows a round that failed beside the times of the others', async () => {
    const { combine, compare } = await measure();
    const { renderTables } = await measure('report');
    const failed = { peer: 'hf', variant: 'packed', op: 'update_policy', error: 'out of memory' };
    for (const lines of [
      [line('hf', [4]), failed],
      [failed, line('hf', [4])],
    ]) {
      const records = combine(lines);
      expect(records).toEqual([
        expect.objectContaining({ seconds: 4, tokens_per_s: 25, error: 'out of memory' }),
      ]);
      const text: string = renderTables(
        records,
        compare(records, () => 1, 1, null),
      );
      expect(text).toMatch(/hf packed +4\.000/);
      expect(text).toMatch(/hf packed +error +out of memory/);
    }
  });
});

describe('useful work', () => {
  it.each(['cpu-40m', 'cpu-moe', 'qwen3-0.6b'])(
    '%s: that of the matrices that a token meets',
    async (name) => {
      const { Case } = await measure('case');
      const { modelConfig, modelTensors } = await measure('presets');
      const config = modelConfig(name);
      const of = (lengths: number[]): { forward: number; update: number } => {
        const validTokens = lengths.reduce((sum, length) => sum + length, 0);
        const given = Object.assign(Object.create(Case.prototype), {
          config,
          lengths,
          validTokens,
          responseTokens: 0,
        });
        return { forward: given.flops('compute_log_prob'), update: given.flops('update_policy') };
      };
      const tensors: [string, number[]][] = modelTensors(config);
      const met = tensors
        .filter(([tensor, shape]) => tensor.includes('.layers.') && shape.length > 1)
        .map(([tensor, shape]): number => {
          const whole = shape.reduce((all, size) => all * size, 1);
          return tensor.includes('.experts.')
            ? (whole * config.num_experts_per_tok) / config.num_experts
            : whole;
        })
        .reduce((sum, count) => sum + count, 0);
      // One sequence of two tokens, and two of one: they differ by attention alone.
      const pairs = 2 * config.num_attention_heads * config.head_dim * config.num_hidden_layers;
      expect(of([1, 1]).forward).toBe(2 * (2 * met + pairs));
      expect(of([2]).forward).toBe(2 * (2 * met + 2 * pairs));
      expect(of([5, 3]).update).toBe(3 * of([5, 3]).forward);
    },
  );
});

describe('comparison with an earlier run', () => {
  const points = (seconds: number, op = 'update_policy') => [{ records: [{ side: 'troupe', op, seconds }] }];

  it.each([
    [2, /update_policy +faster +2\.000 +1\.000 +2\.00x/],
    [1.02, /update_policy +same/],
    [0.5, /update_policy +slower +0\.500 +1\.000 +0\.50x/],
  ])('before %d s, now 1 s', async (before, expected) => {
    const { renderChanges } = await measure('report');
    expect(renderChanges(points(before), points(1))).toMatch(expected);
  });

  it('names what is new and what is gone', async () => {
    const { renderChanges } = await measure('report');
    const text = renderChanges(points(1, 'generate'), points(1));
    expect(text).toMatch(/update_policy +new/);
    expect(text).toMatch(/generate +gone/);
  });
});

describe('options', () => {
  it('--peer may stand alone', async () => {
    const { readArguments } = await measure('cli');
    expect(readArguments(['--peer', '--rounds', '1'])).toMatchObject({
      peer: 'own',
      rounds: '1',
      case: 'cpu-40m',
    });
    expect(readArguments(['--rounds', '1', '--peer']).peer).toBe('own');
    const own = join(__dirname, '../../bench/peer');
    expect(readArguments(['--peer', own]).peer).toBe(own);
    expect(readArguments([]).peer).toBeUndefined();
  });

  it.each([
    [['--rounds', '0'], /--rounds: expected a positive integer but got '0'/],
    [['--ops', 'compute_log_prob,nothing'], /--ops: expected some of .* but got 'nothing'/],
    [['--head', '12'], /--head: expected TxHxV/],
    [['--sweep', 'a'], /--sweep: expected lengths/],
    [['--case', 'cpu-41m'], /--case: expected one of cpu-40m, .* or a case directory but got 'cpu-41m'/],
    [['--peer', 'nowhere'], /--peer: expected nothing or a directory with a peer_hf\.py but got 'nowhere'/],
    [
      ['--compare', 'none.json'],
      /--compare: expected results of an earlier run, .* but none\.json cannot be read \(ENOENT\)/,
    ],
    [['--compare', __filename], /--compare: .* is no JSON/],
    [['--compare', join(__dirname, '../../package.json')], /--compare: .* has no points/],
    [['--warmup', 'some'], /--warmup: expected a whole number from 0 on but got 'some'/],
    [['--peak-tflops', 'many'], /--peak-tflops: expected a number above 0 but got 'many'/],
    [['--quantization', 'int4'], /--quantization: expected int8 or fp8 but got 'int4'/],
    [['--peer', '--variants', 'padded,packd'], /--variants: expected some of padded, .* but got 'packd'/],
    [['--nothing'], /nothing/],
  ])('refuses %j', async (argv, message) => {
    const { readArguments } = await measure('cli');
    expect(() => readArguments(argv)).toThrow(message);
  });
});

describe('programs in Python', () => {
  it.each([
    ['gemm.py', 'torch'],
    ['peer/peer_hf.py', 'torch transformers safetensors numpy pillow'],
    ['peer/peer_head.py', 'torch transformers safetensors numpy pillow'],
    ['peer/peer_images.py', 'torch transformers safetensors numpy pillow'],
    ['peer/profile_peer.py', 'torch transformers safetensors numpy pillow'],
  ])('%s: one line says which packages to install', (name, packages) => {
    // Without the packages of any installation.
    const program = join(__dirname, '../../bench', name);
    const { status, stderr } = spawnSync('python3', ['-E', '-s', '-S', program], { encoding: 'utf8' });
    expect(status).toBe(1);
    expect(stderr).toMatch(/^[^\n]*\n$/);
    expect(stderr).toContain(`-m pip install ${packages} (docs/benchmarks.md`);
  });
});

describe('cases', () => {
  it('random weights repeat, and bfloat16 rounds to even', async () => {
    const { Random } = await measure('random');
    const draw = (seed: number) =>
      Array.from(
        { length: 2000 },
        (
          (r) => () =>
            r.normal()
        )(new Random(seed)),
      );
    expect(draw(3)).toEqual(draw(3));
    expect(draw(3)).not.toEqual(draw(4));
    const numbers = draw(3);
    const mean = numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
    expect(Math.abs(mean)).toBeLessThan(0.1);
    expect(numbers.reduce((sum, x) => sum + x * x, 0) / numbers.length).toBeCloseTo(1, 0);
    const { toBfloat16 } = await measure('safetensors_file');
    // 1 + 2^-8 lies half-way between two bfloat16s, 1 + 3 * 2^-8 as well.
    expect([...toBfloat16(Float32Array.of(1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, -2))]).toEqual([
      0x3f80, 0x3f80, 0x3f82, 0xc000,
    ]);
  });

  it('writes files that the core reads back', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'troupe-bench-'));
    try {
      const { writeSafetensors } = await measure('safetensors_file');
      const file = join(directory, 'a.safetensors');
      const values = Float32Array.of(1, 2, 3, 4, 5, 6);
      writeSafetensors(file, [
        ['ids', 'I64', [2], () => BigInt64Array.of(1n, -2n)],
        ['w', 'F32', [2, 3], () => values],
      ]);
      const [ids, w] = readHeader(file);
      expect(ids).toMatchObject({ name: 'ids', dtype: 'I64', shape: [2] });
      expect(w).toMatchObject({ name: 'w', dtype: 'F32', shape: [2, 3] });
      const bytes = Uint8Array.from(readFileSync(file)).slice(w?.offset, (w?.offset ?? 0) + (w?.bytes ?? 0));
      expect([...new Float32Array(bytes.buffer)]).toEqual([...values]);
    } finally {
      rmSync(directory, { recursive: true });
    }
  });

  it.each([
    ['cpu-40m', 40.5e6],
    ['cpu-100m', 101.9e6],
    ['qwen2.5-0.5b', 494e6],
    ['qwen3-0.6b', 596e6],
    ['qwen3-1.7b', 1.72e9],
    ['qwen3-4b', 4.02e9],
    ['qwen2.5-7b', 7.62e9],
  ])('%s has %d parameters', async (name, expected) => {
    const { PRESETS, modelConfig, modelTensors } = await measure('presets');
    expect(PRESETS).toContain(name);
    const tensors: [string, number[]][] = modelTensors(modelConfig(name));
    const count = tensors.reduce((sum, [, shape]) => sum + shape.reduce((all, size) => all * size, 1), 0);
    expect(Math.abs(count / expected - 1)).toBeLessThan(0.005);
  });
});

test.each(['end', 'fail', 'be stopped'])('a scratch directory goes with its program, which may %s', (how) => {
  const ends = {
    end: '',
    fail: "throw new Error('broken')",
    'be stopped': "process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 60_000)",
  };
  const program = `
    import { existsSync, writeFileSync } from 'node:fs';
    import { scratchDirectory } from ${JSON.stringify(join(__dirname, '../../bench/scratch.mjs'))};
    const directory = scratchDirectory('test');
    writeFileSync(directory + '/file', 'a');
    console.log(directory + ' ' + existsSync(directory));
    ${ends[how as keyof typeof ends]}`;
  const { stdout, status } = spawnSync(process.execPath, ['--input-type=module', '-e', program], {
    encoding: 'utf8',
  });
  const [directory = '', there] = stdout.trim().split(' ');
  expect([there, status]).toEqual(['true', { end: 0, fail: 1, 'be stopped': 143 }[how]]);
  expect(existsSync(directory)).toBe(false);
});

test('a sweep is drawn with every side and operation', async () => {
  const { sweepPlot } = await measure('plot');
  const record = (side: string) => ({
    side,
    op: 'update_policy',
    seconds: 1,
    tokens_per_s: 1500,
    peak_gb: 2,
  });
  const points = [1024, 4096].map((length) => ({ length, records: [record('troupe'), record('hf packed')] }));
  const svg = sweepPlot(points);
  expect(svg.match(/<polyline/g)).toHaveLength(4);
  expect(svg).toContain('update_policy: peak memory (GB)');
  expect(svg).not.toMatch(/NaN|undefined/);
});

test.each(['peer_head', 'peer_hf', 'peer_images', 'profile_peer'])(
  'bench/peer/%s.py without its packages: one line that says what to install',
  (name) => {
    const program = join(__dirname, '../../bench/peer', `${name}.py`);
    // Without site-packages.
    const { status, stderr } = spawnSync('python3', ['-S', program], {
      encoding: 'utf8',
      env: { ...process.env, PYTHONPATH: '' },
    });
    expect([status, stderr]).toEqual([
      1,
      expect.stringMatching(
        `^${name}\\.py: No module named '\\w+': .* -m pip install torch transformers safetensors numpy pillow \\(.*\\)\n$`,
      ),
    ]);
  },
);
