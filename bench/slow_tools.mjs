// The agent example's calculator behind a service whose answers take a while, a few of them long: rollout.agent.tools names this file.
import { setTimeout } from 'node:timers/promises';
import { defineTool } from 'troupe';
import { z } from 'zod';
import { calculator as multiply } from '../examples/agent/calculator.mjs';

/** Seconds: half of the answers take less than MEDIAN, one in a hundred more than ten times as long, none more than LONGEST. */
const [MEDIAN, SPREAD, LONGEST] = [0.2, 1, 5];

/** Of a normal distribution (Box and Muller 1958). */
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());

export const calculator = defineTool({
  name: 'calculator',
  description: 'Multiplies two numbers, as in 12*34.',
  parameters: z.object({ expression: z.string() }),
  run: async ({ expression }) => {
    await setTimeout(1000 * Math.min(LONGEST, MEDIAN * Math.exp(SPREAD * normal())));
    return multiply(expression);
  },
});
