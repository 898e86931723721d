// troupe agent try: one task for an agent, with a model, turn by turn.
import path from 'node:path';
import { Actor } from '../actor/actor';
import type { AgentTask } from '../agent/define';
import { runAgent } from '../agent/run_agent';
import type { TurnRecord } from '../agent/trajectory/trajectory';
import { printable } from '../base/printable';
import { counted, toJson } from '../base/text';
import { loadConfig } from '../config/config';
import { extraInfoOf, groundTruthOf } from '../data/labels';
import { checkPrompt, encodePrompt } from '../data/prompt';
import { RowImages } from '../data/row_images';
import { configuredAgents } from '../trainer/configured_agents';
import { imageReading } from '../trainer/image_reading';
import { loadTokenizer } from '../trainer/training_data';
import { UsageError } from './report';

export interface AgentTryOptions {
  /** The configuration of a run: agent, tools and limits are its. */
  config: string;
  overrides: readonly string[];
  /** Text of the user, or a JSON row {prompt, images?, data_source?, reward_model?, extra_info?}. */
  task: string;
  temperature: number;
  seed: number;
  json: boolean;
}

/** @throws UsageError */
function taskOf(given: string): Record<string, unknown> {
  if (!/^\s*\{/.test(given)) return { prompt: [{ role: 'user', content: given }] };
  try {
    return JSON.parse(given) as Record<string, unknown>;
  } catch (error) {
    throw new UsageError(`agent try: --task: expected a text or a row as JSON: ${(error as Error).message}`);
  }
}

/** Prints the turns, and what came of them. Returns the exit code: 1 when the agent failed. */
export async function agentTry(
  options: AgentTryOptions,
  write: (text: string) => void = (text) => process.stdout.write(text),
): Promise<number> {
  const config = loadConfig(options.config, [...options.overrides]);
  const { model, rollout } = config.actor_rollout_ref;
  const tokenizer = loadTokenizer(model);
  const row = taskOf(options.task);
  const { prompt = null, data_source = 'try', reward_model: labels = null, extra_info } = row;
  checkPrompt(prompt, '--task');
  const { image_key, apply_chat_template_kwargs, mm_processor_kwargs } = config.data;
  const reading = imageReading(model, mm_processor_kwargs);
  const ofRow = RowImages.of(row, image_key, reading, path.resolve('task'), '--task');
  const asked = ofRow.inPrompt(prompt) as AgentTask['prompt'];
  const images = await ofRow.read();
  const task: AgentTask = {
    prompt: asked,
    promptIds: ofRow.inTokens(encodePrompt(asked, tokenizer, '--task', apply_chat_template_kwargs), images),
    images,
    dataSource: String(data_source),
    groundTruth: labels === null ? null : groundTruthOf(labels, '--task'),
    extraInfo: extraInfoOf(extra_info, '--task'),
    sample: 0,
    validation: true,
  };
  const agents = await configuredAgents(config, tokenizer);
  if (agents === null) {
    throw new UsageError(
      'agent try: the configuration names no agent: set actor_rollout_ref.rollout.agent.path or command, or multi_turn.enable=true',
    );
  }
  let actor: Actor | null = null;
  try {
    actor = await Actor.create({ model: model.path, optim: null, readsImages: reading !== null });
    const { agent, chat, tools, imageToken, options: limits } = agents;
    const trajectory = await runAgent(agent, task, {
      ...limits,
      retries: 0,
      engine: actor.rollout,
      tokenizer,
      chat,
      tools,
      imageToken,
      sampling: {
        maxNewTokens: config.data.max_response_length,
        temperature: options.temperature,
        topP: rollout.top_p,
        topK: rollout.top_k,
      },
      seed: String(options.seed),
    });
    const { record, reward, answer, error, calls, toolUses, seconds } = trajectory;
    if (options.json) {
      const shown = calls.map(({ promptIds, tokens, finishReason }) => ({
        promptIds: [...promptIds],
        tokens: [...tokens],
        finishReason,
      }));
      write(`${toJson({ turns: record, toolUses, answer, reward, error, calls: shown, seconds })}\n`);
      return error === null ? 0 : 1;
    }
    for (const turn of record) write(`${heading(turn)}\n${readable(turn.content)}\n\n`);
    const made = calls.reduce((sum, { tokens }) => sum + tokens.length, 0);
    const lines = [
      ...(answer === null ? [] : [`answer: ${readable(answer)}`]),
      ...(reward === null ? [] : [`reward: ${reward}`]),
      ...(error === null ? [] : [`failed: ${error}`]),
      `${counted(calls.length, 'call')} of the model, ${counted(made, 'token')}, ${counted(toolUses.length, 'use')} of tools, ${seconds.toFixed(2)} s`,
    ];
    write(`${lines.join('\n')}\n`);
    return error === null ? 0 : 1;
  } finally {
    await Promise.allSettled([actor?.close(), agents.close()]);
  }
}

/** All of it, but for what would move the cursor of a terminal or hide something. An agent may note what is no text. */
function readable(content: unknown): string {
  const text = typeof content === 'string' ? content : (toJson(content) ?? '');
  return printable(text.trim(), { max: Number.POSITIVE_INFINITY, lines: true });
}

function heading({ role, tool, seconds, error }: TurnRecord): string {
  const name = printable(tool === undefined || tool === role ? role : `${role} ${tool}`);
  const time = seconds === undefined ? '' : ` (${seconds.toFixed(2)} s)`;
  return `--- ${name}${time}${error === undefined ? '' : ', failed'}`;
}
