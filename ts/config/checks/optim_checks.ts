import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';

/** The end of a cosine is said once, and is no more than its beginning. `section`: where `optim` stands. */
export function checkOptim(
  section: string,
  optim: Pick<ResolvedConfig['critic']['optim'], 'lr' | 'min_lr' | 'min_lr_ratio'>,
): void {
  const { lr, min_lr: least, min_lr_ratio: ratio } = optim;
  if (least === 0) return;
  const key = `${section}.min_lr`;
  if (ratio > 0)
    throw new ConfigError(
      `${key}: ${section}.min_lr_ratio ${ratio} says the same as a share of lr: leave one of them out`,
      key,
    );
  if (least > lr) throw new ConfigError(`${key}: expected at most ${section}.lr (${lr}), got ${least}`, key);
}
