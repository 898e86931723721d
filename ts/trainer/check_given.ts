// What programs give the trainers beside the configuration.
import { isTool } from '../agent/tools/tool';
import { badOption, checkOptionNames, functionOption } from '../base/check_options';
import { show } from '../base/text';
import { requireConfig } from '../config/checks/require_config';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { agentOf } from '../config/derived/agents';
import { isBuiltInManager } from '../reward/contract/manager_registry';
import type { SftTrainerOptions } from './sft_trainer';
import type { TrainerOptions } from './trainer';

const OF_BOTH = ['log', 'onStep', 'onSaved', 'runMetrics', 'data'] as const;
const OF_TRAINER = [...OF_BOTH, 'reward', 'batchReward', 'engines'] as const;
const OF_SFT = [...OF_BOTH, 'engine'] as const;

/** @throws TroupeError INVALID_ARGUMENT: no configuration of `loadConfig`; an option that does not exist, is of another kind, or that this run would not use */
export function checkTrainer(config: ResolvedConfig, options: TrainerOptions): void {
  const where = 'Trainer';
  requireConfig(where, config, 'train');
  checkOptionNames(where, options, [...OF_TRAINER, 'launcher', 'agent', 'tools']);
  for (const name of OF_TRAINER) functionOption(where, name, options[name]);
  checkReward(where, config, options);
  checkTools(where, config, options);
}

/** The same of `troupe sft`. */
export function checkSftTrainer(config: ResolvedSftConfig, options: SftTrainerOptions): void {
  const where = 'SftTrainer';
  requireConfig(where, config, 'sft');
  checkOptionNames(where, options, [...OF_SFT, 'launcher']);
  for (const name of OF_SFT) functionOption(where, name, options[name]);
}

/** Managers of the user's own may take either function. */
function checkReward(where: string, config: ResolvedConfig, { reward, batchReward }: TrainerOptions): void {
  if (reward !== undefined && batchReward !== undefined)
    throw badOption(
      where,
      'reward and batchReward: expected one of them, since either scores every response',
    );
  const { source, name } = config.reward.reward_manager;
  if (source !== 'register' || !isBuiltInManager(name)) return;
  const key = 'reward.reward_manager.name';
  if (batchReward !== undefined && name !== 'batch')
    throw badOption(
      where,
      `batchReward: scores a batch for the manager batch, and ${key} is ${name}, which scores one response at a time: give reward, or set ${key}=batch`,
    );
  if (reward !== undefined && name === 'batch')
    throw badOption(
      where,
      `reward: scores one response, and ${key} is batch, which scores all of a batch at once: give batchReward, or another ${key}`,
    );
}

function checkTools(where: string, config: ResolvedConfig, { agent, tools }: TrainerOptions): void {
  if (tools === undefined) return;
  if (!Array.isArray(tools)) throw badOption(where, `tools: expected a list of tools but got ${show(tools)}`);
  const other = tools.findIndex((tool) => !isTool(tool));
  if (other >= 0)
    throw badOption(
      where,
      `tools: expected what defineTool returns but entry ${other} is ${show(tools[other])}`,
    );
  if (agent === undefined && agentOf(config) === null)
    throw badOption(
      where,
      'tools: this run has no agent that could use them: give agent, or set actor_rollout_ref.rollout.multi_turn.enable=true for the tool agent',
    );
}
