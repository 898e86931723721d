// verl's single_turn_agent: one response to the prompt.
import { type Agent, defineAgent } from '../define';

export const singleTurnAgent = (): Agent =>
  defineAgent({
    name: 'single_turn_agent',
    run: async ({ promptIds }, { model, note }) => {
      const generated = await model.generate(promptIds);
      note({ role: 'assistant', content: generated.text, seconds: generated.seconds });
    },
  });
