// The command line of `troupe agent`.
import type { Argv } from 'yargs';

export const withAgent = (y: Argv) =>
  y
    .positional('action', { choices: ['try'] as const, demandOption: true, describe: 'What to do' })
    .positional('config', { type: 'string', demandOption: true, describe: 'YAML file' })
    .positional('overrides', {
      type: 'string',
      array: true,
      default: [] as string[],
      describe: 'key=value: replaces a key of the file',
    })
    .option('task', {
      type: 'string',
      demandOption: true,
      requiresArg: true,
      describe: 'What the user says, or a row of data as JSON',
    })
    .option('temperature', { type: 'number', requiresArg: true, default: 0, describe: '0: greedy' })
    .option('seed', { type: 'number', requiresArg: true, default: 0, describe: 'Of sampling' })
    .option('json', {
      type: 'boolean',
      default: false,
      describe: 'All of it as one JSON object, token ids too',
    });

export const agentTask =
  (a: Awaited<ReturnType<typeof withAgent>['argv']>, overrides: readonly string[]): (() => Promise<number>) =>
  async () => {
    const { agentTry } = require('./agent_try') as typeof import('./agent_try');
    const { config, task, temperature, seed, json } = a;
    return await agentTry({ config, overrides, task, temperature, seed, json });
  };
