// From what a dialect was asked to running calls: ids, room, seeds.
import type { PromptImage } from '../../batch/prompt_image';
import type { SamplingParams } from '../../rollout/request';
import type { CallHooks } from './answer';
import { ApiError, apiErrorOf, badField, inField } from './api_error';
import type { ChatCall, PlainCall } from './chat_call';
import { type Conversation, conversationText } from './conversation';
import {
  type ConversationImage,
  openImages,
  readConversationImages,
  withImages,
} from './conversation_images';
import { defined } from './defined';
import { RunningCall } from './model_call';
import { withoutOpenThought } from './open_thought';
import type { ServedModel } from './served_model';
import { textIds } from './text_ids';

export interface StartedCalls {
  promptIds: ArrayLike<number>;
  /** One per choice. */
  calls: RunningCall[];
}

/** @throws ApiError 400 */
export async function startChat(
  model: ServedModel,
  call: ChatCall,
  signal: AbortSignal,
  hooks: CallHooks = {},
): Promise<StartedCalls> {
  const { promptIds, images } = await chatPrompt(model, call, signal, hooks);
  const { conversation: _, images: __, ...rest } = call;
  const pictured = images.length === 0 ? {} : { images: () => readConversationImages(images) };
  return startCalls(model, { ...rest, promptIds, ...pictured }, signal, hooks);
}

/** What a conversation is answered from. @throws ApiError 400 */
export async function chatPrompt(
  model: ServedModel,
  { conversation: asked, images: sent = [], fields, grammar, tools }: ChatCall,
  signal: AbortSignal,
  hooks: CallHooks = {},
): Promise<{ promptIds: ArrayLike<number>; images: readonly ConversationImage[] }> {
  const conversation =
    model.images === null || sent.length === 0
      ? asked
      : { ...asked, images: await openImages(sent, model.images, signal) };
  const ids = hooks.promptIds
    ? await hooks.promptIds(conversation)
    : await promptOf(model, conversation, fields.prompt, signal);
  const promptIds = grammar === null ? ids : withoutOpenThought(model.tokenizer, ids, tools);
  return { promptIds, images: conversation.images ?? [] };
}

async function promptOf(
  model: ServedModel,
  conversation: Conversation,
  field: string,
  signal: AbortSignal,
): Promise<Int32Array> {
  const ids = await textIds(model, written(model, conversation, field), field, signal);
  return model.images === null
    ? ids
    : withImages(ids, conversation.images ?? [], model.images.reading, field);
}

/** What the template refuses, the messages have done. */
function written({ tokenizer }: ServedModel, conversation: Conversation, field: string): string {
  try {
    return conversationText(tokenizer, conversation);
  } catch (error) {
    throw inField(field, apiErrorOf(error));
  }
}

/** @throws ApiError 400 */
export async function startCalls(
  model: ServedModel,
  call: PlainCall,
  signal: AbortSignal,
  hooks: CallHooks = {},
): Promise<StartedCalls> {
  const { promptIds } = call;
  const room = roomFor(model, call);
  const maxNewTokens = Math.min(room, call.atMost ?? room);
  const images = typeof call.images === 'function' ? await call.images() : call.images;
  const calls: RunningCall[] = [];
  const abort = (): void => {
    for (const running of calls) running.abort();
  };
  // A signal that outlives its calls must not keep them.
  const forget = (): void => signal.removeEventListener('abort', abort);
  let open = call.n;
  const ended = (): void => {
    if (--open === 0) forget();
  };
  signal.addEventListener('abort', abort, { once: true });
  try {
    for (let choice = 0; choice < call.n; choice++) {
      const seed = choiceSeed(call.seed, choice);
      const asked = defined({ ...call.sampling, maxNewTokens, seed }) as SamplingParams;
      const running = await startCall(
        model,
        { ...call, images },
        hooks.sampling?.(asked) ?? asked,
        hooks,
        ended,
      );
      calls.push(running);
      hooks.onCall?.(running);
    }
  } catch (error) {
    abort();
    forget();
    throw error;
  }
  // It may have been over before all of them had started.
  if (signal.aborted) abort();
  return { promptIds, calls };
}

async function startCall(
  model: ServedModel,
  call: PlainCall & { images: readonly PromptImage[] | undefined },
  sampling: SamplingParams,
  hooks: CallHooks,
  ended: () => void,
): Promise<RunningCall> {
  const { grammars } = model;
  const constraint =
    call.grammar === null || grammars === null || grammars === 'engine'
      ? null
      : await grammars.open(call.grammar).catch((error: unknown) => {
          throw inField(call.fields.grammar, apiErrorOf(error));
        });
  try {
    return new RunningCall(model, {
      promptIds: call.promptIds,
      sampling: constraint === null ? sampling : { ...sampling, constraint },
      stop: call.stop,
      tools: call.tools,
      oneCall: call.oneCall,
      specialTokens: call.specialTokens,
      request: defined({
        grammar: constraint === null ? (call.grammar ?? undefined) : undefined,
        priority: call.priority,
        cacheSalt: call.cacheSalt,
        images: call.images,
        ...hooks.request,
      }),
      release: () => {
        constraint?.close();
        ended();
      },
    });
  } catch (error) {
    constraint?.close();
    throw error;
  }
}

/** Tokens of the response: as many as were asked for, or as there is room for. */
function roomFor({ engine }: ServedModel, { promptIds, maxTokens: asked, fields }: PlainCall): number {
  const room = engine.maxTokens - promptIds.length;
  if (promptIds.length === 0) throw badField(fields.prompt, 'expected a prompt that is not empty');
  if (room < 1 || (asked ?? 1) > room) {
    throw new ApiError(
      400,
      `this model's maximum context length is ${engine.maxTokens} tokens: the prompt has ${promptIds.length}` +
        (asked === null ? '' : `, and ${asked} were asked for as response`),
      asked === null || room < 1 ? fields.prompt : fields.maxTokens,
      'context_length_exceeded',
    );
  }
  return asked ?? room;
}

/** Choice 0 has the seed of the request; others have seeds that follow from it. */
function choiceSeed(seed: number | undefined, choice: number): bigint | undefined {
  if (seed === undefined) return undefined;
  return BigInt.asUintN(64, BigInt(seed) + 0x9e3779b97f4a7c15n * BigInt(choice));
}
