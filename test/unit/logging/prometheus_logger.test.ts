import { createServer } from 'node:net';
import { createLoggers } from '../../../ts/logging/loggers';
import { PrometheusLogger, prometheusName } from '../../../ts/logging/prometheus_logger';
import { loggedRun, loggingConfig, temporary } from '../../helpers/logged_run';

test('names', () => {
  expect(['actor/pg_loss', 'val-core/openai/gsm8k/acc/mean@4', 'é'].map(prometheusName)).toEqual([
    'troupe_actor_pg_loss',
    'troupe_val_core_openai_gsm8k_acc_mean_4',
    'troupe__',
  ]);
});

test('the newest values at /metrics, on the port that is printed', async () => {
  const run = loggedRun();
  const logger = new PrometheusLogger(run);
  await logger.log({ 'actor/pg_loss': 1, bad: NaN, worse: -Infinity }, 1);
  await logger.log({ 'actor/pg_loss': -0.125, 'a/b': 1, 'a-b': 2 }, 2);
  const [, url] = /^prometheus: (http:\/\/127\.0\.0\.1:\d+\/metrics)$/.exec(run.said[0] ?? '') as unknown as [
    string,
    string,
  ];
  const response = await fetch(`${url}?x=1`);
  expect(response.headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/);
  const lines = (await response.text()).split('\n');
  const labels = (metric: string): string => `{metric="${metric}",project="sums",experiment="grpo-1"}`;
  expect(lines).toContain('# TYPE troupe_actor_pg_loss gauge');
  expect(lines.filter((line) => line !== '' && !line.startsWith('#'))).toEqual([
    `troupe_step${labels('step')} 2`,
    `troupe_actor_pg_loss${labels('actor/pg_loss')} -0.125`,
    `troupe_bad${labels('bad')} Nan`,
    `troupe_worse${labels('worse')} -Inf`,
    // Two names that become one are told apart by the label.
    `troupe_a_b${labels('a/b')} 1`,
    `troupe_a_b${labels('a-b')} 2`,
  ]);
  expect((await fetch(url.replace('/metrics', '/'))).status).toBe(404);
  expect((await fetch(url.replace('/metrics', '//'))).status).toBe(404);
  await logger.close();
  await expect(fetch(url)).rejects.toThrow();
});

test('a port in use is a warning', async () => {
  const other = createServer();
  await new Promise<void>((done) => other.listen(0, '127.0.0.1', done));
  const { port } = other.address() as { port: number };
  const warned: string[] = [];
  const config = loggingConfig({ logger: ['prometheus'], logging: { prometheus: { port } } });
  const loggers = createLoggers(config, temporary(), { warn: (line) => warned.push(line) });
  await loggers.log({ a: 1 }, 1);
  await loggers.log({ a: 2 }, 2);
  await loggers.close();
  expect(warned).toEqual([
    expect.stringContaining(
      `prometheus failed, the run goes on without what it missed: logging.prometheus.port ${port}`,
    ),
  ]);
  expect(warned[0]).toContain('is in use: set it to another one, or 0');
  await new Promise((done) => other.close(done));
});
