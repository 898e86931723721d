// The command line of `troupe eval`.
import type { Argv } from 'yargs';

export const withEvaluate = (y: Argv) =>
  y
    .positional('file', {
      type: 'string',
      demandOption: true,
      describe: '.jsonl, .json or .parquet file with responses, such as troupe generate --output writes',
    })
    .positional('overrides', {
      type: 'string',
      array: true,
      default: [] as string[],
      describe: 'key=value of the configuration, e.g. reward.custom_reward_function.path=reward.js',
    })
    .option('config', {
      type: 'string',
      requiresArg: true,
      describe: 'YAML file of a run, whose section reward says how responses are scored',
    })
    .option('response-key', {
      type: 'string',
      default: 'responses',
      describe: 'Column of the responses: a text or a list of texts',
    })
    .option('output', {
      type: 'string',
      requiresArg: true,
      describe: 'New .jsonl file for the rows with their scores',
    })
    .option('score-key', { type: 'string', default: 'scores', describe: 'Column of the scores in that file' })
    .option('json', { type: 'boolean', default: false, describe: 'All metrics as one JSON object' });
