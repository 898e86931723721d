// Search-R1's generation loop for one question, over token ids: think, search, read, ..., answer.
import type { AgentModel, Generated } from '../model/agent_model';
import type { ToolUse, TurnRecord } from '../trajectory/trajectory';
import type { Retriever } from './retriever_client';
import { actionOf, cutResponse, INVALID_ACTION, informationBlock, STOP } from './rules';

export interface SearchLoopOptions {
  /** Responses that may search; one more may only answer. */
  maxTurns: number;
  /** Tokens of the question that the model starts from: the last of them. */
  maxStartLength: number;
  /** Tokens of one response. */
  maxResponseLength: number;
  /** Tokens of one observation: the first of them. */
  maxObsLength: number;
  /** Tokens that the model sees of the context: the last of them. */
  maxPromptLength: number;
  /** Whether a response ends with its first closing tag, or is cut there when it has ended. */
  stopAtTags: boolean;
}

export interface SearchEpisode {
  /** Responses and observations as texts, in order. */
  segments: { text: string; observation: boolean }[];
  /** 1, and one more for each response of the loop that did not answer. */
  actions: number;
  validActions: number;
  validSearches: number;
  /** Whether it answered. */
  finished: boolean;
  toolUses: ToolUse[];
  record: TurnRecord[];
}

/**
 * A response is cut at its tag, and what it made beyond is dropped; the ids that are kept are those that were sampled. An
 * observation is tokenised for itself. A context longer than `maxPromptLength` loses its beginning.
 * @throws TroupeError IO when the retriever fails
 */
export async function searchEpisode(
  model: AgentModel,
  retriever: Retriever,
  promptIds: Int32Array,
  options: SearchLoopOptions,
  signal?: AbortSignal,
): Promise<SearchEpisode> {
  const { maxTurns, maxStartLength, maxResponseLength, maxObsLength, maxPromptLength, stopAtTags } = options;
  const episode: SearchEpisode = {
    segments: [],
    actions: 1,
    validActions: 0,
    validSearches: 0,
    finished: false,
    toolUses: [],
    record: [],
  };
  let context: Int32Array = promptIds.slice(-maxStartLength);
  const respond = async (): Promise<string> => {
    const generated = await model.generate(context.slice(-maxPromptLength), {
      maxNewTokens: maxResponseLength,
      ...(stopAtTags ? { stop: STOP } : {}),
    });
    const text = cut(generated);
    context = joined(context, generated.tokens);
    episode.segments.push({ text, observation: false });
    episode.record.push({ role: 'assistant', content: text, seconds: generated.seconds });
    return text;
  };
  for (let turn = 0; turn < maxTurns && !episode.finished; turn++) {
    const action = actionOf(await respond());
    if (action.kind === 'answer') {
      episode.validActions++;
      episode.finished = true;
      break;
    }
    episode.actions++;
    let text = INVALID_ACTION;
    if (action.kind === 'search') {
      episode.validActions++;
      episode.validSearches++;
      const started = performance.now();
      text = informationBlock(await retriever.search(action.query, signal));
      const seconds = (performance.now() - started) / 1000;
      const call = model.calls.length - 1;
      const observation = text;
      episode.toolUses.push({
        name: 'search',
        call,
        arguments: action.query,
        observation,
        reward: null,
        seconds,
        error: null,
      });
    }
    const ids = model.tokenizer.encode(text).slice(0, maxObsLength);
    context = joined(context, ids);
    const told = model.tokenizer.decode(ids, { skipSpecialTokens: true });
    episode.segments.push({ text: told, observation: true });
    episode.record.push({
      role: 'observation',
      content: told,
      ...(action.kind === 'search'
        ? { tool: 'search', seconds: episode.toolUses.at(-1)?.seconds as number }
        : {}),
    });
  }
  if (!episode.finished) {
    // Whatever it says now, nothing is searched any more.
    const action = actionOf(await respond());
    if (action.kind !== 'invalid') episode.validActions++;
    if (action.kind === 'search') episode.validSearches++;
    episode.finished = action.kind === 'answer';
  }
  return episode;
}

/** Drops the tokens after the cut, an end token included; what is left decodes to the cut text, but for what else is in its last token. */
function cut(generated: Generated): string {
  const text = cutResponse(generated.text);
  generated.keep(generated.tokensOf(text));
  return text;
}

function joined(a: Int32Array, b: Int32Array): Int32Array {
  const out = new Int32Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
}
