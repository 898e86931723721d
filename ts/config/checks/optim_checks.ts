import { counted } from '../../base/text';
import { ConfigError } from '../../errors';
import { needsCritic } from '../derived/roles';
import type { ConfigNote } from '../reading/resolve';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { scheduleKeys } from '../schema/schedule_keys';
import type { ResolvedSftConfig } from '../schema/sft_schema';

type Optim = ResolvedConfig['critic']['optim'];

/**
 * A learning rate is said once, and is no more than the peak; WSD has its decay, within the schedule where its end is known.
 * `section`: where `optim` stands; `runSteps`: of the run, null where they follow from the data.
 */
export function checkOptim(section: string, optim: Optim, runSteps: number | null): void {
  checkRate(section, optim, 'min_lr', 'min_lr_ratio');
  checkRate(section, optim, 'lr_warmup_init', 'init_lr_ratio');
  const { lr_scheduler_type: type, lr_wsd_decay_steps: decay } = optim;
  const key = `${section}.lr_wsd_decay_steps`;
  if (type === 'WSD' && decay === null)
    throw new ConfigError(
      `${key}: expected the number of last steps in which the learning rate falls, because lr_scheduler_type is WSD`,
      key,
    );
  if (optim.total_training_steps > 0) checkDecay(section, optim, optim.total_training_steps);
  else if (runSteps !== null) checkDecay(section, optim, runSteps);
}

function checkRate(
  section: string,
  optim: Optim,
  rate: 'min_lr' | 'lr_warmup_init',
  share: 'min_lr_ratio' | 'init_lr_ratio',
): void {
  if (optim[rate] === 0) return;
  const key = `${section}.${rate}`;
  if (optim[share] > 0)
    throw new ConfigError(
      `${key}: ${section}.${share} ${optim[share]} says the same as a share of lr: leave one of them out`,
      key,
    );
  if (optim[rate] > optim.lr)
    throw new ConfigError(`${key}: expected at most ${section}.lr (${optim.lr}), got ${optim[rate]}`, key);
}

/** Of a schedule that ends after `total` steps. */
export function warmupSteps(
  optim: Pick<Optim, 'lr_warmup_steps' | 'lr_warmup_steps_ratio'>,
  total: number,
): number {
  const { lr_warmup_steps: steps, lr_warmup_steps_ratio: share } = optim;
  return steps > 0 ? steps : Math.floor(share * total);
}

/** What falls at the end lies between the warm-up and the end. @throws ConfigError */
export function checkDecay(section: string, optim: Optim, total: number): void {
  const { lr_scheduler_type: type, lr_wsd_decay_steps: decay } = optim;
  const warmup = warmupSteps(optim, total);
  if (type !== 'WSD' || decay === null || decay <= total - warmup) return;
  const key = `${section}.lr_wsd_decay_steps`;
  const after = warmup > 0 ? `, of which ${warmup} are warm-up` : '';
  throw new ConfigError(
    `${key}: expected at most ${Math.max(0, total - warmup)}, since the schedule has ${counted(total, 'step')}${after}, got ${decay}`,
    key,
  );
}

const KEYS = scheduleKeys('constant', 0);

/** Keys that the schedule does not read, where they say anything but their defaults. */
export function optimNotes(config: ResolvedConfig | ResolvedSftConfig): ConfigNote[] {
  if (!('actor_rollout_ref' in config)) return unread('optim', config.optim);
  return [
    ...unread('actor_rollout_ref.actor.optim', config.actor_rollout_ref.actor.optim),
    ...(needsCritic(config) ? unread('critic.optim', config.critic.optim) : []),
  ];
}

function unread(section: string, optim: Optim): ConfigNote[] {
  const { lr_scheduler_type: type, lr_warmup_steps: steps, lr_warmup_steps_ratio: share } = optim;
  const unlike = (reader: Optim['lr_scheduler_type']): string | null =>
    type === reader
      ? null
      : `has no effect: it is of the schedule ${reader}, and lr_scheduler_type is ${type}`;
  const endless =
    type === 'constant' ? 'has no effect: with lr_scheduler_type constant the learning rate stays' : null;
  const cold = steps > 0 || share > 0 ? null : 'has no effect: there is no warm-up';
  const reasons = {
    min_lr: endless,
    min_lr_ratio: endless,
    init_lr_ratio: cold,
    lr_warmup_init: cold,
    zero_indexed_step: type === 'constant' ? cold : null,
    num_cycles: unlike('cosine'),
    lr_wsd_decay_steps: unlike('WSD'),
    lr_wsd_decay_style: unlike('WSD'),
  };
  return Object.entries(reasons).flatMap(([key, reason]) =>
    reason === null || optim[key as keyof typeof reasons] === KEYS[key as keyof typeof reasons].value
      ? []
      : [{ path: `${section}.${key}`, reason }],
  );
}
