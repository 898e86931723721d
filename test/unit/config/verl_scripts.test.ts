import { existsSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { launches, mainLaunch } from '../../../ts/config/verl/launch';
import { runScript, type ScriptRun } from '../../../ts/config/verl/run_script';

const directory = mkdtempSync(join(tmpdir(), 'troupe-scripts-'));
const write = (text: string): string => {
  const file = join(mkdtempSync(join(directory, 's-')), 'run.sh');
  writeFileSync(file, text);
  return file;
};
const run = (text: string, args: string[] = [], environment: Record<string, string> = {}): ScriptRun => {
  const result = runScript(write(text), {
    args,
    environment: { PATH: process.env['PATH'], HOME: '/home/nobody', ...environment },
    directory,
    timeout: 10,
  });
  if ('refused' in result) throw new Error(result.refused);
  return result;
};
const launched = (text: string, args: string[] = [], environment: Record<string, string> = {}) =>
  mainLaunch(launches(run(text, args, environment).calls));

const MAIN = 'python3 -m verl.trainer.main_ppo';

describe('a launch script passes what bash makes of it', () => {
  it.each([
    ['nested defaults', `A=\${A:-"\${B:-x}/y"}\n${MAIN} a.b=\${C:-"\${A}/z"}`, ['a.b=x/y/z']],
    ['an empty variable', `X=\${X:-}\n${MAIN} a.b=\${X:-8} a.c=\${X-7}`, ['a.b=8', 'a.c=']],
    ['nested substitutions', `D=$(basename "$(dirname "/a/b/c")")\n${MAIN} a.b=$D`, ['a.b=b']],
    ['words without quotes', `ARGS="a.b=1 a.c=2"\n${MAIN} $ARGS`, ['a.b=1', 'a.c=2']],
    ['a branch', `M=gpu\ncase $M in npu) N=1;; gpu) N=8;; esac\n${MAIN} a.b=$N`, ['a.b=8']],
    ['a condition', `if [ "$X" = y ]; then N=1; else N=2; fi\n${MAIN} a.b=$N`, ['a.b=2']],
    ['a program in a variable', `E="${MAIN}"\n$E a.b=1`, ['a.b=1']],
    [
      'a launcher in an array',
      `L=(uv run --frozen python3)\n"\${L[@]}" -m verl.trainer.main_ppo a.b=1`,
      ['a.b=1'],
    ],
    ['a shell within srun', `srun -N 1 bash -c "${MAIN} a.b=\\"[1, 2]\\""`, ['a.b=[1, 2]']],
    ['a job of ray', `ray job submit --working-dir . -- ${MAIN} a.b=1`, ['a.b=1']],
    [
      'output that goes to a file',
      `set -euo pipefail\nmkdir -p logs\n${MAIN} a.b=1 2>&1 | tee logs/x > y.txt`,
      ['a.b=1'],
    ],
    [
      'files that are not there',
      `set -e\nsource /opt/env.sh\ncd /no/where\nulimit -n 1\n${MAIN} a.b=1`,
      ['a.b=1'],
    ],
    [
      'a question to the device',
      `D=$(python3 -c 'import torch_npu' && echo npu || echo gpu)\n${MAIN} a.b=$D`,
      ['a.b=gpu'],
    ],
    ['a calculation in Python', `N=$(python3 -c 'print(6 * 7)')\n${MAIN} a.b=$N`, ['a.b=42']],
    ['a count of GPUs', `N=$(nvidia-smi -L | wc -l)\n${MAIN} a.b=$N`, ['a.b=8']],
  ])('%s', (_, script, args) => {
    expect(launched(script)).toMatchObject({ program: 'verl.trainer.main_ppo', args: args.filter(Boolean) });
  });

  it('programs that run at once do not take one another for too many', () => {
    const line = `${MAIN} a.b=1 | tee x | tee y | tee z`;
    const result = run(`for i in $(seq 40); do ${line} & ${line}; wait; done\n${MAIN} a.b=2`);
    expect(result.status).toBe(0);
    expect(launches(result.calls)).toHaveLength(81);
  });

  it('with its arguments and the environment', () => {
    const script = `set -u\nn=$1; shift\n${MAIN} a.b=$n a.c=$MODEL "$@"`;
    expect(launched(script, ['4', 'a.d=5'], { MODEL: '/m' })?.args).toEqual(['a.b=4', 'a.c=/m', 'a.d=5']);
  });

  it('of several the last counts', () => {
    const all = launches(run(`${MAIN} a.b=1\n${MAIN} a.b=2\npython3 -m verl.model_merger merge --x`).calls);
    expect(all).toHaveLength(3);
    expect(mainLaunch(all)?.args).toEqual(['a.b=2']);
  });

  it('knows a program by an option of Hydra', () => {
    for (const option of ['-cd', '-cn', '--config-dir'])
      expect(launched(`python3 run.py ${option} conf`)?.program).toBe('run.py');
  });

  it('says how many processes torchrun starts', () => {
    const script = 'torchrun --standalone --nnodes=2 --nproc_per_node=8 -m verl.trainer.sft_trainer a.b=1';
    expect(launched(script)).toMatchObject({
      program: 'verl.trainer.sft_trainer',
      processes: 8,
      machines: 2,
    });
    expect(launched(`torchrun --nproc-per-node 4 /x/sft_trainer.py a.b=1`)).toMatchObject({
      program: '/x/sft_trainer.py',
      processes: 4,
      machines: 1,
      args: ['a.b=1'],
    });
  });
});

describe('a script in the sandbox', () => {
  it('leaves nothing behind, and writes all the same', () => {
    const { output, status } = run(`echo x > made; cat made; echo y > /tmp/made; cat /tmp/made; rm -rf "$0"`);
    expect({ output, status }).toEqual({ output: 'x\ny\n', status: 0 });
    expect(existsSync(join(directory, 'made'))).toBe(false);
    expect(existsSync('/tmp/made')).toBe(false);
  });

  it('reaches no network, no device and no privilege', () => {
    const { output } = run(
      'cat /proc/net/dev | grep -c : ; ls /dev | tr "\\n" " "; grep CapEff /proc/self/status; echo x > /etc/x',
    );
    expect(output).toMatch(/^1\nfd full null random stderr stdin stdout urandom zero CapEff:\s+0+\n/);
    expect(output).toMatch(/\/etc\/x: (Read-only file system|Permission denied)/);
  });

  it('is ended when it waits, or calls without end', () => {
    const waiting = runScript(write('while :; do :; done'), {
      args: [],
      environment: { PATH: process.env['PATH'] },
      directory,
      timeout: 1,
    });
    expect(waiting).toMatchObject({ calls: [], status: 124 });
    const { calls, status } = run('until false; do ray status; done');
    expect(status).not.toBe(0);
    expect(calls.length).toBeLessThan(500);
  });

  it('says what it lacked', () => {
    expect(run('set -u\necho $MODEL_PATH')).toMatchObject({
      calls: [],
      status: 1,
      output: expect.stringMatching(/MODEL_PATH: unbound variable/),
    });
  });
});
