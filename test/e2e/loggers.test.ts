import { readdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { type Exit, runCommand } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';
import { type Recorded, type Reply, serve } from '../helpers/logged_run';

// Every logger at once in a whole run: what it sends, and that it changes nothing when it cannot.

let workspace: Workspace;
let undisturbed: string;
beforeAll(async () => {
  workspace = await Workspace.create();
  expect(await train('undisturbed', [], {})).toMatchObject({ code: 0 });
  undisturbed = metrics('undisturbed');
});
afterAll(() => workspace.remove());

const metrics = (run: string): string => readFileSync(workspace.file(`${run}/metrics.jsonl`), 'utf8');
const lines = (text: string): Record<string, unknown>[] =>
  text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
const train = (run: string, overrides: string[], env: Record<string, string>): Promise<Exit> =>
  runCommand(
    ['train', workspace.file('train.yaml'), `trainer.default_local_dir=${workspace.file(run)}`, ...overrides],
    { env },
  );
const all = 'trainer.logger=[console,file,tensorboard,wandb,mlflow,prometheus]';
const environment = (url: string): Record<string, string> => ({
  WANDB_API_KEY: 'key-not-to-be-shown',
  WANDB_BASE_URL: url,
  MLFLOW_TRACKING_URI: url,
  MLFLOW_TRACKING_TOKEN: 'token-not-to-be-shown',
});

function accept({ path }: Recorded): Reply {
  const bucket = { historyLineCount: 0, project: { name: 'troupe', entity: { name: 'ada' } } };
  if (path === '/graphql') return { json: { data: { upsertBucket: { bucket } } } };
  if (path.includes('get-by-name')) return { json: { experiment: { experiment_id: '1' } } };
  if (path.endsWith('/runs/create')) return { json: { run: { info: { run_id: 'r1' } } } };
  return { json: {} };
}

/** The first line that follows each step in the JSONL files, by name: what every logger is to have seen. */
function logged(run: string): Map<string, number> {
  const found = new Map<string, number>();
  for (const file of ['metrics.jsonl', 'timings.jsonl']) {
    for (const { step, ...values } of lines(readFileSync(workspace.file(`${run}/${file}`), 'utf8'))) {
      for (const [name, value] of Object.entries(values)) found.set(`${step} ${name}`, Number(value));
    }
  }
  return found;
}

test('a run with all loggers, and its configuration', async () => {
  const server = await serve(accept);
  const exit = await train('all', [all, 'trainer.log_val_generations=2'], environment(server.url));
  await server.close();
  expect(exit).toMatchObject({ code: 0, stderr: '' });
  expect(metrics('all')).toBe(undisturbed);
  for (const said of ['tensorboard: ', 'wandb: ', 'mlflow: ', 'prometheus: http://127.0.0.1:']) {
    expect(exit.stdout).toContain(said);
  }
  expect(exit.stdout).toContain('validation at step 4, 2 of its answers');
  expect(exit.stdout).not.toContain('not-to-be-shown');
  expect(readdirSync(workspace.file('all/tensorboard'))).toHaveLength(1);

  const expected = logged('all');
  const wandb = server
    .to(/file_stream/)
    .flatMap(({ body }) => (body.files?.['wandb-history.jsonl']?.content ?? []) as string[])
    .flatMap((line) => {
      const { _step, _timestamp, _runtime, ...values } = JSON.parse(line) as Record<string, number>;
      return Object.entries(values).map(([name, value]) => [`${_step} ${name}`, value] as const);
    });
  expect(new Map(wandb)).toEqual(expected);
  const mlflow = server
    .to(/log-batch/)
    .flatMap(({ body }) => (body.metrics ?? []) as { key: string; value: number; step: number }[]);
  expect(mlflow).toHaveLength(expected.size);
  for (const { key, value, step } of mlflow)
    expect(expected.get(`${step} ${key.replace('_at_', '@')}`)).toBe(value);
  const resolved = JSON.parse(readFileSync(workspace.file('all/config.json'), 'utf8'));
  const sent = JSON.parse(server.to(/graphql/)[0]?.body.variables.config);
  expect(
    Object.fromEntries(Object.entries(sent).map(([k, v]) => [k, (v as { value: unknown }).value])),
  ).toEqual(resolved);
});

test('servers that never answer, and a port in use: the same run, with one warning each and what is missing', async () => {
  const server = await serve(() => undefined);
  const busy = createServer();
  await new Promise<void>((done) => busy.listen(0, '127.0.0.1', done));
  const { port } = busy.address() as { port: number };
  const overrides = [all, `logging.prometheus.port=${port}`, 'logging.flush_timeout=0.2'];
  const exit = await train('hanging', overrides, {
    ...environment(server.url),
    TENSORBOARD_DIR: '/proc/none',
  });
  await server.close();
  busy.close();
  expect(exit.code).toBe(0);
  expect(metrics('hanging')).toBe(undisturbed);
  const warnings = exit.stderr.trim().split('\n');
  for (const [name, count] of [
    ['tensorboard', 1],
    ['prometheus', 1],
    ['wandb', 2],
    ['mlflow', 2],
  ] as const) {
    expect(warnings.filter((line) => line.startsWith(`warning: [logging] ${name}`))).toHaveLength(count);
  }
  expect(warnings).toHaveLength(6);
  expect(exit.stderr).not.toContain('not-to-be-shown');
});
