import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import yaml from 'js-yaml';
import { loadConfig } from '../../../ts/config/config';
import { type KubernetesOptions, manifests, manifestText } from '../../../ts/launch/kubernetes';
import { KUBERNETES_KINDS } from '../../../ts/launch/kubernetes_options';
import { sbatchScript } from '../../../ts/launch/sbatch';
import { requeueAfter } from '../../../ts/launch/slurm';

// What is handed to schedulers. The compiler checks manifests against the types of Kubernetes' own schema.

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'troupe-manifests-'));
  writeFileSync(
    join(directory, 'run.yaml'),
    `data: { train_files: a.parquet }
actor_rollout_ref: { model: { path: ./m } }
algorithm: { adv_estimator: grpo }
trainer: { nnodes: 2, n_gpus_per_node: 8, device: cuda, default_local_dir: /runs/x, fault_tolerance: { spares: 1 } }
`,
  );
});
afterAll(() => rmSync(directory, { recursive: true }));

const config = (...overrides: string[]) => loadConfig(join(directory, 'run.yaml'), overrides);
const options: KubernetesOptions = {
  kind: 'jobset',
  name: 'run',
  namespace: 'team',
  image: 'registry/troupe:1',
  volumes: ['data:/data'],
  program: 'train',
  file: '/data/run.yaml',
  overrides: ['trainer.seed=3'],
  grace: 300,
};

test.each(KUBERNETES_KINDS)(
  '%s: YAML that reads back as it was, with no token outside of its Secret',
  (kind) => {
    const made = manifests(config(), { ...options, kind });
    const text = manifestText(made);
    expect(yaml.loadAll(text)).toEqual(made.map((one) => JSON.parse(JSON.stringify(one)) as unknown));
    const secret = made.find((one) => one.kind === 'Secret') as { stringData: { token: string } } | undefined;
    expect(secret === undefined).toBe(kind === 'trainjob');
    if (secret !== undefined) expect(text.split(secret.stringData.token)).toHaveLength(2);
    for (const { metadata } of made) expect(metadata).toMatchObject({ namespace: 'team' });
  },
);

/** The shell gives its place to Troupe, which so gets the signals of a pod. */
const command = ['sh', '-c', expect.stringMatching(/; exec troupe "\$@"$/), 'troupe'];

test('a JobSet: the controller decides the end, agents dial its service and come back in place', () => {
  const set = manifests(config(), options)[1] as unknown as {
    spec: {
      replicatedJobs: { name: string; template: { spec: Record<string, never> } }[];
      successPolicy: unknown;
    };
  };
  expect(set.spec.successPolicy).toEqual({ operator: 'All', targetReplicatedJobs: ['controller'] });
  const [controller, worker] = set.spec.replicatedJobs.map(
    ({ template }) =>
      template.spec as never as {
        completions?: number;
        template: {
          spec: {
            restartPolicy: string;
            terminationGracePeriodSeconds: number;
            containers: { command: string[]; resources?: unknown }[];
          };
        };
      },
  );
  expect(controller?.template.spec.containers[0]).toMatchObject({
    command: [
      ...[...command, 'train', '/data/run.yaml', 'trainer.seed=3', 'trainer.launcher.type=external'],
      ...['trainer.launcher.ports=29400-29463', 'trainer.launcher.token_file=/var/run/troupe/token'],
    ],
  });
  expect(controller?.template.spec.containers[0]?.resources).toBeUndefined();
  // Two hosts and a spare.
  expect(worker).toMatchObject({ completionMode: 'Indexed', completions: 3, parallelism: 3 });
  expect(worker?.template.spec).toMatchObject({
    restartPolicy: 'OnFailure',
    terminationGracePeriodSeconds: 300,
  });
  expect(worker?.template.spec.containers[0]).toMatchObject({
    command: [
      ...[...command, 'host-agent', '--controller', 'run-controller-0-0.run:29400'],
      ...['--token-file', '/var/run/troupe/token'],
    ],
    resources: { limits: { 'nvidia.com/gpu': '8' } },
  });
});

test('a TrainJob: one process for each node, said where every version of the trainer reads it', () => {
  const [runtime, job] = manifests(config(), { ...options, kind: 'trainjob' });
  expect(runtime).toMatchObject({ spec: { mlPolicy: { numNodes: 2, torch: {} } } });
  expect(runtime).not.toHaveProperty('spec.mlPolicy.torch.numProcPerNode');
  expect(job).toMatchObject({ spec: { trainer: { numNodes: 2, numProcPerNode: 1 } } });
  const [node] = (runtime as never as { spec: { template: { spec: { replicatedJobs: unknown[] } } } }).spec
    .template.spec.replicatedJobs;
  const final = { containerName: 'node', operator: 'In', values: [2, 3] };
  expect(node).toMatchObject({
    template: {
      spec: {
        podFailurePolicy: { rules: [{ action: 'FailJob', onExitCodes: final }, { action: 'Ignore' }] },
        template: { spec: { containers: [{ name: 'node' }] } },
      },
    },
  });
});

test('a batch script of Slurm is the controller, and says nothing that is secret', () => {
  const script = sbatchScript(config(), {
    program: 'train',
    file: "/my runs/it's.yaml",
    overrides: ['trainer.seed=3'],
    options: ['--partition=a100'],
    time: '4:00:00',
    notice: 300,
    directory: '/work',
  });
  expect(script.split('\n')).toEqual(
    expect.arrayContaining([
      '#SBATCH --nodes=2',
      '#SBATCH --ntasks-per-node=1',
      '#SBATCH --gpus-per-node=8',
      '#SBATCH --time=4:00:00',
      '#SBATCH --signal=B:USR2@300',
      '#SBATCH --requeue',
      '#SBATCH --open-mode=append',
      '#SBATCH --output=/runs/x/slurm-%j.log',
      '#SBATCH --partition=a100',
      'export TROUPE_REQUEUE=1',
      'cd /work || exit',
      expect.stringMatching(
        /^exec \S*node \S*\/dist\/cli\.js train '\/my runs\/it'\\''s\.yaml' trainer\.seed=3 trainer\.launcher\.type=slurm$/,
      ),
    ]),
  );
  expect(script.split('\n').slice(0, 2).join('\n')).toMatch(/^#!\/bin\/sh\n#SBATCH/);
  expect(
    sbatchScript(config('trainer.device=cpu'), {
      program: 'sft',
      file: 'a',
      overrides: [],
      options: [],
      time: null,
      notice: 1,
      directory: '/',
    }),
  ).not.toMatch(/gpus|--time/);
});

test('machines are asked for GPUs for the workers of every pool', () => {
  const pools = config(
    'trainer.n_gpus_per_node=4',
    'actor_rollout_ref.rollout.nnodes=2',
    'actor_rollout_ref.rollout.n_gpus_per_node=3',
    'reward.reward_model.enable=true',
    'reward.reward_model.model_path=rm',
    'reward.reward_model.enable_resource_pool=true',
    'reward.reward_model.nnodes=1',
    'reward.reward_model.n_gpus_per_node=1',
  );
  expect(manifestText(manifests(pools, options))).toMatch(/nvidia\.com\/gpu: '8'/);
  const script = { program: 'train', file: 'a', overrides: [], options: [], time: null, notice: 1 };
  expect(sbatchScript(pools, { ...script, directory: '/' })).toMatch(/^#SBATCH --gpus-per-node=8$/m);
});

/** The words of the #SBATCH lines of a script, by the rules of sbatch: quotes of both kinds, a backslash before any character, # begins a comment. */
function sbatchWords(script: string): string[] {
  const words: string[] = [];
  for (const line of script.split('\n').filter((one) => one.startsWith('#SBATCH'))) {
    let word: string | null = null;
    let quote: string | null = null;
    for (let at = '#SBATCH'.length; at < line.length; at++) {
      const c = line[at] as string;
      if (c === '\\') word = (word ?? '') + line[++at];
      else if (c === quote) quote = null;
      else if (quote !== null) word = (word ?? '') + c;
      else if (c === '"' || c === "'") quote = c;
      else if (c === '#') break;
      else if (c !== ' ') word = (word ?? '') + c;
      else if (word !== null) {
        words.push(word);
        word = null;
      }
    }
    expect(quote).toBeNull();
    if (word !== null) words.push(word);
  }
  return words;
}

const slurm = {
  program: 'train',
  file: 'a.yaml',
  overrides: [],
  options: [],
  time: null,
  notice: 60,
  directory: '/',
};

test.each([
  ['my run', '/runs/of me/x'],
  ['"quoted" # 1', "/runs/it's"],
  ['a\\b', '/runs/"x"'],
])('the name %s of a job and its directory %s are one word each for sbatch', (name, root) => {
  const quoted = (text: string): string => `"${text.replaceAll('"', '\\"')}"`;
  const words = sbatchWords(
    sbatchScript(
      config(`trainer.experiment_name=${quoted(name)}`, `trainer.default_local_dir=${quoted(root)}`),
      slurm,
    ),
  );
  expect(words).toContain(`--job-name=${name}`);
  expect(words).toContain(`--output=${root}/slurm-%j.log`);
  expect(words.every((word) => word.startsWith('--'))).toBe(true);
});

test('a % of the directory of a job is none of the patterns of sbatch', () => {
  const script = sbatchScript(config('trainer.default_local_dir=/runs/50%j'), slurm);
  expect(sbatchWords(script)).toContain('--output=/runs/50%%j/slurm-%j.log');
});

test.each([
  ['experiment_name', 'a\nrm -rf x', /trainer\.experiment_name: .*control characters.* "a\\nrm -rf x"/],
  ['default_local_dir', '/runs/a\\b', /trainer\.default_local_dir: .*backslash.* "\/runs\/a\\\\b"/],
])('what sbatch cannot be told in trainer.%s is refused', (key, value, message) => {
  const whole = config();
  const told = { ...whole, trainer: { ...whole.trainer, [key]: value } };
  expect(() => sbatchScript(told, slurm)).toThrow(message);
});

test.each(['disable', 'resume_path'])(
  'a job that would begin again with %s does not go back to the queue',
  (mode) => {
    const path = mode === 'resume_path' ? ['trainer.resume_from_path=/runs/x/global_step_1'] : [];
    const script = sbatchScript(config(`trainer.resume_mode=${mode}`, ...path), slurm);
    expect(sbatchWords(script)).toEqual(expect.arrayContaining(['--no-requeue', '--signal=B:USR2@60']));
    expect(script).not.toMatch(/--requeue|TROUPE_REQUEUE/);
    const asked = { ...slurm, options: ['--requeue'] };
    expect(() => sbatchScript(config(`trainer.resume_mode=${mode}`, ...path), asked)).toThrow(
      /trainer\.resume_mode: expected auto with the option --requeue/,
    );
  },
);

test('only the notice of a time limit, or a job that takes its nodes, sends a job back, and only one that has asked for it', () => {
  const program = join(directory, 'scontrol');
  const shows = (state: string, preempted: string): string => {
    const shown = `JobState=${state} StartTime=2026-11-23T12:29:54 PreemptEligibleTime=2026-11-23T12:29:54 PreemptTime=${preempted}`;
    writeFileSync(
      program,
      `#!/bin/sh\necho "$@" >> ${directory}/asked\n[ $1 = requeue ] || echo ${shown}\n`,
      { mode: 0o755 },
    );
    return `show job 7\n`;
  };
  const asked = (): string => {
    const file = join(directory, 'asked');
    const text = existsSync(file) ? readFileSync(file, 'utf8') : '';
    rmSync(file, { force: true });
    return text;
  };
  const env = { SLURM_JOB_ID: '7', TROUPE_REQUEUE: '1', PATH: `${directory}:/usr/bin:/bin` };
  const back = 'job 7 goes back to the queue, and on from there';
  const look = shows('RUNNING', '2026-11-23T12:30:33');
  expect([requeueAfter('SIGTERM', env), asked()]).toEqual([back, `${look}requeue 7\n`]);
  expect([requeueAfter('SIGUSR2', env), asked()]).toEqual([back, 'requeue 7\n']);
  for (const [state, preempted] of [
    ['RUNNING', 'None'],
    ['COMPLETING', '2026-11-23T12:30:33'],
    ['RUNNING', '2026-11-23T12:10:00'],
  ] as const) {
    shows(state, preempted);
    expect([requeueAfter('SIGTERM', env), asked()]).toEqual([null, look]);
  }
  expect(requeueAfter(null, env)).toBeNull();
  expect(requeueAfter('SIGUSR2', { SLURM_JOB_ID: '7', PATH: env.PATH })).toBeNull();
  expect(requeueAfter('SIGUSR2', { TROUPE_REQUEUE: '1', PATH: env.PATH })).toBeNull();
  expect(asked()).toBe('');
  expect(requeueAfter('SIGTERM', { ...env, PATH: '' })).toMatch(
    /could not be sent back to the queue: .*ENOENT/,
  );
});
