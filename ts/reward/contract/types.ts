/** What a reward function sees of one response. */
export interface RewardSample {
  /** The prompt as the model read it, decoded. */
  prompt: string;
  /** The response, decoded without special tokens. */
  response: string;
  /** Token ids of the response, tool and end tokens included. */
  responseTokens: Int32Array;
  /** `reward_model.ground_truth` of the data row. */
  groundTruth: unknown;
  /** `data_source` of the data row. */
  dataSource: string;
  /** `extra_info` of the data row; {} when it has none. */
  extraInfo: Record<string, unknown>;
  /** Messages of the conversation after the system's, as verl counts: 2 where a prompt has one response. */
  numTurns?: number;
  /** Of an agent: what tools gave for its calls (ToolResult), in their order; 0 for a call that failed. */
  toolRewards?: readonly number[];
  /** With `reward.reward_model.enable`: what the reward model gave the response. */
  rewardModelScore?: number;
}

/** `reward.custom_reward_function.reward_kwargs`; {} when there are none. */
export type RewardKwargs = Readonly<Record<string, unknown>>;

/** A score, or an object with `score` and anything else worth a metric (numbers, booleans) or a dump (any JSON value). */
export type RewardOutcome = number | boolean | ({ score: number } & Record<string, unknown>);

/** Scores one response; may be async. Called once per response, concurrently when async, always with both arguments. */
export type RewardFunction = (
  sample: RewardSample,
  kwargs?: RewardKwargs,
) => RewardOutcome | Promise<RewardOutcome>;

/** Scores all responses of a batch at once, in their order; may be async. For the manager `batch`. */
export type BatchRewardFunction = (
  samples: readonly RewardSample[],
  kwargs?: RewardKwargs,
) => readonly RewardOutcome[] | Promise<readonly RewardOutcome[]>;

/** Rewards of B responses. */
export interface Rewards {
  /** [B] */
  scores: Float64Array;
  /** [B] per key of the object that the reward function returned, `score` included; `acc` for plain numbers. undefined: not for this row. */
  extras: Record<string, unknown[]>;
  /** Responses that were scored 0 because the reward function failed. */
  failures: number;
}

/** Scores batches of responses with a reward function. */
export interface RewardManager {
  /**
   * Rewards in the order of the samples, whatever the order in which they are computed. Several batches may be scored at a time.
   * @throws TroupeError REWARD_FAILED naming the first sample that failed, unless `onError` is 'zero'
   */
  score(samples: readonly RewardSample[]): Promise<Rewards>;
  /** Ends what the manager runs, such as processes. */
  close?(): void | Promise<void>;
}

/** Time as a manager sees it; tests give their own. */
export interface Clock {
  /** Milliseconds; only differences count. */
  now(): number;
  sleep(milliseconds: number): Promise<void>;
}

export interface RewardManagerOptions {
  /** Longest wait for one response, or for a batch with `batch`, milliseconds. 300000 */
  timeoutMs?: number;
  /** A reward function that fails, times out or returns no finite number: stop, or score 0. null: as the manager in verl. */
  onError?: 'fail' | 'zero' | null;
  /** Second argument of the reward function. {} */
  kwargs?: RewardKwargs;
  /** naive, dapo: async reward functions in flight at once. 64 */
  concurrency?: number;
  /** prime: the module export that is the function; null: the functions registered per data source. */
  module?: { path: string; name: string; python?: string } | null;
  /** prime: modules that its processes load first, as this one did; they may register functions. none */
  libraries?: readonly string[];
  /** prime: processes. 8 */
  numWorkers?: number;
  /** dapo */
  overlong?: OverlongOptions;
  /** rate_limited */
  limits?: RateLimits;
}

/** DAPO's soft overlong punishment. */
export interface OverlongOptions {
  enable: boolean;
  /** Tokens before the limit in which the penalty grows. */
  len: number;
  /** Penalty at the limit. */
  penaltyFactor: number;
  /** Report overlong_reward and overlong. */
  log: boolean;
  /** The limit, in tokens. */
  maxRespLen: number;
}

export interface RateLimits {
  maxConcurrent: number;
  /** Requests per minute; null: no limit. */
  maxRpm: number | null;
  /** Tokens per minute; null: no limit. */
  maxTpm: number | null;
  /** Tokens that each request counts for. */
  estimatedTokensPerRequest: number;
  clock?: Clock;
}

/** Makes a manager. It is the manager's matter whether the function takes one response or a batch. */
export type RewardManagerFactory = (
  fn: RewardFunction | BatchRewardFunction,
  options: RewardManagerOptions,
) => RewardManager;
