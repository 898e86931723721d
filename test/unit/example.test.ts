import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { loadModelDirectory } from '../../ts/checkpoint/model_dir';
import { readHeader } from '../../ts/checkpoint/safetensors';

type Row = Record<string, unknown>;

/** A module of the example, untyped. */
const example = (name: string) => import(`../../examples/arithmetic/${name}.mjs`);

const ROOT = resolve(__dirname, '../..');

test.each([
  [['examples/arithmetic/prepare.mjs'], /^prepare: expected one directory, got 0\nusage: /],
  [['examples/arithmetic/prepare.mjs', 'x', '--sed', '1'], /^prepare: Unknown option '--sed'.*\nusage: /],
  [
    ['examples/arithmetic/prepare.mjs', 'x', '--seed='],
    /^prepare: --seed: expected an integer but got ''\nusage: /,
  ],
  [['examples/arithmetic/run.mjs', '--seed='], /^--seed: expected an integer but got ''\nusage: /],
  [['examples/agent/run.mjs', '--seed='], /^--seed: expected an integer but got ''\nusage: /],
  [
    ['examples/agent/three_ways.mjs', 'x', '--tasks=all'],
    /^three_ways: --tasks: expected a whole number, got 'all'$/,
  ],
  [['examples/gsm8k/prepare.mjs'], /^prepare: expected --train and --test\nusage: /],
  [['examples/gsm8k/prepare.mjs', '--trian', 'x'], /^prepare: Unknown option '--trian'.*\nusage: /],
  [['examples/agent/three_ways.mjs', '--task', '3'], /^three_ways: Unknown option '--task'/],
  [['scripts/learning_curves.mjs', '--steps', 'x'], /^learning_curves: --steps: .* got 'x'$/],
  [['scripts/learning_curves.mjs', '--step', '3'], /^learning_curves: Unknown option '--step'/],
  [['bench/ui.mjs', '--chromium', '/no/such'], /^there is no Chromium at \/no\/such: install it/],
])('a wrong command line is told, without a stack: %j', ([script, ...args], message) => {
  const { status, stderr } = spawnSync(process.execPath, [join(ROOT, script as string), ...args], {
    encoding: 'utf8',
  });
  expect(status).toBe(2);
  expect(stderr.trimEnd()).toMatch(message);
  expect(stderr).not.toMatch(/^ +at /m);
});

test('the Python agent, where the package openai is absent, says what to install, without a stack', () => {
  const program = "import runpy, sys; sys.modules['openai'] = None; runpy.run_path(sys.argv[1])";
  const { status, stderr } = spawnSync(
    'python3',
    ['-c', program, join(ROOT, 'examples/agent/openai_client.py')],
    {
      encoding: 'utf8',
      input: '{"prompt": []}',
      env: { ...process.env, OPENAI_BASE_URL: 'http://localhost:1', OPENAI_API_KEY: 'x' },
    },
  );
  expect(status).toBe(1);
  expect(stderr).toMatch(
    /^openai_client\.py: .*openai.*: install it with `\S*python\S* -m pip install -U openai`\n$/,
  );
});

test.each([
  ['python3', 'openai_client.py'],
  [process.execPath, 'ai_sdk.mjs'],
])(
  'the agent of another client, without a server to ask, says so without a stack: %s %s',
  (program, name) => {
    const { OPENAI_BASE_URL: _, OPENAI_API_KEY: __, ...env } = process.env;
    const { status, stderr } = spawnSync(program, [join(ROOT, 'examples/agent', name)], {
      encoding: 'utf8',
      input: '{"prompt": []}',
      env,
    });
    expect(status).toBe(1);
    expect(stderr).toMatch(new RegExp(`^${name}: expected OPENAI_BASE_URL and OPENAI_API_KEY .*\n$`));
  },
);

describe('the arithmetic example', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'troupe-example-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));
  const sizes = { sft: 200, train: 300, val: 50 };
  const rows = (name: string): Row[] =>
    readFileSync(join(directory, 'data', `${name}.jsonl`), 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Row);
  const content = (row: Row): string =>
    ((row['prompt'] ?? row['messages']) as { content: string }[])[0]!.content;

  it('has held-out problems that are distinct and in no other file', async () => {
    const { prepare } = await example('prepare');
    prepare(directory, { sizes });
    const held = new Set(rows('val').map(content));
    expect(held.size).toBe(sizes.val);
    for (const row of [...rows('sft'), ...rows('train')]) expect(held.has(content(row))).toBe(false);
  });

  it('writes the same bytes for the same seed', async () => {
    const { prepare } = await example('prepare');
    const read = () =>
      ['data/sft.jsonl', 'data/train.jsonl', 'initial_model/model.safetensors'].map((file) =>
        createHash('sha256')
          .update(readFileSync(join(directory, file)))
          .digest('hex'),
      );
    prepare(directory, { sizes, seed: 3 });
    const first = read();
    prepare(directory, { sizes, seed: 3 });
    expect(read()).toEqual(first);
    prepare(directory, { sizes, seed: 4 });
    expect(read()).not.toEqual(first);
  });

  it('gives ground truths that the reward accepts, and nothing else', async () => {
    const { prepare } = await example('prepare');
    const { compute_score } = await example('reward');
    prepare(directory, { sizes });
    for (const row of rows('val')) {
      const groundTruth = (row['reward_model'] as { ground_truth: string }).ground_truth;
      const [, left, operator, right] = content(row).match(/^(\d+)([+-])(\d+)=$/) as string[];
      const value = operator === '+' ? Number(left) + Number(right) : Number(left) - Number(right);
      expect(groundTruth).toBe([...String(value)].reverse().join(''));
      expect(compute_score({ response: groundTruth, groundTruth })).toEqual({ score: 1, acc: true });
      expect(compute_score({ response: `${groundTruth}0`, groundTruth })).toEqual({ score: 0, acc: false });
    }
  });

  it('has demonstrations of which some forget to carry', async () => {
    const { answerText, sloppyAnswerText } = await example('problems');
    expect(answerText({ left: 47, right: 85, operator: '+' })).toBe('231');
    expect(sloppyAnswerText({ left: 47, right: 85, operator: '+' })).toBe('22');
    expect(answerText({ left: 42, right: 17, operator: '-' })).toBe('52');
    expect(sloppyAnswerText({ left: 42, right: 17, operator: '-' })).toBe('53');
    expect(sloppyAnswerText({ left: 12, right: 30, operator: '+' })).toBe('24');
  });

  it('starts from a model directory that the loader accepts', async () => {
    const { prepare } = await example('prepare');
    const { parameters } = prepare(directory, { sizes });
    const model = join(directory, 'initial_model');
    const stored = readHeader(join(model, 'model.safetensors'));
    expect(stored.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0)).toBe(parameters);
    expect(parameters).toBeGreaterThan(1e6);
    const { config, eosTokenIds } = loadModelDirectory(model, 'lm');
    expect(eosTokenIds).toEqual([1]);
    expect(config.vocabSize).toBe(15);
  });

  it('makes a mixture of copies of the MLPs of a model, which the loader accepts', async () => {
    const { prepare } = await example('prepare');
    const { writeMixture } = await example('mixture');
    const { readTensors } = await example('safetensors');
    const { Random } = await example('random');
    const dense = join(directory, 'initial_model');
    const model = join(directory, 'mixture');
    const { parameters } = prepare(directory, { sizes });
    const mixed: number = writeMixture(dense, model, 4, new Random(1));
    const stored = readHeader(join(model, 'model.safetensors'));
    expect(stored.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0)).toBe(mixed);
    expect(mixed).toBeGreaterThan(3 * parameters * 0.6);
    const { config } = loadModelDirectory(model, 'lm');
    expect(config).toMatchObject({
      family: 'qwen2_moe',
      moe: { numExperts: 4, topK: 2, normalizeTopK: true },
    });
    const weights = (path: string): Map<string, Float32Array> =>
      new Map(
        readTensors(join(path, 'model.safetensors')).map((t: { name: string; data: Float32Array }) => [
          t.name,
          t.data,
        ]),
      );
    const [before, after] = [weights(dense), weights(model)];
    for (const [name, data] of before) {
      const copies = [0, 3].map((e) => name.replace('.mlp.', `.mlp.experts.${e}.`));
      for (const copy of copies) expect(after.get(copy)).toEqual(data);
    }
    // What every token goes to adds nothing.
    const down = after.get('model.layers.2.mlp.shared_expert.down_proj.weight') as Float32Array;
    expect(down.every((value) => value === 0)).toBe(true);
    expect(after.get('model.layers.0.mlp.gate.weight')).toHaveLength(4 * config.hiddenSize);
  });
});

describe('curves', () => {
  it('places points between round tick marks', async () => {
    const { ticks, renderCurves } = await example('curves');
    expect(ticks(0, 1, 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(ticks(3, 3, 5).length).toBeGreaterThan(1);
    expect(ticks(0, 60, 6)).toEqual([0, 10, 20, 30, 40, 50, 60]);
    const svg = renderCurves('A & B', [
      {
        title: 'reward',
        percent: true,
        lines: [
          [
            [0, 0.25],
            [10, 0.75],
          ],
        ],
      },
      { title: 'nothing', lines: [[]] },
    ]);
    expect(svg).toContain('A &amp; B');
    expect(svg).toContain('<polyline');
    expect(svg).not.toContain('nothing');
    expect(svg).not.toContain('NaN');
  });

  it('draws a constant series', async () => {
    const { renderCurves } = await example('curves');
    expect(
      renderCurves('t', [
        {
          title: 'flat',
          lines: [
            [
              [1, 2],
              [2, 2],
            ],
          ],
        },
      ]),
    ).not.toContain('NaN');
    expect(renderCurves('t', [{ title: 'one', lines: [[[0, 0]]] }])).not.toContain('NaN');
  });

  it('compares runs, each in a colour of its own, by the reward of all that was generated', async () => {
    const { comparisonCurves } = await example('curves');
    const grpo = [
      { step: 1, 'critic/score/mean': 0.2 },
      { step: 2, 'critic/score/mean': 0.4 },
    ];
    const dapo = [
      { step: 1, 'critic/score/mean': 0.5, 'train/gen_score_mean': 0.1, 'train/num_gen_batches': 3 },
      { step: 2, 'critic/score/mean': 0.5, 'train/gen_score_mean': 0.3, 'train/num_gen_batches': 2 },
    ];
    const runs = [
      { name: 'GRPO', records: grpo },
      { name: 'DAPO', records: dapo },
    ];
    const svg: string = comparisonCurves('Two', runs, 'accuracy');
    expect(svg).not.toContain('Held-out');
    for (const shown of ['GRPO', 'DAPO', 'Generation batches per step']) expect(svg).toContain(shown);
    const lines = [...svg.matchAll(/<polyline points="([^"]+)" fill="none" stroke="([^"]+)"/g)];
    const [first, second, batches] = lines.map(([, points, color]) => ({ points: points as string, color }));
    expect(lines).toHaveLength(3);
    expect(first?.color).not.toBe(second?.color);
    expect(batches?.color).toBe(second?.color);
    // A larger reward lies higher: at step 1, 0.2 over 0.1.
    const height = (points = ''): number => Number(points.split(' ')[0]?.split(',')[1]);
    expect(height(first?.points)).toBeLessThan(height(second?.points));
  });
});
