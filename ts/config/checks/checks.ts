import {
  advantageEstimatorNames,
  estimatorNeeds,
  isRegisteredEstimator,
  unknownEstimator,
} from '../../algorithms/advantages';
import {
  policyLossNames,
  registeredPolicyLoss,
  unknownPolicyLoss,
} from '../../algorithms/policy_losses/registry';
import { RUN_LIMITS } from '../../base/limits';
import { nearestName } from '../../base/nearest_name';
import { ConfigError } from '../../errors';
import { rewardManagerNames, unknownRewardManager } from '../../reward/contract/manager_registry';
import { checkAsynchrony } from '../derived/asynchrony';
import { checkCorrection } from '../derived/correction';
import { checkMegatronLayouts, checkSftLayout } from '../derived/megatron_layout';
import { checkRewardPool, checkRolloutPool, policyRanks, rewardRanks } from '../derived/pools';
import { checkProfile, checkSftProfile } from '../derived/profile';
import { checkActivationOffload, checkSftActivationOffload } from '../derived/recomputation';
import { needsCritic, needsReference, needsRewardModel, usesLora } from '../derived/roles';
import { checkDecodingRanks } from '../derived/rollout_place';
import { checkRouterReplay } from '../derived/router_replay';
import { checkRouterZLoss } from '../derived/router_z_loss';
import { longestText, sequenceBounds } from '../derived/sequence_bounds';
import { teachersOf } from '../derived/teachers';
import { checkUlysses, checkUlyssesSize, contextOf, sharingRanks } from '../derived/ulysses';
import { missing } from '../schema/field';
import { LOGGER_NAMES, UNAVAILABLE_LOGGERS } from '../schema/logger_names';
import type { ResolvedConfig } from '../schema/ppo_schema';
import type { ResolvedSftConfig } from '../schema/sft_schema';
import { checkAgent } from './agent_checks';
import { reportAll } from './collect';
import { checkDataFiles, checkDatasetClass } from './data_checks';
import { checkDistillation } from './distillation_checks';
import { checkLauncher } from './launcher_checks';
import { checkLearner } from './learner_checks';
import { checkReward } from './reward_checks';
import { checkDrafts, checkRolloutServers } from './rollout_checks';

/** What both programs have in common. */
function runChecks({ trainer }: ResolvedConfig | ResolvedSftConfig): (() => void)[] {
  return [...trainer.logger.map((name) => () => checkLogger(name)), () => checkLauncher(trainer)];
}

function checkLogger(name: string): void {
  if (LOGGER_NAMES.includes(name)) return;
  const nearest = nearestName(LOGGER_NAMES, name);
  const hint = UNAVAILABLE_LOGGERS.includes(name)
    ? `${missing(`the logger ${name}`)}; metrics.jsonl in the run directory is always written`
    : nearest === null
      ? 'metrics.jsonl in the run directory is always written'
      : `did you mean ${nearest}?`;
  throw new ConfigError(
    `trainer.logger: expected some of ${LOGGER_NAMES.join(', ')}, got "${name}": ${hint}`,
    'trainer.logger',
  );
}

/**
 * What no single key can tell: values that contradict each other.
 * @throws ConfigError with a line for each
 */
export function checkConsistency(config: ResolvedConfig): void {
  const { data, actor_rollout_ref: roles, critic, algorithm, trainer } = config;
  const { actor, ref } = roles;
  const withCritic = needsCritic(config);
  reportAll([
    ...runChecks(config),
    () => checkEstimator(algorithm.adv_estimator, config),
    () => checkDynamicSampling(config),
    () => checkRewardManager(config.reward),
    () => checkSequences(config),
    () => checkDataFiles(data, data.custom_cls.path !== null),
    () => checkDatasetClass(config),
    () => checkDivides(config, 'actor_rollout_ref.actor.ppo_mini_batch_size', actor.ppo_mini_batch_size),
    () => checkRewardPool(config),
    () => checkRolloutPool(config),
    () => checkProfile(config),
    () => checkUlysses(config),
    () => checkMegatronLayouts(config),
    () => checkDecodingRanks(config),
    () =>
      checkFits(
        config,
        'actor_rollout_ref.actor.ppo_max_token_len_per_gpu',
        actor.ppo_max_token_len_per_gpu,
        sharingRanks(actor, actor.fsdp_config),
      ),
    () => checkActivationOffload(config),
    () =>
      checkLearner('actor_rollout_ref.actor', actor.optim, trainer.total_training_steps, {
        key: 'actor_rollout_ref.actor.fsdp_config',
        ...actor.fsdp_config,
        adapters: usesLora(roles.model),
      }),
    () => {
      const { model, optim } = critic;
      const masters = { key: 'critic.model.fsdp_config', ...model.fsdp_config, adapters: usesLora(model) };
      if (withCritic) checkLearner('critic', optim, trainer.total_training_steps, masters);
    },
    () => {
      if (withCritic) checkDivides(config, 'critic.ppo_mini_batch_size', critic.ppo_mini_batch_size);
    },
    () => {
      const ranks = sharingRanks(critic, critic.model.fsdp_config);
      if (withCritic)
        checkFits(config, 'critic.ppo_max_token_len_per_gpu', critic.ppo_max_token_len_per_gpu, ranks);
    },
    () => {
      const capacity = ref.log_prob_max_token_len_per_gpu;
      const role = { strategy: actor.strategy, megatron: ref.megatron };
      const ranks = ref.ulysses_sequence_parallel_size * contextOf(role);
      if (needsReference(config))
        checkFits(config, 'actor_rollout_ref.ref.log_prob_max_token_len_per_gpu', capacity, ranks);
    },
    () =>
      checkFsdpSize('actor_rollout_ref.actor.fsdp_config', actor.fsdp_config.fsdp_size, policyRanks(config)),
    () => {
      const { fsdp_size: size } = critic.model.fsdp_config;
      if (withCritic) checkFsdpSize('critic.model.fsdp_config', size, policyRanks(config));
    },
    () => {
      const { fsdp_size: size } = config.reward.reward_model.model.fsdp_config;
      if (needsRewardModel(config))
        checkFsdpSize('reward.reward_model.model.fsdp_config', size, rewardRanks(config));
    },
    () => checkReward(config),
    () => checkDistillation(config),
    ...teachersOf(config).map(({ section, keys }) => () => {
      checkFsdpSize(`${section}.fsdp_config`, keys.fsdp_config.fsdp_size, policyRanks(config));
    }),
    () => checkAgent(config),
    () => checkRouterReplay(config),
    () => checkRouterZLoss('actor_rollout_ref.actor', actor),
    () => checkRouterZLoss('critic', critic),
    () => checkSampling(roles.rollout),
    () => checkDrafts(config),
    () => checkRolloutServers(config),
    () => checkAsynchrony(config),
    () => checkResuming(trainer),
    () => {
      if (trainer.val_only && data.val_files === null)
        throw new ConfigError('trainer.val_only: expected data.val_files to be given', 'data.val_files');
    },
    () => checkPolicyLossName(actor.policy_loss.loss_mode),
    () => checkCorrection(config),
    () => {
      if (actor.policy_loss.loss_mode === 'dro' && actor.policy_loss.dro_beta === null) {
        throw new ConfigError(
          'actor_rollout_ref.actor.policy_loss.dro_beta: expected a number > 0 because loss_mode is dro',
          'actor_rollout_ref.actor.policy_loss.dro_beta',
        );
      }
    },
  ]);
}

function checkSampling({ do_sample, temperature }: { do_sample: boolean; temperature: number }): void {
  if (do_sample && temperature !== 0) return;
  const key = `actor_rollout_ref.rollout.${do_sample ? 'temperature' : 'do_sample'}`;
  throw new ConfigError(
    `${key}: training needs sampled responses (do_sample=true and a temperature > 0: log-probs divide by it); ` +
      'for greedy validation set actor_rollout_ref.rollout.val_kwargs',
    key,
  );
}

function checkResuming({ resume_mode, resume_from_path }: ResolvedConfig['trainer']): void {
  if (resume_mode === 'resume_path' && resume_from_path === null) {
    throw new ConfigError(
      'trainer.resume_from_path: expected a checkpoint directory (.../global_step_N) because trainer.resume_mode is resume_path',
      'trainer.resume_from_path',
    );
  }
  if (resume_mode !== 'resume_path' && resume_from_path !== null) {
    throw new ConfigError(
      `trainer.resume_from_path: is given, but trainer.resume_mode is ${resume_mode}: set it to resume_path`,
      'trainer.resume_from_path',
    );
  }
}

/** The same of `troupe sft`. */
export function checkSft(config: ResolvedSftConfig): void {
  const { trainer, model, ulysses_sequence_parallel_size: ulysses } = config;
  const ranks = policyRanks({ trainer });
  reportAll([
    ...runChecks(config),
    () => checkDataFiles(config.data, false),
    () => checkUlyssesSize('', ulysses, ranks),
    () => checkSftLayout(config),
    () => checkSftActivationOffload(config),
    () =>
      checkLearner('', config.optim, trainer.total_training_steps, {
        key: 'model.fsdp_config',
        dtypeKey: 'model.dtype',
        dtype: model.dtype,
        model_dtype: model.fsdp_config.model_dtype,
        adapters: usesLora(model),
      }),
    () => checkFsdpSize('model.fsdp_config', model.fsdp_config.fsdp_size, ranks),
    () => checkSftProfile(config, ranks),
  ]);
}

/** Prompts and their responses are each within bounds; together they may be more than any machine holds. */
function checkSequences({ data, actor_rollout_ref: { rollout } }: ResolvedConfig): void {
  const most = RUN_LIMITS.sequences;
  for (const key of ['train_batch_size', 'gen_batch_size'] as const) {
    if (data[key] * rollout.n <= most) continue;
    throw new ConfigError(
      `data.${key}: expected at most ${most} sequences in a batch, got ${data[key]} prompts x ` +
        `actor_rollout_ref.rollout.n ${rollout.n}`,
      `data.${key}`,
    );
  }
}

/** Names that `registerPolicyLoss` added before the configuration was loaded count, too. */
function checkPolicyLossName(name: string): void {
  if (policyLossNames().includes(name)) return;
  const path = 'actor_rollout_ref.actor.policy_loss.loss_mode';
  throw new ConfigError(`${path}: ${unknownPolicyLoss(name)}`, path);
}

/** Names that `registerRewardManager` added before the configuration was loaded count, too. */
function checkRewardManager({ reward_manager }: ResolvedConfig['reward']): void {
  const { source, name, module } = reward_manager;
  const path = 'reward.reward_manager';
  if (source === 'register' && !rewardManagerNames().includes(name))
    throw new ConfigError(`${path}.name: ${unknownRewardManager(name)}`, `${path}.name`);
  if (source === 'importlib' && module.path === null) {
    const key = `${path}.module.path`;
    throw new ConfigError(`${key}: expected a file because source is importlib`, key);
  }
}

/** Options of the user's functions, which nothing else reads. */
function checkKwargs({ algorithm, actor_rollout_ref: { actor } }: ResolvedConfig): void {
  const refuse = (path: string, register: string, key: string, name: string): never => {
    throw new ConfigError(
      `${path}: only functions of ${register} read it, and ${key} is ${name}, whose options have keys of their own`,
      path,
    );
  };
  const { policy_loss: loss } = actor;
  const given = (kwargs: Readonly<Record<string, unknown>>): boolean => Object.keys(kwargs).length > 0;
  if (given(algorithm.estimator_kwargs) && !isRegisteredEstimator(algorithm.adv_estimator))
    refuse(
      'algorithm.estimator_kwargs',
      'registerAdvantageEstimator',
      'algorithm.adv_estimator',
      algorithm.adv_estimator,
    );
  const path = 'actor_rollout_ref.actor.policy_loss';
  if (given(loss.kwargs) && registeredPolicyLoss(loss.loss_mode) === null)
    refuse(`${path}.kwargs`, 'registerPolicyLoss', `${path}.loss_mode`, loss.loss_mode);
}

/** Names that `registerAdvantageEstimator` added before the configuration was loaded count, too. */
function checkEstimator(name: string, config: ResolvedConfig): void {
  const path = 'algorithm.adv_estimator';
  if (!advantageEstimatorNames().includes(name))
    throw new ConfigError(`${path}: ${unknownEstimator(name)}`, path);
  if (name === 'gdpo') checkGdpo(config);
  if (config.algorithm.use_pf_ppo && name !== 'gae') {
    const key = 'algorithm.use_pf_ppo';
    throw new ConfigError(
      `${key}: PF-PPO resamples the batch of adv_estimator gae, but it is ${name}: set it to false`,
      key,
    );
  }
  if ((name === 'gae' || estimatorNeeds(name, 'values')) && config.critic.enable === false) {
    throw new ConfigError(
      `critic.enable: algorithm.adv_estimator ${name} needs a critic, but it is false`,
      'critic.enable',
    );
  }
  const { n } = config.actor_rollout_ref.rollout;
  checkKwargs(config);
  const squares = name.endsWith('optimal_token_baseline') || estimatorNeeds(name, 'sumPiSquared');
  if (squares && !config.actor_rollout_ref.actor.calculate_sum_pi_squared) {
    const key = 'actor_rollout_ref.actor.calculate_sum_pi_squared';
    throw new ConfigError(`${key}: algorithm.adv_estimator ${name} needs it: set it to true`, key);
  }
  if (name === 'grpo_passk' && n < 2) {
    const key = 'actor_rollout_ref.rollout.n';
    throw new ConfigError(
      `${key}: grpo_passk compares responses to one prompt: expected at least 2, got ${n}`,
      key,
    );
  }
}

function checkGdpo({ algorithm }: ResolvedConfig): void {
  const { gdpo_reward_keys: keys, gdpo_reward_weights: weights } = algorithm;
  if (keys === null || keys.length === 0) {
    const key = 'algorithm.gdpo_reward_keys';
    throw new ConfigError(
      `${key}: adv_estimator gdpo expects the names of the rewards that the reward function returns, such as [acc, format]`,
      key,
    );
  }
  if (weights !== null && weights.length !== keys.length) {
    const key = 'algorithm.gdpo_reward_weights';
    throw new ConfigError(
      `${key}: expected one weight for each of the ${keys.length} gdpo_reward_keys, got ${weights.length}`,
      key,
    );
  }
  if (algorithm.use_kl_in_reward) {
    const key = 'algorithm.use_kl_in_reward';
    throw new ConfigError(
      `${key}: adv_estimator gdpo looks at the named rewards only, so that a KL in the reward would be lost: ` +
        'use actor_rollout_ref.actor.use_kl_loss',
      key,
    );
  }
}

function checkDynamicSampling({ algorithm, data }: ResolvedConfig): void {
  const { enable, metric } = algorithm.filter_groups;
  if (!enable) {
    if (data.gen_batch_size === data.train_batch_size) return;
    throw new ConfigError(
      `data.gen_batch_size: ${data.gen_batch_size} prompts differ from data.train_batch_size ${data.train_batch_size}, which needs ` +
        'dynamic sampling: set algorithm.filter_groups.enable=true',
      'data.gen_batch_size',
    );
  }
  if (metric === null) {
    const key = 'algorithm.filter_groups.metric';
    throw new ConfigError(
      `${key}: expected acc, score, seq_reward, seq_final_reward or another number that the reward function returns because filter_groups.enable is true`,
      key,
    );
  }
  if (metric === 'seq_final_reward' && algorithm.use_kl_in_reward) {
    const key = 'algorithm.filter_groups.metric';
    throw new ConfigError(
      `${key}: with use_kl_in_reward the final rewards of any two responses differ, so that no prompt would be left out: ` +
        'use seq_reward',
      key,
    );
  }
}

function checkDivides({ data }: ResolvedConfig, path: string, size: number): void {
  const batch = data.train_batch_size;
  if (size <= batch && batch % size === 0) return;
  const how = size > batch ? 'are more than' : 'do not divide';
  throw new ConfigError(
    `${path}: ${size} prompts per mini-batch ${how} data.train_batch_size ${batch} prompts: choose one of ${divisors(batch)}`,
    path,
  );
}

/** `ranks`: that share a micro-batch. */
function checkFits(config: ResolvedConfig, path: string, perRank: number, ranks: number): void {
  const capacity = perRank * ranks;
  if (capacity >= sequenceBounds(config).sequence) return;
  const shared = ranks === 1 ? `${capacity}` : `${perRank} x ${ranks} ranks = ${capacity}`;
  throw new ConfigError(
    `${path}: ${shared} tokens per micro-batch cannot hold one sequence of ${longestText(config)} tokens`,
    path,
  );
}

function divisors(n: number): string {
  const all = Array.from({ length: n }, (_, i) => i + 1).filter((d) => n % d === 0);
  return all.length > 12 ? `${all.slice(0, 6).join(', ')}, ..., ${all.slice(-5).join(', ')}` : all.join(', ');
}

function checkFsdpSize(section: string, size: number, ranks: number): void {
  if (size === -1 || size >= ranks || ranks % size === 0) return;
  throw new ConfigError(
    `${section}.fsdp_size: expected -1 or a divisor of the number of workers (${ranks}), got ${size}`,
    `${section}.fsdp_size`,
  );
}
