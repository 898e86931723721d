// The calculator: rollout.agent.tools names this file.
import { defineTool } from 'troupe';
import { z } from 'zod';

export const calculator = defineTool({
  name: 'calculator',
  description: 'Multiplies two numbers, as in 12*34.',
  parameters: z.object({ expression: z.string() }),
  run: ({ expression }) => {
    const [, left, right] = /^(\d+)\*(\d+)$/.exec(expression) ?? [];
    if (left === undefined) throw new Error(`expected two numbers with * between them, got ${expression}`);
    return String(Number(left) * Number(right));
  },
});
