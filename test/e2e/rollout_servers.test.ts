import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { Command } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';
import { readLines } from '../helpers/observed_run';

// GRPO with responses from servers that the run starts, one of which dies on the way: our engine behind the protocols of SGLang and TGI, and vLLM
// itself where a Python has it (TROUPE_TEST_VLLM_PYTHON).

const VLLM = process.env['TROUPE_TEST_VLLM_PYTHON'] ?? 'python3';
/** Looked for, not imported, which takes a minute of a processor where others compute. */
const HAS_VLLM = 'import importlib.util, sys; sys.exit(importlib.util.find_spec("vllm") is None)';
const hasVllm = spawnSync(VLLM, ['-c', HAS_VLLM]).status === 0;
/** It gives its own processes up after 600 s of waiting for each other, and what they compute after 300: too little for a machine that others use. */
const VLLM_PATIENCE_S = 1800;
const OURS = resolve(__dirname, '../helpers/serve/our_server.cjs');

const STEPS = 2;

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

function overrides(name: string, command: readonly string[]): string[] {
  return [
    `actor_rollout_ref.rollout.name=${name}`,
    'actor_rollout_ref.rollout.mode=managed',
    `actor_rollout_ref.rollout.server.command=[${command.join(',')}]`,
    `trainer.default_local_dir=${workspace.file(`run_${name}`)}`,
    `trainer.total_training_steps=${STEPS}`,
    'trainer.test_freq=-1',
    'trainer.save_freq=-1',
    'trainer.device=cpu',
  ];
}

/** The run has trained on what its servers made, and nothing of theirs is left. */
function checkRun(name: string, most: number): void {
  const directory = workspace.file(`run_${name}`);
  const steps = readLines(join(directory, 'metrics.jsonl')).filter(({ step }) => Number(step) > 0);
  expect(steps.map(({ step }) => step)).toEqual([1, 2]);
  for (const step of steps) expect(step['training/rollout_probs_diff_max']).toBeLessThanOrEqual(most);
  expect(existsSync(join(directory, 'rollout_weights'))).toBe(false);
  expect(readdirSync(join(directory, 'logs')).filter((file) => file.endsWith('.log'))).toEqual([
    `${name}_1.log`,
  ]);
}

test.each(['sglang', 'tgi'])('our engine behind the protocol of %s', async (name) => {
  const command = [process.execPath, OURS, workspace.file(`mark_${name}`), name];
  const run = new Command(['train', workspace.file('train.yaml'), ...overrides(name, command)]);
  const { code, stdout, stderr } = await run.exited;
  expect([code, stderr]).toEqual([0, '']);
  expect(stdout).toContain(`responses come from 1 ${name} server`);
  expect(stdout).toMatch(
    new RegExp(`${name} server 1 was lost .*\\n(.*\\n)*.*${name} server 1 is back after`),
  );
  checkRun(name, 1e-6);
  const log = readFileSync(join(workspace.file(`run_${name}`), 'logs', `${name}_1.log`), 'utf8');
  // TGI is started again for each version of the weights.
  expect(log.trim().split('\n').at(-1)).toBe(name === 'tgi' ? 'version_2' : 'version_0');
});

/** A run with vLLM's own server in `run_${name}`. */
async function trainWithVllm(name: string, ...more: string[]): Promise<Command> {
  const { writeInitialModel } = await load('../../examples/arithmetic/initial_model.mjs');
  const { Random } = await load('../../examples/arithmetic/random.mjs');
  const model = workspace.file(`${name}_model`);
  writeInitialModel(model, new Random(1));
  return new Command(
    [
      'train',
      workspace.file('train.yaml'),
      ...overrides('vllm', [VLLM, '-m', 'vllm.entrypoints.openai.api_server']),
      "actor_rollout_ref.rollout.server.args=[--enforce-eager,--gpu-memory-utilization,'0.1']",
      `actor_rollout_ref.rollout.server.recovery_timeout=${VLLM_PATIENCE_S}`,
      `actor_rollout_ref.model.path=${model}`,
      `trainer.default_local_dir=${workspace.file(`run_${name}`)}`,
      ...more,
    ],
    {
      env: {
        VLLM_CPU_KVCACHE_SPACE: '1',
        VLLM_CPU_OMP_THREADS_BIND: 'nobind',
        OMP_NUM_THREADS: '1',
        VLLM_ENGINE_READY_TIMEOUT_S: `${VLLM_PATIENCE_S}`,
        VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: `${VLLM_PATIENCE_S}`,
      },
    },
  );
}

const withVllm = hasVllm ? test : test.skip;
withVllm(
  'vLLM, killed in the middle (skipped where python3 has none)',
  async () => {
    const run = await trainWithVllm('vllm');
    const samples = join(workspace.file('run_vllm'), 'samples');
    await run.until('the first step', () => existsSync(join(samples, '1.jsonl')), VLLM_PATIENCE_S * 1000);
    const servers = readdirSync('/proc').filter(
      (id) =>
        /^\d+$/.test(id) &&
        commandLine(id).includes(`${workspace.file('run_vllm')}/`) &&
        commandLine(id).includes('vllm.entrypoints'),
    );
    expect(servers).toHaveLength(1);
    process.kill(Number(servers[0]), 'SIGKILL');
    const { code, stdout, stderr } = await run.exited;
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toMatch(/vllm server 1 was lost .*\n(.*\n)*.*vllm server 1 is back after/);
    checkRun('vllm', 1e-5);
  },
  2 * VLLM_PATIENCE_S * 1000,
);

withVllm(
  'vLLM goes on while the policy learns, over the updates of its weights (skipped where python3 has none)',
  async () => {
    const asynchronous = 'trainer.v1.trainer_mode=separate_async';
    const run = await trainWithVllm('separate', asynchronous, 'trainer.total_training_steps=4');
    const { code, stderr } = await run.exited;
    expect([code, stderr]).toEqual([0, '']);
    const lines = readLines(join(workspace.file('run_separate'), 'metrics.jsonl')).filter(
      ({ step }) => Number(step) > 0,
    );
    const worst = lines.map((line) => line['training/off_policy/trajectory_staleness_worst/max'] as number);
    expect(worst).toHaveLength(4);
    expect(worst[0]).toBe(0);
    expect(Math.max(...worst)).toBeGreaterThanOrEqual(1);
    for (const [i, line] of lines.entries()) {
      expect(worst[i]).toBeLessThanOrEqual(i);
      // Old log-probs are those of the weights that learn, which these responses may be behind.
      if (worst[i] === 0) expect(line['training/rollout_probs_diff_max']).toBeLessThanOrEqual(1e-5);
    }
  },
  VLLM_PATIENCE_S * 1000,
);

const load = (module: string) => import(module); // untyped

function commandLine(id: string): string {
  try {
    return readFileSync(`/proc/${id}/cmdline`, 'utf8').replaceAll('\0', ' ');
  } catch {
    return '';
  }
}
