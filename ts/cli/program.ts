import yargs, { type Argv } from 'yargs';
import { parseByteSize } from '../base/byte_size';
import { RUN_LIMITS } from '../base/limits';
import { VERL_VERSIONS } from '../config/verl/versions';
import type { ExportOptions } from '../export/export_checkpoint';
import { packageVersion } from '../install/package_root';
import { agentTask, withAgent } from './agent_options';
import { asTyped } from './as_typed';
import { checkEmpty, checkNegated, checkNumbers, checkRepeated } from './check_options';
import { doctorTask, withDoctor } from './doctor_command';
import { withEvaluate } from './evaluate_options';
import { generateOptions, withSampling } from './generate_options';
import { hostAgentTask, withHostAgent } from './host_agent';
import type { PlanOptions } from './plan';
import { UsageError } from './report';
import { retrieverTask, withRetriever } from './retriever';
import { serveOptions, withServe } from './serve_options';
import { submitTask, withSubmit } from './submit';
import { uiTask, withUi } from './ui';

/** What a command is made of is loaded when it is asked for: together they are most of Troupe. */
const load = {
  bench: () => require('./bench') as typeof import('./bench'),
  runs: () => require('./run_commands') as typeof import('./run_commands'),
  validate: () => require('./validate') as typeof import('./validate'),
  plan: () => require('./plan') as typeof import('./plan'),
  importing: () => require('./import_verl') as typeof import('./import_verl'),
  generate: () => require('./generate') as typeof import('./generate'),
  evaluating: () => require('./evaluate') as typeof import('./evaluate'),
  serve: () => require('./serve') as typeof import('./serve'),
  exporting: () => require('./export') as typeof import('./export'),
  setup: () => require('../install/setup') as typeof import('../install/setup'),
};

/** What a command lacks, where it is not a configuration file. */
const POSITIONALS: Readonly<Record<string, string>> = {
  agent: 'try and a configuration file',
  eval: 'a .jsonl, .json or .parquet file with responses',
  export: 'a checkpoint and a new directory',
  'import-verl': 'a YAML file or a launch script of verl',
  retriever: 'a .jsonl, .json or .parquet file with passages',
  serve: 'the directory of a model',
};

/** What a command line asks for; resolves to the exit code. */
type Task = () => Promise<number>;

/**
 * Runs one command line (without `node` and the script).
 * Resolves to the exit code; rejects with what went wrong, see {@link exitCodeOf}.
 */
export async function runCli(argv: readonly string[]): Promise<number> {
  // Its arguments are those of another program, --help included.
  if (argv[0] === 'bench') return await load.bench().bench(argv.slice(1));
  const task = await parse(argv);
  return task === null ? 0 : await task();
}

/** @returns null when yargs has answered by itself: --help, --version */
async function parse(argv: readonly string[]): Promise<Task | null> {
  let task: Task | null = null;
  const choose = (chosen: Task): void => {
    task = chosen;
  };
  const cli = yargs([...argv]);
  await cli
    .scriptName('troupe')
    .locale('en')
    // Keys have dots and values look like numbers: neither is for yargs to read.
    .parserConfiguration({ 'dot-notation': false, 'parse-positional-numbers': false })
    .usage('Reinforcement-learning post-training for language models\n\n$0 <command>')
    .command('train <config> [overrides..]', 'Train by reinforcement learning', withConfig, (a) =>
      choose(() => load.runs().train(a.config, overridesOf(a))),
    )
    .command('sft <config> [overrides..]', 'Fine-tune a model on examples', withConfig, (a) =>
      choose(() => load.runs().sft(a.config, overridesOf(a))),
    )
    .command(
      'validate <config> [overrides..]',
      'Check a configuration and print it resolved, with every batch size in its unit',
      withConfig,
      (a) => choose(() => load.validate().validate(a.config, overridesOf(a))),
    )
    .command(
      'plan <config> [overrides..]',
      'Say how much memory every rank will take, before any weight is loaded',
      withPlan,
      (a) => {
        const options = planOptions(a);
        choose(() => load.plan().plan(a.config, overridesOf(a), options));
      },
    )
    .command(
      'import-verl <file> [overrides..]',
      'Translate a configuration of verl: a YAML file, or a script with its launch command',
      withImport,
      (a) =>
        choose(async () =>
          load.importing().importVerlCommand(a.file, overridesOf(a), {
            out: a.output ?? null,
            allowMissing: a.allowMissing,
            version: a.verl ?? null,
          }),
        ),
    )
    .command('generate', 'Answer prompts with a model', withSampling, (a) => {
      const options = generateOptions(a);
      choose(() => load.generate().generate(options));
    })
    .command('eval <file> [overrides..]', 'Score the responses of a file', withEvaluate, (a) =>
      choose(() =>
        load.evaluating().evaluate({
          file: a.file,
          config: a.config ?? null,
          overrides: overridesOf(a),
          responseKey: a.responseKey,
          scoreKey: a.scoreKey,
          output: a.output ?? null,
          json: a.json,
        }),
      ),
    )
    .command(
      'serve <model>',
      'Answer requests of the APIs of OpenAI and Anthropic with a model',
      withServe,
      (a) => {
        const options = serveOptions(a);
        choose(() => load.serve().serve(options));
      },
    )
    .command(
      'export <checkpoint> <out>',
      'Write the weights of a checkpoint as a plain Hugging Face directory',
      withExport,
      (a) => {
        const options = exportOptions(a);
        choose(() => load.exporting().exportCommand(a.checkpoint, a.out, options));
      },
    )
    .command(
      'agent <action> <config> [overrides..]',
      'try: run the agent of a configuration on one task and print its turns',
      withAgent,
      (a) => choose(agentTask(a, overridesOf(a))),
    )
    .command(
      'retriever <corpus..>',
      'Serve a corpus to agents that search: BM25, with the protocol of Search-R1',
      withRetriever,
      (a) => choose(retrieverTask(a)),
    )
    .command('submit <config> [overrides..]', 'Hand a run to a scheduler', withSubmit, (a) =>
      choose(submitTask(a, overridesOf(a))),
    )
    .command(
      'host-agent',
      'Start the workers of a run on this host, for its controller elsewhere',
      withHostAgent,
      (a) => choose(hostAgentTask(a)),
    )
    .command('ui [directory]', 'Serve a page over runs, while they run and afterwards', withUi, (a) =>
      choose(uiTask(a)),
    )
    .command('bench', 'Measure the speed of this machine (troupe bench --help)', {}, () =>
      choose(() => load.bench().bench([])),
    )
    .command(
      'doctor [config] [overrides..]',
      'Show what this machine has and lacks; with a configuration, what the hosts of its run do',
      withDoctor,
      (a) => choose(doctorTask(a, overridesOf(a))),
    )
    .command('setup', 'Fetch LibTorch and build the native addon where they are missing', withSetup, (a) =>
      choose(async () =>
        load.setup().runSetup({
          version: a.libtorch ?? null,
          force: a.force,
          rebuild: a.rebuild,
          cuda: a.cuda ?? null,
        }),
      ),
    )
    .middleware((given) => {
      checkRepeated(argv, given, optionsOf(cli).array);
      checkNegated(argv, given, optionsOf(cli).boolean);
      checkNumbers(argv, given);
      checkEmpty(argv, given);
    }, true)
    .option('debug', { type: 'boolean', default: false, describe: 'Show the stack of an error' })
    .demandCommand(1, 'Expected a command')
    .strict()
    .strictCommands()
    .recommendCommands()
    .version(packageVersion())
    .help()
    .alias('help', 'h')
    .wrap(110)
    .exitProcess(false)
    .fail((message, error) => {
      const text = message ?? error.message;
      // Of positionals, which yargs only counts.
      const lacks = text.startsWith('Not enough non-option arguments');
      const expected = `Expected ${POSITIONALS[argv[0] as string] ?? 'a configuration file'}`;
      throw new UsageError(`${lacks ? expected : asTyped(text, argv)}; see troupe --help`);
    })
    .parseAsync();
  return task;
}

/** Options and positionals of the command that may have several values, and options without one. The types of yargs lack what every instance of it has. */
const optionsOf = (cli: Argv): { array: string[]; boolean: string[] } =>
  (cli as unknown as { getOptions(): { array: string[]; boolean: string[] } }).getOptions();

const withConfig = (y: Argv) =>
  y
    .positional('config', { type: 'string', demandOption: true, describe: 'YAML file' })
    .positional('overrides', {
      type: 'string',
      array: true,
      default: [] as string[],
      describe: 'key=value: replaces a key of the file, e.g. algorithm.adv_estimator=gae',
    });

const withPlan = (y: Argv) =>
  withConfig(y)
    .option('gpus', {
      type: 'number',
      requiresArg: true,
      describe:
        'Ranks in all, of which generation and a reward model take their numbers where they have pools of their own; default: as configured',
    })
    .option('gpu-memory', {
      type: 'string',
      requiresArg: true,
      describe: 'Memory of one, such as 80GiB: what does not fit is refused (exit code 2)',
    })
    .option('controller-memory', {
      type: 'string',
      requiresArg: true,
      describe:
        "Memory of the machine that the trainer's process runs on, such as 16GiB; default: of this one",
    })
    .option('simulate', {
      type: 'boolean',
      default: false,
      describe:
        'Print the shards and the collectives of one optimiser step instead, as the engine makes them',
    })
    .option('pipeline', {
      type: 'string',
      requiresArg: true,
      describe:
        'Draw the schedule of an update over so many stages instead: 4, or 4x2 for 2 ranges of layers on each',
    })
    .option('json', { type: 'boolean', default: false, describe: 'Numbers in bytes, as JSON' });

/** @throws UsageError naming the option that is out of range */
function planOptions(a: Awaited<ReturnType<typeof withPlan>['argv']>): PlanOptions {
  const { gpus, gpuMemory, simulate, json } = a;
  if (gpus !== undefined && !(Number.isInteger(gpus) && gpus >= 1 && gpus <= RUN_LIMITS.ranks))
    throw new UsageError(`plan: --gpus: expected an integer from 1 to ${RUN_LIMITS.ranks}, got ${gpus}`);
  const size = (option: string, text: string | undefined): number | null => {
    const bytes = text === undefined ? null : parseByteSize(text);
    if (text !== undefined && bytes === null)
      throw new UsageError(`plan: ${option}: expected a size such as 80GiB, got ${text}`);
    return bytes;
  };
  const memory = size('--gpu-memory', gpuMemory);
  const controllerMemory = size('--controller-memory', a.controllerMemory);
  const stages = a.pipeline === undefined ? null : /^([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?$/.exec(a.pipeline);
  if (a.pipeline !== undefined && stages === null)
    throw new UsageError(`plan: --pipeline: expected stages such as 4, or 4x2, got ${a.pipeline}`);
  const pipeline = stages && { stages: Number(stages[1]), chunks: Number(stages[2] ?? 1) };
  return { gpus: gpus ?? null, gpuMemory: memory, controllerMemory, simulate, pipeline, json };
}

const withImport = (y: Argv) =>
  y
    .positional('file', {
      type: 'string',
      demandOption: true,
      describe:
        '.yaml: a configuration; anything else: a shell script, which is run in a sandbox, or a list of key=value',
    })
    .positional('overrides', {
      type: 'string',
      array: true,
      default: [] as string[],
      describe:
        'key=value in the syntax of Hydra, on top of the file; with other words: arguments of the script',
    })
    .option('output', {
      alias: 'o',
      type: 'string',
      requiresArg: true,
      describe: 'New file for the YAML; without it: stdout, with the report as comments',
    })
    .option('allow-missing', {
      type: 'boolean',
      default: false,
      describe: 'Write the result though something that changes the run is missing (else exit code 2)',
    })
    .option('verl', {
      type: 'string',
      requiresArg: true,
      describe: `Whose defaults hold: ${VERL_VERSIONS.join(', ')}, or a directory with verl in it (a checkout, or where it is installed); default: the checkout around the file, or the newest`,
    });

/** Also those after a --, which yargs keeps apart. */
function overridesOf(args: { overrides: string[]; _: (string | number)[] }): string[] {
  return [...args.overrides, ...args._.slice(1).map(String)];
}

const withExport = (y: Argv) =>
  y
    .positional('checkpoint', {
      type: 'string',
      demandOption: true,
      describe: 'Directory of a run (its newest checkpoint), a global_step_N, a saved model or adapter',
    })
    .positional('out', { type: 'string', demandOption: true, describe: 'New directory' })
    .option('dtype', {
      choices: ['float32', 'bfloat16'] as const,
      describe: 'Default: as it is stored (checkpoints: float32; quantised: bfloat16)',
    })
    .option('role', {
      choices: ['actor', 'critic'] as const,
      describe: 'Which model of the checkpoint; default: actor',
    })
    .option('merge-lora', {
      type: 'boolean',
      default: false,
      describe: 'Write the whole model with the adapters merged in, not the adapter alone',
    })
    .option('base', {
      type: 'string',
      requiresArg: true,
      describe: 'Model that the adapters belong to; default: what adapter_config.json names',
    })
    .option('read-images', {
      type: 'boolean',
      describe:
        'With the tower for images of Qwen3.5 (--no-read-images: its language model alone); default: where preprocessor_config.json is beside it',
    })
    .option('max-shard-size', {
      type: 'string',
      requiresArg: true,
      default: '5GB',
      describe: 'Above it weights are spread over several files',
    });

/** @throws UsageError naming the option that is out of range */
function exportOptions(a: Awaited<ReturnType<typeof withExport>['argv']>): ExportOptions {
  const { dtype, role, mergeLora, base, readImages: readsImages, maxShardSize } = a;
  const maxShardBytes = parseByteSize(maxShardSize);
  if (maxShardBytes === null)
    throw new UsageError(`export: --max-shard-size: expected a size such as 5GB, got ${maxShardSize}`);
  if (base !== undefined && !mergeLora)
    throw new UsageError('export: --base is of use with --merge-lora only');
  return {
    mergeLora,
    maxShardBytes,
    ...(dtype === undefined ? {} : { dtype }),
    ...(role === undefined ? {} : { role }),
    ...(base === undefined ? {} : { base }),
    ...(readsImages === undefined ? {} : { readsImages }),
  };
}

const withSetup = (y: Argv) =>
  y
    .option('libtorch', { type: 'string', requiresArg: true, describe: 'Version of LibTorch to fetch' })
    .option('force', { type: 'boolean', default: false, describe: 'Fetch it again' })
    .option('rebuild', { type: 'boolean', default: false, describe: 'Build the addon from source' })
    .option('cuda', {
      type: 'boolean',
      describe: 'Build it with CUDA (--no-cuda: without); default: where LibTorch and nvcc have it',
    });
