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
  /** With `reward.reward_model.enable`: what the reward model gave the response. */
  rewardModelScore?: number;
}

/** A score, or an object with `score` and anything else worth a metric (numbers, booleans) or a dump (any JSON value). */
export type RewardOutcome = number | boolean | ({ score: number } & Record<string, unknown>);

/** Scores one response; may be async. Called once per response, concurrently when async. */
export type RewardFunction = (sample: RewardSample) => RewardOutcome | Promise<RewardOutcome>;
