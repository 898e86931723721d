import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import yaml from 'js-yaml';
import { Command, runCommand } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';

// The pods of printed manifests, played by processes of this machine: what a container is told to run, with the volume of the token as a
// directory and the name of the service as 127.0.0.1. Needs no kubectl; what that and a cluster do: kubernetes_cluster.test.ts.

let workspace: Workspace;
beforeAll(async () => {
  workspace = await Workspace.create();
});
afterAll(() => workspace.remove());

interface JobSpec {
  parallelism?: number;
  template: { spec: { containers: { command: string[] }[] } };
}
interface Manifest {
  kind: string;
  stringData?: { token: string };
  spec?: JobSpec;
}

test('two jobs and a service: the metrics of one machine', async () => {
  const common = (name: string): string[] => [
    `trainer.default_local_dir=${workspace.file(name)}`,
    'trainer.launcher.network=127.0.0.1',
  ];
  const alone = await runCommand([
    'train',
    workspace.file('train.yaml'),
    ...common('alone'),
    'trainer.n_gpus_per_node=4',
  ]);
  expect(alone.code).toBe(0);

  const own = [...common('pods'), 'trainer.nnodes=2', 'trainer.n_gpus_per_node=2'];
  const printed = await runCommand([
    ...['submit', workspace.file('train.yaml'), ...own, '--launcher=kubernetes', '--kind=job'],
    ...['--image=troupe', '--name=run', '--volume=data:/data'],
  ]);
  expect([printed.code, printed.stderr]).toEqual([0, '']);
  const made = yaml.loadAll(printed.stdout) as Manifest[];
  expect(made.map(({ kind }) => kind)).toEqual(['Secret', 'Service', 'Job', 'Job']);

  const secrets = workspace.file('secret');
  mkdirSync(secrets);
  writeFileSync(join(secrets, 'token'), made[0]?.stringData?.token as string, { mode: 0o400 });
  // A port of its own for each run of this test.
  const port = 20_000 + (process.pid % 20_000);
  const play = (command: readonly string[], index: number): Command => {
    expect(command.slice(0, 4)).toEqual(['sh', '-c', expect.stringMatching(/exec troupe/), 'troupe']);
    const words = command.slice(4).map((word) =>
      word
        .replace('/var/run/troupe', secrets)
        .replace('run:29400', `127.0.0.1:${port}`)
        .replace('29400-29463', `${port}-${port + 20}`),
    );
    return new Command(words, { env: { JOB_COMPLETION_INDEX: String(index) } });
  };
  const pods = made
    .slice(2)
    .flatMap(({ spec }) =>
      Array.from({ length: spec?.parallelism ?? 1 }, (_, index) =>
        play((spec as JobSpec).template.spec.containers[0]?.command as string[], index),
      ),
    );
  expect(pods).toHaveLength(3);
  const exits = await Promise.all(pods.map(({ exited }) => exited));
  expect(exits.map(({ code, stderr }) => [code, stderr])).toEqual([
    [0, ''],
    [0, ''],
    [0, ''],
  ]);
  const metrics = (name: string): string => readFileSync(join(workspace.file(name), 'metrics.jsonl'), 'utf8');
  expect(metrics('pods')).toBe(metrics('alone'));
});

test('a name that a service must not have is refused', async () => {
  const submit = ['submit', workspace.file('train.yaml'), '--launcher=kubernetes', '--image=troupe'];
  const { code, stdout, stderr } = await runCommand([...submit, '--name=7-runs']);
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toMatch(
    /--name: expected a DNS label of at most 40 characters that begins with a letter, got 7-runs/,
  );
});
