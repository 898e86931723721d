import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../../ts/actor/actor';
import { Critic } from '../../../ts/critic/critic';
import type { NativeTensorFile } from '../../../ts/native/bridge';
import { FakeGroup } from './fake_group';

const model = path.join(__dirname, '../../fixtures/conformance/models/llama_gqa/actor');

const create = (group: FakeGroup, more: object = {}): Promise<Actor> =>
  Actor.create({ model, group: group.asGroup(), maxTokensPerMicroBatch: 32, ...more });
describe('files', () => {
  let dir: string;
  beforeEach(() => {
    dir = mkdtempSync(path.join(tmpdir(), 'troupe-actor-'));
  });
  afterEach(() => rmSync(dir, { recursive: true }));

  /** Writes what the core would write, with zeros for data. */
  const exporter = (_kind: string, files: NativeTensorFile[]): null => {
    for (const f of files)
      writeFileSync(f.path, Buffer.concat([f.header, Buffer.alloc(f.size - f.header.length)]), {
        flag: 'wx',
      });
    return null;
  };

  test('saveModel', async () => {
    const actor = await create(new FakeGroup({ exportTensors: exporter }));
    const target = path.join(dir, 'saved');
    await actor.saveModel(target, { dtype: 'bfloat16' });
    expect(readdirSync(target).sort()).toEqual(['config.json', 'model.safetensors']);
    const config = JSON.parse(readFileSync(path.join(target, 'config.json'), 'utf8'));
    expect(config).toMatchObject({
      architectures: ['LlamaForCausalLM'],
      torch_dtype: 'bfloat16',
      rope_theta: 10000,
    });
    const again = await Actor.create({ model: target, group: new FakeGroup().asGroup() });
    expect(again.engine.model.dtypes.get('lm_head.weight')).toBe('BF16');
  });

  test('a critic from a causal LM saves as token classification', async () => {
    const critic = await Critic.create({
      model,
      group: new FakeGroup({ exportTensors: exporter }).asGroup(),
    });
    await critic.saveModel(path.join(dir, 'critic'));
    const again = await Critic.create({ model: path.join(dir, 'critic'), group: new FakeGroup().asGroup() });
    expect(again.engine.model.freshHead).toBe(false);
    expect(again.engine.model.raw).toMatchObject({
      architectures: ['LlamaForTokenClassification'],
      id2label: { '0': 'LABEL_0' },
    });
  });

  test('checkpoints round-trip', async () => {
    const saved = new FakeGroup({ exportTensors: exporter, optimizerSteps: () => 7, scheduleSteps: () => 9 });
    const actor = await create(saved);
    const target = path.join(dir, 'checkpoint');
    await actor.saveCheckpoint(target);
    expect(readdirSync(path.join(target, 'optimizer')).sort()).toEqual([
      'exp_avg.safetensors',
      'exp_avg_sq.safetensors',
    ]);
    const group = new FakeGroup();
    await (await create(group)).loadCheckpoint(target);
    expect(group.callsOf('importTensors').map((c) => c.args[0])).toEqual([
      'param',
      'param',
      'expAvg',
      'expAvgSq',
    ]);
    expect(group.callsOf('setSteps').map((c) => c.args)).toEqual([[7, 9]]);
    const critic = await Critic.create({ model, group: new FakeGroup().asGroup() });
    await expect(critic.loadCheckpoint(target)).rejects.toThrow(/saved by role 'actor', expected 'critic'/);
    await expect(actor.loadCheckpoint(model)).rejects.toThrow(/has no engine.json/);
  });

  test('inference-only checkpoints hold no optimiser state', async () => {
    const target = path.join(dir, 'checkpoint');
    await (await create(new FakeGroup({ exportTensors: exporter }), { optim: null })).saveCheckpoint(target);
    await expect((await create(new FakeGroup())).loadCheckpoint(target)).rejects.toThrow(
      /holds no optimiser state/,
    );
  });

  test('a full disk leaves nothing behind', async () => {
    const group = new FakeGroup({
      exportTensors: () => {
        throw Object.assign(new Error('no space left'), { code: 'ENOSPC' });
      },
    });
    const actor = await create(group);
    await expect(actor.saveCheckpoint(path.join(dir, 'c'))).rejects.toMatchObject({ code: 'NO_SPACE' });
    expect(existsSync(path.join(dir, 'c'))).toBe(false);
    expect(readdirSync(dir)).toEqual([]);
  });
});
