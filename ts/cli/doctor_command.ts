// `troupe doctor`: this machine, and the hosts of a run.
import type { Argv } from 'yargs';
import type { ResolvedConfig } from '../config/config';
import { LAUNCHERS } from '../config/schema/launchers';
import type { Part } from '../launch/launch';
import type { DoctorItem } from './doctor';
import { UsageError } from './report';

export const withDoctor = (y: Argv) =>
  y
    .positional('config', { type: 'string', describe: 'YAML file of a run: its hosts are looked at, too' })
    .positional('overrides', {
      type: 'string',
      array: true,
      default: [] as string[],
      describe: 'key=value, as of `troupe train`',
    })
    .option('launcher', {
      choices: LAUNCHERS,
      describe: 'What starts the processes on them, in place of trainer.launcher.type',
    });

const load = () => require('./doctor') as typeof import('./doctor');

type Arguments = Awaited<ReturnType<typeof withDoctor>['argv']> & { config?: string };

/**
 * The configuration is read before the machine is looked at, which takes seconds.
 * @throws UsageError for a launcher without a configuration
 */
export function doctorTask(
  { config: file, launcher }: Arguments,
  overrides: readonly string[],
): () => Promise<number> {
  if (file === undefined) {
    if (launcher !== undefined)
      throw new UsageError(
        'doctor: --launcher needs the configuration of a run: troupe doctor run.yaml --launcher ssh',
      );
    return () => load().runDoctor();
  }
  const own = launcher === undefined ? [] : [`trainer.launcher.type=${launcher}`];
  return async () => {
    const { loadConfig } = require('../config/config') as typeof import('../config/config');
    const { partOf } = require('../launch/launch') as typeof import('../launch/launch');
    const config = loadConfig(file, [...overrides, ...own]);
    const part = partOf(config);
    return load().runDoctor({ further: () => hostItems(config, part) });
  };
}

async function hostItems(config: ResolvedConfig, part: Part): Promise<DoctorItem[]> {
  const { examineHosts } = require('../launch/host_doctor') as typeof import('../launch/host_doctor');
  if (part.part !== 'controller') {
    const found = part.part === 'alone' ? 'this machine alone' : 'another process speaks for the run';
    return [{ name: 'hosts', severity: 'info', found, fix: null }];
  }
  const findings = await examineHosts(config, part, (line) => void process.stderr.write(`${line}\n`));
  return findings.map(({ ok, ...rest }) => ({ ...rest, severity: ok ? 'ok' : 'problem' }));
}
