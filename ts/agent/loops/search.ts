// Search-R1's agent, with the metrics of its trainer.
import { type Agent, defineAgent } from '../define';
import { RetrieverClient, type RetrieverOptions } from '../search_r1/retriever_client';
import { type SearchLoopOptions, searchEpisode } from '../search_r1/search_loop';

export interface SearchAgentOptions extends SearchLoopOptions {
  retriever: RetrieverOptions;
}

export function searchAgent(options: SearchAgentOptions): Agent {
  const retriever = new RetrieverClient(options.retriever);
  return defineAgent({
    name: 'search_agent',
    run: async (task, { model, signal, note, tools }) => {
      const episode = await searchEpisode(model, retriever, task.promptIds, options, signal);
      for (const turn of episode.record) note(turn);
      tools.uses.push(...episode.toolUses);
      const { actions, validActions, validSearches, finished } = episode;
      return {
        answer: episode.segments.map(({ text }) => text).join(''),
        metrics: {
          'env/number_of_actions': actions,
          'env/finish_ratio': Number(finished),
          'env/number_of_valid_action': validActions,
          'env/ratio_of_valid_action': validActions / actions,
          'env/number_of_valid_search': validSearches,
        },
      };
    },
  });
}
