// What collects prompts ahead, over an engine that answers when it is told to.
import type { RolloutHandle } from '../../../ts/rollout/engine';
import type { RolloutRequest, RolloutResult } from '../../../ts/rollout/request';
import type { AgentRollout } from '../../../ts/trainer/agent_rollout';
import { AsyncCollector, type AsyncOptions } from '../../../ts/trainer/async_collector';
import type { Phase } from '../../../ts/trainer/collect';
import type { Engines } from '../../../ts/trainer/engines';
import { PromptStream } from '../../../ts/trainer/prompt_stream';
import { fakeRollout } from '../../helpers/fake_rollout';
import { fakeData, runConfig, runDirectory } from '../../helpers/fake_run';

/** Answers when it is told to, by the first token of the prompt. */
export class ToldRollout {
  version = 0;
  readonly aborted: number[] = [];
  readonly asked: number[] = [];
  private readonly open = new Map<
    number,
    { began: number; resolve: (r: RolloutResult) => void; reject: (e: unknown) => void }[]
  >();

  /** The first token is of the weights of when it was asked for. */
  private result(
    tokens: number[],
    finishReason: RolloutResult['finishReason'],
    began: number,
  ): RolloutResult {
    const first = Math.min(tokens.length, 1);
    return {
      tokens: Int32Array.from(tokens),
      logProbs: Float32Array.from(tokens, () => -1),
      finishReason,
      versions: [
        { version: began, start: 0, end: first },
        { version: this.version, start: first, end: tokens.length },
      ],
      cachedTokens: 0,
    };
  }

  readonly engine = {
    ...fakeRollout(() => []),
    submit: ({ promptIds }: RolloutRequest): RolloutHandle => {
      const id = promptIds[0] as number;
      const waiting = this.open.get(id) ?? [];
      if (waiting.length === 0) this.asked.push(id);
      let cut = (): void => undefined;
      const result = new Promise<RolloutResult>((resolve, reject) => {
        const { version: began } = this;
        waiting.push({ began, resolve, reject });
        cut = () => resolve(this.result([], 'abort', began));
      });
      this.open.set(id, waiting);
      result.catch(() => undefined);
      const abort = (): void => {
        this.aborted.push(id);
        cut();
      };
      return { result, abort } as unknown as RolloutHandle;
    },
  };

  answer(...ids: number[]): void {
    for (const id of ids)
      for (const [i, { began, resolve }] of (this.open.get(id) ?? []).entries())
        resolve(this.result([i, 1], 'stop', began));
  }

  fail(id: number, error: Error): void {
    for (const { reject } of this.open.get(id) ?? []) reject(error);
  }
}

/** Two prompts of four responses per step; prompts are 1, 2, 3, ... `position`: after step `step` of another one. */
export function collectorOf(
  options: Partial<AsyncOptions>,
  overrides: string[] = [],
  score: (prompt: string, response: string) => number | Promise<number> = (_, response) =>
    Number(response.split(' ')[0]),
  fails: (sample: { prompt: string }) => boolean = () => false,
  agents: AgentRollout | null = null,
  { step = 0, position }: { step?: number; position?: ReturnType<AsyncCollector['position']> } = {},
) {
  const rollout = new ToldRollout();
  const config = runConfig(runDirectory(), overrides);
  const { engine } = rollout;
  Object.defineProperty(engine, 'version', { get: () => rollout.version });
  const data = fakeData();
  let { at } = (position?.loader ?? { at: 0 }) as { at: number };
  const prompt = (i: number) => ({ tokens: [i], dataSource: 'fake', groundTruth: '', extraInfo: {} });
  const source = {
    batchesPerEpoch: 3,
    next: async () => ({ prompts: [prompt(++at), prompt(++at)], epoch: 0 }),
    state: () => ({ at }),
    restore: () => undefined,
  };
  const context = {
    config,
    engines: { rollout: engine, rewardModel: null } as unknown as Engines,
    decoder: data.decoder,
    agents,
    reward: {
      score: async (samples: readonly { prompt: string; response: string }[]) => ({
        scores: Float64Array.from(
          await Promise.all(samples.map(({ prompt, response }) => score(prompt, response))),
        ),
        extras: {},
        failures: samples.filter(fails).length,
      }),
    },
  };
  const collector = new AsyncCollector(context, new PromptStream(source, step, position?.queue), {
    colocated: false,
    ahead: 2,
    maxSpan: 2,
    strategy: 'drop',
    totalSteps: 9,
    batchesPerEpoch: 3,
    ...options,
  });
  return { collector, rollout };
}

export const phase: Phase = async (_, work) => await work();
export const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
export const taken = async (collector: AsyncCollector, step: number) => {
  const { prompts, metrics } = await collector.take(step, phase, () => undefined);
  return { ids: prompts.map(({ tokens }) => tokens[0]), metrics };
};
