import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadModelDirectory, readEosTokenIds, withPositions } from '../../../ts/checkpoint/model_dir';
import { readModelShape } from '../../../ts/checkpoint/model_shape';

const fixtures = path.join(__dirname, '../../fixtures/conformance');
const models = readdirSync(path.join(fixtures, 'models')).map((name) => path.join(fixtures, 'models', name));
const updates = readdirSync(path.join(fixtures, 'update_models')).map((name) =>
  path.join(fixtures, 'update_models', name),
);
const named = (dirs: string[]): [string, string][] => dirs.map((dir) => [path.basename(dir), dir]);

describe('conformance checkpoints', () => {
  test.each(named([...models, ...updates]))('%s: every tensor finds its place', (_name, dir) => {
    for (const role of readdirSync(dir).filter((name) => name === 'actor' || name === 'critic')) {
      const model = loadModelDirectory(path.join(dir, role), role === 'actor' ? 'lm' : 'value');
      const slices = model.files.flatMap((f) => f.tensors);
      expect(slices).toHaveLength(model.mapping.length);
      expect(model.freshHead).toBe(false);
      expect(model.dtypes.get(model.mapping[0]!.hf)).toBe('F32');
      expect(model.eosTokenIds).toHaveLength(1);
      // Rows of one parameter follow each other without gap.
      const rows = new Map<string, number>();
      for (const m of model.mapping) {
        expect(m.row).toBe(rows.get(m.param) ?? 0);
        rows.set(m.param, m.row + m.rows);
      }
    }
  });

  test.each(named(models))('%s: a critic starts from the causal LM with a fresh head', (_name, dir) => {
    const model = loadModelDirectory(path.join(dir, 'actor'), 'value');
    expect(model.freshHead).toBe(true);
    expect(model.config.valueBias).toBe(true);
    const params = new Set(model.files.flatMap((f) => f.tensors.map((t) => t.param)));
    expect(params.has('head.weight')).toBe(false);
    expect(params.has('norm.weight')).toBe(true);
  });

  test('fused and transposed slices', () => {
    const qwen = loadModelDirectory(path.join(fixtures, 'models/qwen2_tied/actor'), 'lm');
    const qkv = qwen.mapping.filter((m) => m.param === 'layers.1.attn.qkv.weight');
    expect(qkv.map((m) => [m.hf.split('.')[4], m.row, m.rows])).toEqual([
      ['q_proj', 0, 56],
      ['k_proj', 56, 28],
      ['v_proj', 84, 28],
    ]);
    const mixtral = loadModelDirectory(path.join(fixtures, 'models/mixtral/actor'), 'lm');
    const expert = mixtral.mapping.filter((m) => m.param === 'layers.0.moe.experts.3.in.weight');
    expect(expert.map((m) => m.hf.split('.')[6])).toEqual(['w1', 'w3']);
    const gpt2 = loadModelDirectory(path.join(fixtures, 'models/gpt2/actor'), 'lm');
    expect(gpt2.mapping.find((m) => m.param === 'layers.0.mlp.in.weight')).toMatchObject({
      shape: [48, 192],
      rows: 192,
      transpose: true,
    });
  });
});

describe('bad directories', () => {
  let dir: string;
  beforeEach(() => {
    dir = mkdtempSync(path.join(tmpdir(), 'troupe-model-'));
    cpSync(path.join(fixtures, 'models/llama_gqa/actor'), dir, { recursive: true });
  });
  afterEach(() => rmSync(dir, { recursive: true }));

  const edit = (file: string, change: (json: Record<string, unknown>) => void): void => {
    const at = path.join(dir, file);
    const json = JSON.parse(readFileSync(at, 'utf8'));
    change(json);
    writeFileSync(at, JSON.stringify(json));
  };
  /** Renames tensors inside the header; the data stays where it is. */
  const editHeader = (change: (text: string) => string): void => {
    const at = path.join(dir, 'model.safetensors');
    const bytes = readFileSync(at);
    const end = 8 + Number(bytes.readBigUInt64LE(0));
    const header = Buffer.from(change(bytes.subarray(8, end).toString()));
    const prefix = Buffer.alloc(8);
    prefix.writeBigUInt64LE(BigInt(header.length));
    writeFileSync(at, Buffer.concat([prefix, header, bytes.subarray(end)]));
  };

  test('no directory, no config, bad JSON', () => {
    expect(() => loadModelDirectory(path.join(dir, 'none'), 'lm')).toThrow(/none is not a directory/);
    expect(() => loadModelDirectory('no/such', 'lm')).toThrow(
      `but no/such (relative to ${process.cwd()}) is not a directory`,
    );
    writeFileSync(path.join(dir, 'config.json'), '{');
    expect(() => loadModelDirectory(dir, 'lm')).toThrow(/config.json is not valid JSON/);
    rmSync(path.join(dir, 'config.json'));
    expect(() => loadModelDirectory(dir, 'lm')).toThrow(/has no config.json/);
  });

  test('a run, a checkpoint or an adapter in place of a model: what to name', () => {
    const run = path.join(dir, 'run');
    const write = (name: string, content: object | string = '') => {
      const file = path.join(run, name);
      mkdirSync(path.dirname(file), { recursive: true });
      writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content));
    };
    write('config.json', { data: {}, actor_rollout_ref: {}, trainer: {} });
    write('metrics.jsonl');
    write('global_step_2/trainer.json', {});
    write('global_step_2/actor/lora_adapter/adapter_config.json', {});
    const told = (directory: string): string => {
      const [byEngine, byPlanner] = [
        () => loadModelDirectory(directory, 'lm'),
        () => readModelShape(directory, 'lm', 'a.key'),
      ].map((read) => {
        try {
          read();
        } catch (error) {
          return /: (it (?:is|holds) .*)$/.exec((error as Error).message)?.[1];
        }
        return 'nothing';
      });
      expect(byEngine).toBe(byPlanner);
      return byEngine as string;
    };
    expect(told(run)).toBe(`it is the directory of a run: name what troupe export ${run} OUT writes`);
    write('final_model/config.json', {});
    expect(told(run)).toBe(
      `it is the directory of a run: name ${run}/final_model, or what troupe export ${run} OUT writes`,
    );
    const step = path.join(run, 'global_step_2');
    expect(told(step)).toBe(`it is a checkpoint: name what troupe export ${step} OUT writes`);
    write('global_step_2/actor/config.json', {});
    expect(told(step)).toBe(
      `it is a checkpoint: name ${step}/actor, or what troupe export ${step} OUT writes`,
    );
    const adapter = path.join(step, 'actor/lora_adapter');
    expect(told(adapter)).toBe(
      `it holds an adapter alone: name what troupe export ${adapter} OUT --merge-lora writes, the whole model`,
    );
    // A model beside which somebody keeps metrics is one.
    writeFileSync(path.join(dir, 'metrics.jsonl'), '');
    expect(loadModelDirectory(dir, 'lm').freshHead).toBe(false);
  });

  test('missing, misshapen and surplus tensors are named together', () => {
    editHeader((text) => text.replace('"model.norm.weight"', '"model.other.weight"'));
    edit('config.json', (c) => {
      c.intermediate_size = 100;
    });
    const load = (): unknown => loadModelDirectory(dir, 'lm');
    expect(load).toThrow(/1 missing:\n {4}model.norm.weight \[64\]/);
    expect(load).toThrow(
      /6 of the wrong shape:\n {4}model.layers.0.mlp.gate_proj.weight: expected \[100, 64\] but the file has \[112, 64\]/,
    );
    expect(load).toThrow(/and 1 more/);
    expect(load).toThrow(/1 not expected in this model:\n {4}model.other.weight \[64\]/);
    expect(load).toThrow(expect.objectContaining({ code: 'INVALID_MODEL' }));
  });

  test('a prefix may be missing', () => {
    editHeader((text) => text.replaceAll('"model.', '"'));
    const model = loadModelDirectory(dir, 'lm');
    expect(model.files[0]!.tensors.map((t) => t.label)).toContain('layers.0.self_attn.q_proj.weight');
  });

  test('a dtype that cannot be read', () => {
    editHeader((text) => text.replace(/("model.norm.weight":\{"dtype":)"F32"/, '$1"I32"'));
    expect(() => loadModelDirectory(dir, 'lm')).toThrow(
      /unsupported dtype \(supported: F32, F16, BF16\):\n {4}model.norm.weight: I32/,
    );
  });

  test('an actor from a critic directory', () => {
    const critic = path.join(fixtures, 'models/llama_gqa/critic');
    expect(() => loadModelDirectory(critic, 'lm')).toThrow(
      /lm_head.weight \[150, 64\][\s\S]*score.weight \[1, 64\]/,
    );
  });

  test('generation_config.json has the last word on eos', () => {
    expect(loadModelDirectory(dir, 'lm').eosTokenIds).toEqual([149]);
    expect(readEosTokenIds(dir)).toEqual([149]);
    writeFileSync(path.join(dir, 'generation_config.json'), '{"eos_token_id": [3, 4]}');
    expect(loadModelDirectory(dir, 'lm').eosTokenIds).toEqual([3, 4]);
    expect(readEosTokenIds(dir)).toEqual([3, 4]);
    for (const none of ['null', '[]']) {
      writeFileSync(path.join(dir, 'generation_config.json'), `{"eos_token_id": ${none}}`);
      expect(readEosTokenIds(dir)).toEqual([149]);
    }
    for (const wrong of ['"</s>"', '[3, "4"]', '1.5']) {
      writeFileSync(path.join(dir, 'generation_config.json'), `{"eos_token_id": ${wrong}}`);
      for (const read of [() => readEosTokenIds(dir), () => loadModelDirectory(dir, 'lm')])
        expect(read).toThrow(
          /generation_config.json: eos_token_id: expected a token id, or an array of them/,
        );
    }
  });
});

describe('max_position_embeddings in place of config.json’s', () => {
  const made = (raw: Record<string, unknown>): string => {
    const dir = mkdtempSync(path.join(tmpdir(), 'positions-'));
    const from = path.join(models.find((name) => path.basename(name).startsWith('llama'))!, 'actor');
    cpSync(from, dir, { recursive: true });
    const config = JSON.parse(readFileSync(path.join(from, 'config.json'), 'utf8'));
    writeFileSync(path.join(dir, 'config.json'), JSON.stringify({ ...config, ...raw }));
    return dir;
  };
  const rope = (rope_scaling: object) => ({ rope_scaling, rope_parameters: undefined });

  test.each<[string, Record<string, unknown>]>([
    ['plain', {}],
    ['yarn without a factor of its own', rope({ rope_type: 'yarn', factor: 4 })],
    ['linear', rope({ rope_type: 'linear', factor: 2 })],
  ])('%s: the model is that of a config.json that says so', (_name, raw) => {
    const overridden = loadModelDirectory(made({ ...raw, max_position_embeddings: 64 }), 'lm', {
      maxPositionEmbeddings: 512,
    });
    const written = loadModelDirectory(made({ ...raw, max_position_embeddings: 512 }), 'lm');
    expect(overridden.config).toEqual(written.config);
    // What a saved model says.
    expect(overridden.raw['max_position_embeddings']).toBe(512);
    expect(overridden.raw).toEqual(written.raw);
  });

  test('positions that are weights are not made more', () => {
    const gpt2 = models.find((name) => path.basename(name).startsWith('gpt2'))!;
    const refused = /max_position_embeddings 4096 .*expected a model with rotary positions/;
    expect(() => loadModelDirectory(path.join(gpt2, 'actor'), 'lm', { maxPositionEmbeddings: 4096 })).toThrow(
      refused,
    );
    // The name that transformers takes as well, and none at all: 1024.
    for (const raw of [{ model_type: 'gpt2', max_position_embeddings: 64 }, { model_type: 'gpt2' }])
      expect(() => withPositions(raw, 4096, 'config.json')).toThrow(refused);
  });
});
