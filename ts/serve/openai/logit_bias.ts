// What is added to the logits of tokens: read up to the first wrong entry, and without a schema for each, of which a body has room for 500,000.
import { z } from 'zod';

const MOST = 100;
const ID = /^\d{1,9}$/;

export const logitBias = z.unknown().transform((given, { issues }): Map<number, number> => {
  const refuse = (message: string, path: string[] = []): never => {
    issues.push({ code: 'custom', message, path, input: given });
    return z.NEVER;
  };
  if (typeof given !== 'object' || given === null || Array.isArray(given))
    return refuse(`expected an object of token ids and numbers from -${MOST} to ${MOST}`);
  const biases = new Map<number, number>();
  for (const key of Object.keys(given)) {
    const bias: unknown = (given as Record<string, unknown>)[key];
    if (!ID.test(key)) return refuse('expected a token id as key', [key]);
    if (typeof bias !== 'number' || !(Math.abs(bias) <= MOST))
      return refuse(`expected a number from -${MOST} to ${MOST}`, [key]);
    biases.set(Number(key), bias);
  }
  return biases;
});
