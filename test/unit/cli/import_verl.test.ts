import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { importVerlCommand } from '../../../ts/cli/import_verl';
import { loadConfig } from '../../../ts/config/config';
import { directory, fresh, KEYS, write } from '../config/verl_command';

describe('troupe import-verl', () => {
  const command = (keys: string, allowMissing: boolean): { code: number; said: string; out: string } => {
    const out = join(directory, `out${fresh()}.yaml`);
    let said = '';
    const script = write(`python3 -m verl.trainer.main_ppo ${KEYS} algorithm.adv_estimator=grpo ${keys}`);
    const say = (text: string): void => {
      said += text;
    };
    const code = importVerlCommand(script, [], { out, allowMissing, version: 'main', write: say });
    return { code, said, out };
  };

  it('writes what means the same', () => {
    const { code, said, out } = command('trainer.n_gpus_per_node=2', false);
    expect(code).toBe(0);
    expect(said).toMatch(
      /was run in a sandbox, where it would have started: verl\.trainer\.main_ppo \(5 arguments\)/,
    );
    expect(loadConfig(out).trainer).toMatchObject({ device: 'cuda', n_gpus_per_node: 2 });
  });

  it('takes over a run on several machines', () => {
    const { code, out } = command('trainer.nnodes=2', false);
    expect(code).toBe(0);
    expect(loadConfig(out).trainer).toMatchObject({ nnodes: 2, launcher: { type: null } });
  });

  it.each(['no.such=1', 'trainer.logger=swanlab', 'actor_rollout_ref.model.path=zai-org/GLM-5'])(
    '%s: exit code 2 and nothing written, unless --allow-missing',
    (keys) => {
      const refused = command(keys, false);
      expect(refused.code).toBe(2);
      expect(refused.said).toMatch(/Nothing was written: 1 thing that changes the run/);
      expect(existsSync(refused.out)).toBe(false);
      const allowed = command(keys, true);
      expect(allowed.code).toBe(0);
      expect(readFileSync(allowed.out, 'utf8')).toContain('algorithm:');
    },
  );
});
