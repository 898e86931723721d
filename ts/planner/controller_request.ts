// What a configuration asks of the trainer's process in a step.
import { estimatesReturns } from '../algorithms/advantages';
import { registeredPolicyLoss } from '../algorithms/policy_losses/registry';
import { resolveCorrection } from '../algorithms/rollout_correction/options';
import type { ResolvedConfig } from '../config/config';
import { agentOf } from '../config/derived/agents';
import { asynchrony } from '../config/derived/asynchrony';
import { correctionOptions } from '../config/derived/correction';
import { needsCritic, needsReference } from '../config/derived/roles';
import { routerReplay } from '../config/derived/router_replay';
import { sequenceBounds } from '../config/derived/sequence_bounds';
import { routingBytes } from '../engine/routed_experts';
import { teacherTokens } from '../roles/settings';
import type { BatchShape, ControllerSpec } from './controller_memory';
import type { PlanSpec, RoleSpec } from './plan';
import { pixelBytes } from './worker_batch';

/** Of a step with sequences as long as they may become. `policy`: the pool of the actor. */
export function controllerSpec(config: ResolvedConfig, policy: PlanSpec): ControllerSpec {
  const { data, algorithm, actor_rollout_ref: roles } = config;
  const { importance, rejections } = resolveCorrection(correctionOptions(config));
  const { n, val_kwargs: validation } = roles.rollout;
  const of = (prompts: number, samples: number): BatchShape => shapeOf(config, prompts, samples);
  const actor = policy.roles.find(({ name }) => name === 'actor') as RoleSpec;
  // A reference without adapters is the actor.
  const inParts = (name: RoleSpec['name']): boolean =>
    policy.worldSize > sharing(policy.roles.find((role) => role.name === name) ?? actor);
  const ahead = asynchrony(config);
  const replay = routerReplay(config);
  const { bypass_mode: bypass } = algorithm.rollout_correction;
  return {
    imageBytes: pixelBytes(actor, sequenceBounds(config).prompt),
    generated: of(data.gen_batch_size, n),
    trained: of(data.train_batch_size, n),
    filtered: algorithm.filter_groups.enable,
    ahead: ahead === null ? null : of(ahead.ahead, n),
    inParts: {
      actor: inParts('actor'),
      reference: inParts('reference'),
      teacher: inParts('teacher'),
      critic: inParts('critic'),
    },
    greedy: algorithm.adv_estimator === 'remax',
    bypass,
    sumPiSquared: roles.actor.calculate_sum_pi_squared,
    routing:
      replay === 'disabled'
        ? null
        : { bytes: routingBytes(actor.model), by: replay === 'R3' ? 'rollout' : 'actor' },
    reference: needsReference(config),
    teacher: config.distillation.enabled ? teacherTokens(config) : null,
    critic: needsCritic(config),
    klInReward: algorithm.use_kl_in_reward,
    weights: importance && { normalized: importance.batchNormalize },
    rejects: rejections.length > 0,
    ownReturns: estimatesReturns(algorithm.adv_estimator),
    resampled: algorithm.use_pf_ppo,
    stepwise: preparesLoss(config) ? roles.actor.ppo_mini_batch_size * n : null,
    validation:
      data.val_files === null || data.val_batch_size === null ? null : of(data.val_batch_size, validation.n),
  };
}

/** Whether TypeScript prepares the loss of each mini-batch, which is sent by itself then. */
export const preparesLoss = ({ algorithm, actor_rollout_ref: { actor } }: ResolvedConfig): boolean =>
  algorithm.rollout_correction.bypass_mode || registeredPolicyLoss(actor.policy_loss.loss_mode) !== null;

/** Ranks that are called with the same sequences. */
const sharing = ({ ulysses, layout: { parallel, pipeline } }: RoleSpec): number =>
  ulysses * parallel.cp * parallel.tp * pipeline.stages;

/** What of a run is not counted, for its user. */
export function controllerNotes(config: ResolvedConfig): string[] {
  const { data } = config;
  return [
    ...(agentOf(config) === null ? [] : ['conversations of agents are not counted']),
    ...(data.val_files !== null && data.val_batch_size === null
      ? ['validation is not counted: data.val_batch_size is not given, so that it is as large as its data']
      : []),
  ];
}

function shapeOf(config: ResolvedConfig, prompts: number, samples: number): BatchShape {
  const { prompt, response, sequence } = sequenceBounds(config);
  const sequences = prompts * samples;
  return {
    prompts,
    sequences,
    promptTokens: prompts * prompt,
    tokens: sequences * sequence,
    responseTokens: sequences * response,
  };
}
