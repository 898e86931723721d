// What `troupe plan` says of model directories that hold config.json alone: as a command, and in this process.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { type Advice, advise } from '../../ts/planner/advice';
import { EngineMemory } from '../../ts/planner/engine_memory';
import { configuredPlan } from '../../ts/planner/from_config';
import { type Plan, type PlanSpec, planMemory } from '../../ts/planner/plan';

const ROOT = resolve(__dirname, '../..');
export const MIB = 2 ** 20;
const directory = mkdtempSync(join(tmpdir(), 'plan-'));
/** As a 7B model, with fewer layers: what is simulated takes time by layers. */
export const LAYERS = 4;
export const llama = {
  model_type: 'llama',
  hidden_size: 4096,
  intermediate_size: 11008,
  num_hidden_layers: LAYERS,
  num_attention_heads: 32,
  num_key_value_heads: 32,
  vocab_size: 32000,
  max_position_embeddings: 4096,
  rms_norm_eps: 1e-5,
  tie_word_embeddings: false,
};

export function file(name: string, text: string): string {
  const path = join(directory, name);
  mkdirSync(resolve(path, '..'), { recursive: true });
  writeFileSync(path, text);
  return path;
}

export const config = file(
  'run.yaml',
  `
data: { train_files: train.jsonl, train_batch_size: 256, max_prompt_length: 512, max_response_length: 512 }
actor_rollout_ref:
  model: { path: model, enable_gradient_checkpointing: false }
  actor: { ppo_mini_batch_size: 64, use_kl_loss: true }
  rollout: { n: 4 }
algorithm: { adv_estimator: grpo }
`,
);
file('model/config.json', JSON.stringify(llama));
mkdirSync(join(directory, 'empty'));

export function troupe(...args: string[]) {
  return troupeIn(process.env, ...args);
}

export function troupeIn(env: NodeJS.ProcessEnv, ...args: string[]) {
  const run = spawnSync(process.execPath, [join(ROOT, 'dist', 'cli.js'), 'plan', ...args], {
    encoding: 'utf8',
    cwd: directory,
    env,
  });
  return { code: run.status, stdout: run.stdout, stderr: run.stderr };
}

export type PoolReport = Plan & { spec: PlanSpec; advice: Advice };

export const engines = new EngineMemory();

/** The same in this process: of the policy's pool, and of the others. */
export async function report(
  overrides: readonly string[] = [],
  o: { gpus?: number; memory?: number; file?: string; advise?: boolean } = {},
): Promise<PoolReport & { others: PoolReport[] }> {
  const cwd = process.cwd();
  process.chdir(directory);
  try {
    const request = { file: o.file ?? config, overrides, gpus: o.gpus ?? null, memory: o.memory ?? null };
    const pools: PoolReport[] = [];
    for (const spec of (await configuredPlan(request, engines)).pools) {
      const plan = await planMemory(spec, engines);
      const advice = o.advise ? await advise(spec, plan, engines) : { knobs: [], together: null };
      pools.push({ ...plan, spec, advice });
    }
    const [policy, ...others] = pools;
    return { ...(policy as PoolReport), others };
  } finally {
    process.chdir(cwd);
  }
}

/** Parameters of a block of layers. */
export const BLOCK = 4 * 4096 ** 2 + 3 * 4096 * 11008 + 2 * 4096;
/** Of embeddings, blocks and head. */
export const GROUPS = [32000 * 4096, ...Array.from({ length: LAYERS }, () => BLOCK), 32000 * 4096 + 4096];

export const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);
