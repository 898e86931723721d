import type { RecordedCall } from './run_script';

/** The command of a script that starts a training run of verl. */
export interface Launch {
  /** Module or file of Python, such as verl.trainer.main_ppo. */
  program: string;
  /** What it would be given. */
  args: string[];
  /** Processes per machine and machines that torchrun or its like would start; null: it is not used. */
  processes: number | null;
  machines: number | null;
  /** Working directory of the command. */
  directory: string;
  environment: Readonly<Record<string, string>>;
}

/** key=value with a section, or Hydra's own options. */
const HYDRA =
  /^([+~]*[A-Za-z_]\w*(\.[\w-]+)+=|~?[A-Za-z_][\w/]*@?[\w.]*=|--config-(name|path|dir)\b|-c[npd]\b)/;
const TRAINER = /^(verl|recipe|verl_recipe)(\.\w+)+$|(^|[/.])main_\w+(\.py)?$|trainer\w*(\.py)?$/;

/** Options of Python and of its launchers that take the next word as their value. */
const WITH_VALUE = /^-(W|X|Q|-check-hash-based-pycs)$/;
const LAUNCHER_WITH_VALUE =
  /^--?(nproc[-_]per[-_]node|nnodes|node[-_]rank|master[-_]addr|master[-_]port|rdzv[-_]\w+|max[-_]restarts|start[-_]method|role|log[-_]dir|redirects|tee|local[-_]addr|num_processes|num_machines|machine_rank|main_process_ip|main_process_port|mixed_precision|config_file|monitor[-_]interval|t|r)$/;
const LAUNCHER_MODULE = /^torch\.distributed\.(run|launch)$/;

/** Every command among the calls that starts a Python program with arguments of Hydra, in order. */
export function launches(calls: readonly RecordedCall[]): Launch[] {
  return calls.map(launchOf).filter((launch) => launch !== null);
}

function launchOf({ program, args, directory, environment }: RecordedCall): Launch | null {
  const isPython = /^python[\d.]*$/.test(program);
  let rest = [...args];
  let launcher: string[] | null = /^(torchrun|accelerate|deepspeed)$/.test(program) ? [] : null;
  if (program === 'accelerate' && rest[0] === 'launch') rest.shift();
  if (!isPython && launcher === null) return null;
  let name: string | null = null;
  while (name === null) {
    const word = rest.shift();
    if (word === undefined) return null;
    if (word === '-m' || word === '--module') {
      name = rest.shift() ?? null;
      if (name === null) return null;
      if (launcher === null && LAUNCHER_MODULE.test(name)) {
        launcher = [];
        name = null;
      }
    } else if (!word.startsWith('-')) name = word;
    else if (launcher === null) {
      if (WITH_VALUE.test(word)) rest.shift();
    } else {
      launcher.push(word);
      if (LAUNCHER_WITH_VALUE.test(word)) launcher.push(rest.shift() ?? '');
    }
  }
  rest = rest.filter((word) => word !== '');
  if (!rest.some((word) => HYDRA.test(word)) && !TRAINER.test(name)) return null;
  return {
    program: name,
    args: rest,
    processes: launcher === null ? null : count(launcher, 'nproc[-_]per[-_]node|num_processes|num_gpus'),
    machines: launcher === null ? null : count(launcher, 'nnodes|num_machines'),
    directory,
    environment,
  };
}

/** The value of an option, which counts something; 1 when it is not given or no number. */
function count(options: readonly string[], names: string): number {
  for (const [at, word] of options.entries()) {
    const [, , equals, value] = new RegExp(`^--?(${names})(=(.*))?$`).exec(word) ?? [];
    if (equals === undefined && !new RegExp(`^--?(${names})$`).test(word)) continue;
    const number = Number((value ?? options[at + 1] ?? '').split(':').at(-1));
    if (Number.isInteger(number) && number >= 1) return number;
  }
  return 1;
}

/** The one that trains: the last trainer of verl with keys, or else the last program with keys, or else the last. */
export function mainLaunch(all: readonly Launch[]): Launch | null {
  const withKeys = all.filter(({ args }) => args.some((word) => HYDRA.test(word)));
  return withKeys.findLast(({ program }) => TRAINER.test(program)) ?? withKeys.at(-1) ?? all.at(-1) ?? null;
}
