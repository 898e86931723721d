// Whether the workers of a role can share the experts of its model: before any of them is started, and in the plan.
import { ConfigError } from '../errors';
import type { NativeModelConfig } from '../native/bridge';
import type { RoleSettings } from './role_settings';

/** @throws ConfigError naming the key, with the numbers */
export function checkExperts(
  { keys, layout, model }: Pick<RoleSettings, 'keys' | 'layout' | 'model'>,
  { moe }: Pick<NativeModelConfig, 'moe'>,
): void {
  const { ep = 1 } = layout;
  const experts = moe?.numExperts ?? 0;
  if (ep === 1 || (experts > 0 && experts % ep === 0)) return;
  const key = `${keys.layout}.expert_model_parallel_size`;
  const problem =
    experts === 0
      ? `the model in ${model} has no experts that ${ep} workers could share: expected 1`
      : `${ep} workers have different experts: expected a divisor of the ${experts} experts of the model in ${model}`;
  throw new ConfigError(`${key}: ${problem}`, key);
}
