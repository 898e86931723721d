// The public surface of the package: everything a script may rely on, by name.

export {
  Actor,
  type ActorOptions,
  type LogProbOptions,
  type LogProbResult,
  type PolicyMetrics,
  type PolicyUpdateOptions,
} from './actor/actor';
export type { DistillationOptions } from './actor/distillation_options';
export {
  type PolicyLossInputs,
  type PolicyLossResult,
  policyLoss,
  type ValueLossInputs,
  type ValueLossResult,
  valueLoss,
} from './actor/loss_probe';
export type { PolicyLossOptions, ValueLossOptions } from './actor/update_options';
export {
  type Agent,
  type AgentContext,
  type AgentResult,
  type AgentTask,
  defineAgent,
} from './agent/define';
export type { AgentModel, CallOptions, Generated } from './agent/model/agent_model';
export {
  defineTool,
  type Tool,
  type ToolContext,
  type ToolDefinition,
  ToolResult,
  type ToolSchema,
} from './agent/tools/tool';
export type { ToolAnswer, Toolbox } from './agent/tools/toolbox';
export type { ModelCall } from './agent/trajectory/model_call';
export { joinCalls, type Sequence, type Turn } from './agent/trajectory/sequences';
export type { ToolUse, Trajectory, TurnRecord } from './agent/trajectory/trajectory';
export type {
  AdvantageConfig,
  AdvantageEstimator,
  AdvantageInputs,
  AdvantageResult,
  EstimatorOptions,
} from './algorithms/advantage_types';
export { computeAdvantages, registerAdvantageEstimator } from './algorithms/advantages';
export {
  applyKlPenalty,
  createKlController,
  type KlController,
  type KlControllerOptions,
  klPenalty,
} from './algorithms/kl';
export type { Aggregation } from './algorithms/names';
export {
  checkPolicyLoss,
  type PolicyLossCheck,
  type PolicyLossCheckOptions,
} from './algorithms/policy_losses/check';
export {
  type PolicyLossFunction,
  type PolicyLossFunctionInputs,
  type PolicyLossFunctionResult,
  type PolicyLossSettings,
  registerPolicyLoss,
} from './algorithms/policy_losses/registry';
export type { RolloutCorrectionOptions } from './algorithms/rollout_correction/options';
export { rolloutCorrectionPreset } from './algorithms/rollout_correction/presets';
export { rolloutCorrection } from './algorithms/rollout_correction/rollout_correction';
export { Batch, type ColumnOptions, type RaggedInput, type Seqs } from './batch/batch';
export type { ColumnData, Granularity, KnownColumns } from './batch/columns';
export type { PaddedInput } from './batch/padded';
export { balanceOrder, karmarkarKarp, sequenceWorkload } from './batch/partition';
export type { PromptImage } from './batch/prompt_image';
export type { SavedTokenizer } from './checkpoint/save_files';
export {
  batchArithmetic,
  type ConfigNote,
  configNotes,
  describeConfig,
  loadConfig,
  loadSftConfig,
  type ResolvedConfig,
  type ResolvedSftConfig,
} from './config/config';
export type { WorkerGroupOptions } from './controller/group_options';
export type {
  Launcher,
  LauncherOptions,
  PoolPlace,
  WorkerExit,
  WorkerProcess,
  WorkerSpec,
} from './controller/launcher';
export { ResourcePools, type ResourcePoolsOptions } from './controller/resource_pools';
export { WorkerGroup } from './controller/worker_group';
export { Critic, type CriticMetrics, type CriticUpdateOptions } from './critic/critic';
export type { ChatMessage } from './data/chat_template';
export { readImages } from './data/read_images';
export { Tokenizer, type TokenizerOptions } from './data/tokenizer';
export type { EngineOptions, OptimOptions } from './engine/engine_options';
export type { LoraOptions } from './engine/lora_options';
export type { MuonOptions } from './engine/muon_options';
export type { OffloadOptions } from './engine/offload_options';
export type { ScheduleOptions } from './engine/schedule_options';
export { ConfigError, type ErrorCode, TroupeError, WorkerDiedError } from './errors';
export { type ExportOptions, type ExportSummary, exportCheckpoint } from './export/export_checkpoint';
export { type CodeRewardOptions, codeReward } from './reward/code/code_reward';
export { PythonSandbox, type PythonSandboxOptions } from './reward/code/python_sandbox';
export type { CodeRunner, RunRequest, RunResult, RunStatus } from './reward/code/runner';
export { SandboxFusion, type SandboxFusionOptions } from './reward/code/sandbox_fusion';
export { registerRewardManager } from './reward/contract/manager_registry';
export type {
  BatchRewardFunction,
  Clock,
  OverlongOptions,
  RateLimits,
  RewardFunction,
  RewardKwargs,
  RewardManager,
  RewardManagerFactory,
  RewardManagerOptions,
  RewardOutcome,
  RewardSample,
  Rewards,
} from './reward/contract/types';
export { scoreFunctionCalling } from './reward/graders/function_calling';
export { type Gsm8kOptions, scoreGsm8k } from './reward/graders/gsm8k';
export { scoreMath } from './reward/graders/math';
export { type MathDapoOptions, type MathDapoScore, scoreMathDapo } from './reward/graders/math_dapo';
export { scorePrimeMath } from './reward/graders/prime_math';
export { type QaEmScores, scoreQaEm } from './reward/graders/qa_em';
export { type RllaScore, scoreRlla } from './reward/graders/rlla';
export { type SearchR1Options, scoreSearchR1 } from './reward/graders/search_r1';
export { createRewardManager } from './reward/manager';
export { registerRewardFunction, rewardByDataSource } from './reward/reward';
export { RewardModel, type RewardModelOptions } from './reward_model/reward_model';
export type {
  PauseMode,
  RolloutEngine,
  RolloutHandle,
  RolloutStats,
  WeightSource,
} from './rollout/engine';
export type { NativeRolloutConfig } from './rollout/native/native_options';
export type { SpeculativeConfig } from './rollout/native/speculative_options';
export type {
  FinishReason,
  RolloutRequest,
  RolloutResult,
  SamplingParams,
  TokenConstraint,
  TokenSpan,
  TopLogProb,
} from './rollout/request';
export type { SamplingOptions } from './rollout/sampling';
export type { FitResult } from './trainer/fit_loop';
export type { Metrics } from './trainer/metrics/metrics';
export { SftTrainer, type SftTrainerOptions } from './trainer/sft_trainer';
export { Trainer, type TrainerOptions } from './trainer/trainer';
export type {
  WeightBucket,
  WeightDtype,
  WeightPart,
  WeightTensor,
  WeightTransfer,
} from './weights/weight_bucket';
export type { WeightExport, WeightExportOptions } from './weights/weight_export';
