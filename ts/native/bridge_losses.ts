// Losses and what they are asked and say, in the functions of the native addon (bridge.ts); the rules of bridge_data.ts hold.

/** Metric name without the role prefix -> value; one record per mini-batch, in order. */
export type NativeMetrics = Record<string, number>;

/** Of a policy that learns from a teacher (native/losses/distillation.h). */
export interface NativeDistillation {
  /** Estimator of the KL of sampled tokens; not read with topK. */
  lossMode: string;
  /** Tokens of the teacher's at each position that are compared; 0: the sampled one. */
  topK: number;
  coef: number;
  /** null: as large as they are. */
  maxLoss: number | null;
  minLogProb: number | null;
  taskRewards: boolean;
  policyGradient: boolean;
  clipRatioLow: number;
  clipRatioHigh: number;
}

export interface NativePolicyLossOptions {
  mode: string;
  clipRatioLow: number;
  clipRatioHigh: number;
  clipRatioC: number;
  aggregation: string;
  scaleFactor: number;
  entropyCoeff: number;
  useKlLoss: boolean;
  klLossCoef: number;
  klLossType: string;
  /** Weight of the load-balancing loss of a mixture of experts (native/model/expert_load.h); 0: none. */
  routerAuxLossCoef: number;
  /** Weight of the z-loss of its routers (native/model/router_z_loss.h); 0: none. */
  routerZLossCoef: number;
  /** Further options of a mode, in verl's snake_case: tau_pos, kl_cov_ratio, ... */
  extra: Record<string, number>;
  distillation: NativeDistillation | null;
}

/** A loss that was computed at the current log-probs, for the mode 'linear'; [ΣR] each. */
export interface NativeGivenLoss {
  values: Float32Array;
  byLogProb: Float32Array;
  byEntropy: Float32Array | null;
}

export interface NativeValueLossOptions {
  clipRange: number;
  aggregation: string;
  scaleFactor: number;
  routerZLossCoef: number; // as in NativePolicyLossOptions
}

export interface NativeSftLossOptions {
  routerZLossCoef: number; // as in NativePolicyLossOptions
}

/** Of a distillation with topK, [ΣR * topK]: the student's log-probs of the teacher's tokens, and which are among its own likeliest. */
export interface NativeStudentTop {
  logProbs: Float32Array;
  amongTop: Uint8Array;
}

export interface NativePolicyLossInputs {
  offsets: Int32Array; // [b+1] over response tokens
  responseMask: Uint8Array;
  globalTokens: number;
  globalSequences: number;
  logProbs: Float32Array;
  entropy: Float32Array | null;
  oldLogProbs: Float32Array;
  advantages: Float32Array;
  refLogProbs: Float32Array | null;
  rolloutIsWeights: Float32Array | null;
  givenLoss: NativeGivenLoss | null;
  teacherLogProbs: Float32Array | null; // as in NativePolicyBatch
  studentTop: NativeStudentTop | null;
}

export interface NativePolicyLossResult {
  loss: number;
  gradLogProbs: Float32Array;
  gradEntropy: Float32Array | null;
  gradTopLogProbs: Float32Array | null; // with studentTop
  metrics: NativeMetrics;
}

export interface NativeValueLossInputs {
  offsets: Int32Array;
  responseMask: Uint8Array;
  globalTokens: number;
  globalSequences: number;
  predictions: Float32Array;
  values: Float32Array;
  returns: Float32Array;
}

export interface NativeValueLossResult {
  loss: number;
  gradPredictions: Float32Array;
  metrics: NativeMetrics;
}
