import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import type { MuonOptions } from '../../ts/engine/muon_options';
import { CONFORMANCE, layoutsOf, TestGroups } from '../helpers/conformance';
import { floats, readSafetensors } from '../helpers/safetensors';

// Weights after three steps against those of the Muon that Megatron uses (test/fixtures/muon/record.py).
const RECORDED = path.join(__dirname, '..', 'fixtures', 'muon');

interface Case {
  model: string;
  options: {
    momentum: number;
    nesterov: boolean;
    scale_mode: NonNullable<MuonOptions['scaleMode']>;
    extra_scale_factor: number;
    coefficient_type: NonNullable<MuonOptions['coefficientType']>;
    num_ns_steps: number;
    fp32_matmul_prec: 'medium' | 'highest';
  };
  adamw: { lr: number; betas: [number, number]; eps: number; weight_decay: number };
  clip: number;
  steps: { loss: number; grad_norm: number; tokens: number[][]; prompt: number }[];
}
const cases = JSON.parse(readFileSync(path.join(RECORDED, 'updates.json'), 'utf8')) as Record<string, Case>;
const expected = readSafetensors(path.join(RECORDED, 'updates.safetensors'));

const groups = new TestGroups();
let scratch: string;
beforeAll(() => {
  scratch = mkdtempSync(path.join(os.tmpdir(), 'troupe-muon-'));
});
afterAll(async () => {
  await groups.close();
  rmSync(scratch, { recursive: true, force: true });
});

const muonOf = ({ options }: Case): MuonOptions => ({
  momentum: options.momentum,
  nesterov: options.nesterov,
  scaleMode: options.scale_mode,
  extraScaleFactor: options.extra_scale_factor,
  coefficientType: options.coefficient_type,
  numNsSteps: options.num_ns_steps,
  dtype: options.fp32_matmul_prec === 'medium' ? 'bfloat16' : 'float32',
});

describe.each(
  Object.entries(cases).flatMap(([name, spec]) =>
    layoutsOf(path.join(CONFORMANCE, 'update_models', spec.model)).map((layout) => ({
      name,
      spec,
      ...layout,
    })),
  ),
)('$name on $layout', ({ name, spec, worldSize, parallel }) => {
  test('three steps', async () => {
    const actor = await Actor.create({
      model: path.join(CONFORMANCE, 'update_models', spec.model),
      group: await groups.of(worldSize),
      parallel,
      dtype: 'float32',
      maxTokensPerMicroBatch: 64,
      optim: {
        lr: spec.adamw.lr,
        betas: spec.adamw.betas,
        eps: spec.adamw.eps,
        weightDecay: spec.adamw.weight_decay,
        gradClip: spec.clip,
        muon: muonOf(spec),
      },
    });
    try {
      // Products in bfloat16 keep eight bits, in whatever order they are added up.
      const narrow = spec.options.fp32_matmul_prec === 'medium';
      for (const step of spec.steps) {
        const metrics = await actor.updateSft(
          Batch.fromSequences(
            step.tokens.map((row) => row.slice(0, step.prompt)),
            step.tokens.map((row) => row.slice(step.prompt)),
          ),
        );
        expect(Math.abs((metrics['actor/loss'] as number) / step.loss - 1)).toBeLessThan(
          narrow ? 1e-3 : 1e-5,
        );
        expect(Math.abs((metrics['actor/grad_norm'] as number) / step.grad_norm - 1)).toBeLessThan(
          narrow ? 1e-3 : 1e-5,
        );
      }
      const saved = path.join(scratch, `${name}-${worldSize}`);
      await actor.saveModel(saved);
      const actual = readSafetensors(path.join(saved, 'model.safetensors'));
      const most = { difference: 0, name: '' };
      const names = Object.keys(expected).filter((tensor) => tensor.startsWith(`${name}/`));
      expect(names.length).toBeGreaterThan(10);
      for (const tensor of names) {
        const a = floats(actual, tensor.slice(name.length + 1));
        const b = floats(expected, tensor);
        expect(a.length).toBe(b.length);
        for (let i = 0; i < a.length; i++) {
          const difference = Math.abs((a[i] as number) - (b[i] as number));
          if (!(difference <= most.difference)) Object.assign(most, { difference, name: tensor });
        }
      }
      // Of steps of up to 2e-3, a third of that of Muon where there are few rows.
      if (!(most.difference <= (narrow ? 2e-4 : 2e-6))) throw new Error(JSON.stringify(most));
    } finally {
      await actor.close();
    }
  });
});
