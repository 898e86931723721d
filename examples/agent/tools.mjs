// The calculator: rollout.agent.tools names this file.
import { defineTool } from 'troupe';
import { z } from 'zod';
import { calculator as multiply } from './calculator.mjs';

export const calculator = defineTool({
  name: 'calculator',
  description: 'Multiplies two numbers, as in 12*34.',
  parameters: z.object({ expression: z.string() }),
  run: ({ expression }) => multiply(expression),
});
