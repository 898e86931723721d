import { requireNamed } from '../../base/check_options';
import { unknownName } from '../../base/nearest_name';
import { TroupeError } from '../../errors';
import type { NumberArray } from '../ragged';

/**
 * The losses of the core (native/losses/policy_modes.h) by name, and whether the loss of a sequence is a multiple of its
 * advantages, whatever the other sequences are: then advantages of zero have no gradient.
 */
const CORE = {
  vanilla: { proportional: true },
  gspo: { proportional: true },
  cispo: { proportional: true },
  gpg: { proportional: true },
  sapo: { proportional: true },
  dppo_tv: { proportional: true },
  dppo_kl: { proportional: true },
  geo_mean: { proportional: true },
  kl_cov: { proportional: false },
  clip_cov: { proportional: false },
  dro: { proportional: false },
  reinforce: { proportional: true },
} as const;

const CORE_POLICY_LOSSES = Object.keys(CORE) as (keyof typeof CORE)[];

/** The losses of the core that are multiples of a sequence's advantages. */
export const PROPORTIONAL_LOSSES: readonly string[] = CORE_POLICY_LOSSES.filter(
  (name) => CORE[name].proportional,
);

/** A core loss chosen by `lossType`, after a rollout correction against the current policy. */
export const BYPASS_MODE = 'bypass_mode';

/** The settings of the update, as far as a loss may want them. */
export interface PolicyLossSettings {
  readonly clipRatioLow: number;
  readonly clipRatioHigh: number;
  readonly clipRatioC: number;
  readonly aggregation: string;
  /** Divisor of seq-mean-token-sum-norm; 0 with other aggregations. */
  readonly scaleFactor: number;
  /** The further options that were given: tauPos, klCovRatio, ... */
  readonly extra: Readonly<Record<string, number>>;
  /** The user's own options, `actor.policy_loss.kwargs`; {} when there are none. */
  readonly kwargs: Readonly<Record<string, unknown>>;
}

/**
 * One mini-batch as a policy loss sees it: b sequences, ragged. Response-token arrays have length ΣR and are cut by
 * `offsets` [b+1]. Never write to them.
 */
export interface PolicyLossFunctionInputs {
  offsets: NumberArray;
  /** 1 = token of the policy, 0 = tool, user or rejected token. */
  responseMask: NumberArray;
  /** Under the policy being updated, now. */
  logProbs: NumberArray;
  /** Of its distribution at each token. */
  entropy: NumberArray;
  oldLogProbs: NumberArray;
  advantages: NumberArray;
  refLogProbs?: NumberArray;
  /** Not applied by the core: multiply them in. */
  rolloutIsWeights?: NumberArray;
  rolloutLogProbs?: NumberArray;
  /** Σ responseMask and number of sequences of the whole mini-batch, over all ranks. */
  globalTokens: number;
  globalSequences: number;
  options: PolicyLossSettings;
}

/** Per response token, [ΣR]; entries outside the mask are not read. */
export interface PolicyLossFunctionResult {
  /** The loss of each token, before aggregation. */
  loss: NumberArray;
  /**
   * Derivative by each token's log-prob. Where the losses of a sequence depend on one log-prob together: of their sum.
   * Factors that the gradient shall not see (stop-gradient) are constants here.
   */
  gradLogProbs: NumberArray;
  /** The same by each token's entropy; left out or null: 0. */
  gradEntropy?: NumberArray | null;
  /** Logged as actor/{name}, or as they are when the name has a slash; averaged over mini-batches. */
  metrics?: Record<string, number>;
}

/**
 * A policy loss: a pure, synchronous function. The core aggregates its per-token losses as configured, adds the entropy
 * bonus and the KL loss, and back-propagates the given derivatives.
 */
export type PolicyLossFunction = (inputs: PolicyLossFunctionInputs) => PolicyLossFunctionResult;

const registered = new Map<string, PolicyLossFunction>();

/** Every usable name: of the core, bypass_mode, and the user's. */
export const policyLossNames = (): string[] => [...CORE_POLICY_LOSSES, BYPASS_MODE, ...registered.keys()];

/** The function registered as `name`, or null. */
export const registeredPolicyLoss = (name: string): PolicyLossFunction | null => registered.get(name) ?? null;

/**
 * Makes `name` usable as `actor.policy_loss.loss_mode` and as `loss.mode` of updatePolicy and policyLoss. Check its
 * derivatives with checkPolicyLoss first.
 * @throws TroupeError INVALID_ARGUMENT when another loss already has the name
 */
export function registerPolicyLoss(name: string, loss: PolicyLossFunction): void {
  requireNamed('policy loss', name, loss);
  const taken = policyLossNames().includes(name) && registered.get(name) !== loss;
  if (taken || name === 'linear') {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[policy loss] '${name}' is taken: choose another name than ${policyLossNames().join(', ')}, linear`,
    );
  }
  registered.set(name, loss);
}

/** What to say about a name that does not exist. */
export const unknownPolicyLoss = (name: string): string =>
  unknownName(policyLossNames(), name, 'registerPolicyLoss(name, fn)');
