import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Exit, runCommand } from '../helpers/e2e_process';
import { BATCH, VALIDATION_PROMPTS, Workspace } from '../helpers/e2e_workspace';
import { describeWithKubernetes, KubernetesCluster } from '../helpers/kubernetes/cluster';
import type { Pod } from '../helpers/kubernetes/jobs';
import { hasCondition } from '../helpers/kubernetes/objects';

// Runs that the real kubectl brings to an API server of the tests' own, whose pods are processes in namespaces.

/** Of one test, of which the waits inside end sooner and say more. */
const LIMIT_MS = 600_000;

/** The usual reward; from the second step on each takes its time while the file "slow" is there, so that a step can be interrupted. */
const SLOW_REWARD = `const { existsSync } = require('node:fs');
const { join } = require('node:path');
const quick = require('./reward.cjs').compute_score;
let calls = 0;
exports.compute_score = async (sample) => {
  if (++calls > ${VALIDATION_PROMPTS + BATCH.prompts * BATCH.n})
    for (let i = 0; i < 600 && existsSync(join(__dirname, 'slow')); i++) await new Promise((done) => setTimeout(done, 50));
  return quick(sample);
};
`;

/** But for those that somebody asks for. */
const NO_CHECKPOINTS = 'trainer.save_freq=4';

describeWithKubernetes('Kubernetes', () => {
  let workspace: Workspace;
  let cluster: KubernetesCluster;
  let expected: string;

  beforeAll(async () => {
    workspace = await Workspace.create();
    writeFileSync(workspace.file('slow.cjs'), SLOW_REWARD);
    const text = readFileSync(workspace.file('train.yaml'), 'utf8');
    writeFileSync(workspace.file('pods.yaml'), text.replaceAll(workspace.path, '/data'));
    const alone = await runCommand([
      ...['train', workspace.file('train.yaml'), 'trainer.n_gpus_per_node=4'],
      `trainer.default_local_dir=${workspace.file('alone')}`,
    ]);
    expect(alone.code === 0 ? '' : `${alone.stdout}\n${alone.stderr}`).toBe('');
    expected = metrics('alone');
    cluster = await KubernetesCluster.start({ data: workspace.path }, 10);
  }, LIMIT_MS);
  afterAll(async () => {
    await cluster?.stop();
    workspace?.remove();
  });
  afterEach(async () => {
    rmSync(workspace.file('slow'), { force: true });
    for (const object of cluster.store.list('Job')) cluster.store.remove(object);
    for (const kind of ['Secret', 'Service', 'JobSet', 'TrainingRuntime', 'TrainJob'])
      for (const object of cluster.store.list(kind)) cluster.store.remove(object);
    for (const pod of cluster.pods()) cluster.store.requestDeletion(pod, 0);
    await cluster.until('the end of all pods', () => cluster.pods().length === 0);
  });

  const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');
  const overrides = (name: string): string[] => [
    `trainer.default_local_dir=/data/${name}`,
    'trainer.nnodes=2',
    'trainer.n_gpus_per_node=2',
  ];

  /** What a machine that sees the volume does. */
  const run = (...command: string[]): Promise<Exit> =>
    cluster.runWithClaims({ '/data': workspace.path }, command);
  const smoke = (kind: string, name: string): Promise<Exit> =>
    run('bash', 'scripts/smoke/kubernetes.sh', 'troupe', 'data', '/data/pods.yaml', kind, ...overrides(name));
  const failed = ({ code, stdout, stderr }: Exit): string => (code === 0 ? '' : `${stdout}\n${stderr}`);
  async function kubectl(...args: string[]): Promise<void> {
    expect(failed(await cluster.kubectl(...args))).toBe('');
  }

  /** A run that is interrupted in its second step. @returns the file of its manifests */
  async function inTheMiddle(kind: string, name: string, ...more: string[]): Promise<string> {
    writeFileSync(workspace.file('slow'), '');
    const options = [
      `--kind=${kind}`,
      '--image=troupe',
      '--name=run',
      '--volume=data:/data',
      '--launcher=kubernetes',
    ];
    const reward = 'reward.custom_reward_function.path=/data/slow.cjs';
    const exit = await run(
      'npx',
      'troupe',
      'submit',
      '/data/pods.yaml',
      ...overrides(name),
      reward,
      ...more,
      ...options,
    );
    expect(failed(exit)).toBe('');
    const file = workspace.file(`${name}.manifests`);
    writeFileSync(file, exit.stdout);
    await kubectl('apply', '-f', file);
    const first = kind === 'trainjob' ? 'run-node-0-0' : 'run-controller';
    const reached = more.includes(NO_CHECKPOINTS) ? /^step 1\/4/m : /^step 1\/4 \| checkpoint saved/m;
    await cluster.until('step 1', () => cluster.pods(first).some((one) => reached.test(cluster.saidBy(one))));
    return file;
  }
  const ended = (kind: string, name: string) => () => {
    const object = cluster.store.find(kind, 'team', name);
    return object !== null && ['Complete', 'Completed'].some((type) => hasCondition(object, type));
  };
  const pod = (start: string): Pod => cluster.pods(start)[0] as Pod;

  test.each(['job', 'jobset', 'trainjob'])(
    'the smoke script: %s',
    async (kind) => {
      expect(failed(await smoke(kind, kind))).toBe('');
      expect(metrics(kind)).toBe(expected);
      await cluster.until('the end of all pods', () => cluster.pods().length === 0);
      expect(cluster.processes()).toEqual([]);
    },
    LIMIT_MS,
  );

  test(
    'kubectl delete in the middle: the step is ended and saved, nothing is left, and applied again it goes on from there',
    async () => {
      const file = await inTheMiddle('jobset', 'deleted', NO_CHECKPOINTS);
      const said = cluster.follow(pod('run-controller'));
      const deleted = kubectl('delete', '-f', file);
      await cluster.until('SIGTERM', () => /SIGTERM/.test(said()));
      rmSync(workspace.file('slow'));
      await deleted;
      await cluster.until('the end of all pods', () => cluster.pods().length === 0);
      expect(cluster.processes()).toEqual([]);
      expect(said()).toMatch(/stopped by SIGTERM after step 1, which is saved/);
      await kubectl('apply', '-f', file);
      await cluster.until('the end', ended('JobSet', 'run'));
      expect(cluster.saidBy(pod('run-controller'))).toMatch(/resuming after step 1/);
      expect(metrics('deleted')).toBe(expected);
    },
    LIMIT_MS,
  );

  test(
    'kubectl delete of the pod of a host: the step is saved, and all go on',
    async () => {
      await inTheMiddle('job', 'told', NO_CHECKPOINTS);
      const said = cluster.follow(pod('run-controller'));
      const deleted = kubectl('delete', 'pod', pod('run-worker-1').metadata.name);
      await cluster.until('SIGTERM', () => /SIGTERM/.test(said()));
      rmSync(workspace.file('slow'));
      await deleted;
      await kubectl('wait', '--for=condition=Complete', 'job/run-controller', '--timeout=240s');
      expect(said()).toMatch(/SIGTERM at host run-worker-1: saving[\s\S]*after step 1, which is saved/);
      expect(metrics('told')).toBe(expected);
    },
    LIMIT_MS,
  );

  test.each([
    ['JobSet', 'run-worker-0-1'],
    ['TrainJob', 'run-node-0-0'],
  ])(
    '%s: %s is killed in the middle, and all go on from the last checkpoint',
    async (kind, name) => {
      await inTheMiddle(kind.toLowerCase(), name);
      await cluster.kill(pod(name));
      rmSync(workspace.file('slow'));
      await cluster.until('the end', ended(kind, 'run'));
      expect(metrics(name)).toBe(expected);
    },
    LIMIT_MS,
  );

  test.each([
    ['job', 'troupe-smoke-controller'],
    ['trainjob', 'troupe-smoke-node-0-0'],
  ])(
    'a configuration that the pods refuse: the smoke script (%s) says so after one try',
    async (kind, name) => {
      const submitted = readFileSync(workspace.file('pods.yaml'), 'utf8');
      const from = cluster.store.changes.length;
      const smoked = smoke(kind, `refused-${kind}`);
      await cluster.until('a pod', () => cluster.pods(name).length > 0);
      writeFileSync(workspace.file('pods.yaml'), '{ no: configuration }');
      const { code, stdout, stderr } = await smoked;
      writeFileSync(workspace.file('pods.yaml'), submitted);
      expect([code, stderr]).toEqual([1, expect.stringMatching(/kubernetes: .* has failed/)]);
      expect(stdout).toMatch(/unknown key no:/);
      const made = cluster.store.changes.slice(from).filter(({ type }) => type === 'ADDED');
      expect(made.filter(({ object }) => object.metadata.name.startsWith(`${name}-`))).toHaveLength(1);
    },
    LIMIT_MS,
  );

  test('kubectl is let in by the token and the certificate of its configuration alone', async () => {
    expect((await cluster.kubectl('get', 'pods', '--token=other')).stderr).toMatch(/Unauthorized|logged in/);
    expect(
      (await cluster.kubectl('get', 'pods', '--certificate-authority=/etc/ssl/certs/ca-certificates.crt'))
        .stderr,
    ).toMatch(/certificate signed by unknown authority/);
    expect((await cluster.kubectl('get', 'pods')).code).toBe(0);
  });
});
