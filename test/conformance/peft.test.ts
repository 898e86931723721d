import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import { CONFORMANCE } from '../helpers/conformance';

// Adapters that Troupe trained and saved, loaded by PEFT itself.
const python = (args: string[]) => spawnSync('python3', args, { encoding: 'utf8' });
const available = python(['-c', 'import peft, torch, transformers']).status === 0;
const withPeft = available ? test : test.skip;

const CASES: [string, 'actor' | 'critic', string[] | 'all-linear'][] = [
  ['llama_gqa', 'actor', 'all-linear'],
  ['qwen2_tied', 'actor', ['q_proj', 'model.layers.0.mlp.down_proj']],
  ['qwen3_headdim', 'actor', 'all-linear'],
  ['gemma2', 'actor', 'all-linear'],
  ['gpt2', 'actor', 'all-linear'],
  ['mixtral', 'actor', 'all-linear'],
  ['qwen3_moe', 'actor', 'all-linear'],
  ['gpt_oss', 'actor', 'all-linear'],
  ['olmo2', 'actor', 'all-linear'],
  ['olmo3', 'actor', 'all-linear'],
  ['olmo_hybrid', 'actor', 'all-linear'],
  ['youtu', 'actor', 'all-linear'],
  ['lfm2', 'actor', 'all-linear'],
  ['lfm2_moe', 'actor', 'all-linear'],
  ['gemma4_text', 'actor', 'all-linear'],
  ['gemma4_moe', 'actor', 'all-linear'],
  ['gemma4_shared', 'actor', 'all-linear'],
  ['mellum', 'actor', ['q_proj', 'k_proj', 'v_proj', 'o_proj']],
  ['granite', 'actor', 'all-linear'],
  ['granitemoe', 'actor', 'all-linear'],
  ['glm4', 'actor', 'all-linear'],
  ['glm4', 'critic', 'all-linear'],
  ['glm', 'actor', 'all-linear'],
  ['exaone', 'actor', 'all-linear'],
  ['apertus', 'actor', 'all-linear'],
  ['exaone4', 'actor', 'all-linear'],
  ['minimax_m2', 'actor', 'all-linear'],
  ['hy_v3', 'actor', 'all-linear'],
  ['qwen2_moe', 'actor', 'all-linear'],
  ['qwen3_5_moe', 'actor', 'all-linear'],
  // Of these PEFT takes adapters of gate_proj, up_proj and down_proj for those of experts.
  ['deepseek_v3', 'actor', ['q_a_proj', 'q_b_proj', 'kv_b_proj', 'o_proj']],
  ['glm4_moe', 'actor', ['q_proj', 'k_proj', 'o_proj']],
  ['afmoe', 'actor', ['q_proj', 'k_proj', 'v_proj', 'o_proj']],
  ['ernie4_5_moe', 'actor', ['q_proj', 'v_proj', 'o_proj']],
  // PEFT refuses adapters of out_proj in a model with Mamba.
  ['nemotron_h', 'actor', ['in_proj', 'q_proj', 'k_proj', 'o_proj']],
  ['arcee', 'actor', 'all-linear'],
  ['granitemoeshared', 'actor', 'all-linear'],
  ['solar_open', 'actor', ['q_proj', 'k_proj', 'o_proj']],
  ['granitemoehybrid', 'actor', ['in_proj', 'q_proj', 'v_proj', 'o_proj', 'input_linear', 'output_linear']],
  ['nemotron_h_latent', 'actor', ['in_proj', 'fc1_latent_proj', 'fc2_latent_proj']],
  ['llama_gqa', 'critic', 'all-linear'],
  ['gpt2', 'critic', ['c_attn']],
  ['gpt_oss', 'critic', 'all-linear'],
];

withPeft(
  'saved adapters load in PEFT, and merged weights are PEFT’s (needs a python3 with peft, transformers and torch)',
  async () => {
    const scratch = mkdtempSync(path.join(tmpdir(), 'troupe-peft-'));
    const group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
    try {
      const cases: object[] = [];
      for (const [name, role, targetModules] of CASES) {
        const model = path.join(CONFORMANCE, 'models', name, role);
        const directory = (what: string) => path.join(scratch, `${name}_${role}_${what}`);
        const tokens = [
          [5, 17, 3, 40, 8, 22, 11],
          [2, 9, 31, 7],
        ];
        const batch = Batch.fromSequences(
          tokens.map((ids) => ids.slice(0, 1)),
          tokens.map((ids) => ids.slice(1)),
        );
        const column = (phase: number) =>
          Float32Array.from({ length: batch.numResponseTokens }, (_, t) => Math.sin(phase + t));
        const create = role === 'actor' ? Actor.create : Critic.create;
        const engine: Actor | Critic = await create({
          model,
          group,
          optim: { lr: 1e-2 },
          lora: { rank: 4, alpha: 8, targetModules },
        });
        let expected: Float32Array;
        if (engine instanceof Actor) {
          const learn = batch.with({ oldLogProbs: column(0).map((x) => x - 5), advantages: column(1) });
          for (let i = 0; i < 3; i++) await engine.updatePolicy(learn);
          expected = (await engine.computeLogProb(batch)).logProbs;
        } else {
          const learn = batch.with({ values: column(0), returns: column(1) });
          for (let i = 0; i < 3; i++) await engine.updateCritic(learn, { clipRangeValue: 100 });
          expected = (await engine.computeValues(batch)).values;
        }
        await engine.saveAdapter(directory('adapter'));
        await engine.saveModel(directory('merged'));
        await engine.close();
        cases.push({
          model,
          adapter: directory('adapter'),
          merged: directory('merged'),
          value: role === 'critic',
          tokens,
          expected: tokens.map((_, i) =>
            Array.from(expected.slice(batch.responseOffsets[i], batch.responseOffsets[i + 1])),
          ),
        });
      }
      const file = path.join(scratch, 'cases.json');
      writeFileSync(file, JSON.stringify(cases));
      const { status, stdout, stderr } = python([path.join(__dirname, '../helpers/peft_check.py'), file]);
      if (status !== 0) throw new Error(stderr);
      const results = JSON.parse(stdout) as { outputs: number; effect: number; weights: number }[];
      for (const [i, { outputs, effect, weights }] of results.entries()) {
        const name = CASES[i]?.slice(0, 2).join(' ');
        // `effect`: what the adapter changes, far above the tolerance.
        expect([name, outputs < 2e-4, effect > 1e-2, weights < 1e-5]).toEqual([name, true, true, true]);
      }
    } finally {
      await group.close();
      rmSync(scratch, { recursive: true, force: true });
    }
  },
  300_000,
);
