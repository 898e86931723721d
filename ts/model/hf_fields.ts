// Fields of a config.json, and what they are where it leaves them out.
import { z } from 'zod';
import { MODEL_LIMITS } from '../base/limits';

export const count = (most: keyof typeof MODEL_LIMITS) => z.number().int().positive().max(MODEL_LIMITS[most]);
export const int = (d: number, most: keyof typeof MODEL_LIMITS) =>
  count(most)
    .nullish()
    .transform((v) => v ?? d);
export const real = (d: number) =>
  z
    .number()
    .positive()
    .nullish()
    .transform((v) => v ?? d);
export const bool = (d: boolean) =>
  z
    .boolean()
    .nullish()
    .transform((v) => v ?? d);
export const text = (d: string) =>
  z
    .string()
    .nullish()
    .transform((v) => v ?? d);
export const maybeInt = (most: keyof typeof MODEL_LIMITS) =>
  count(most)
    .nullish()
    .transform((v) => v ?? null);
export const maybeNone = (d: number, most: keyof typeof MODEL_LIMITS) =>
  count(most)
    .nullable()
    .optional()
    .transform((v) => (v === undefined ? d : v));
/** Keys that a query sees, at most. Missing: the default; null: all. */
export const slidingWindow = (d: number | null) =>
  count('positions')
    .nullable()
    .optional()
    .transform((v) => (v === undefined ? d : v));
export const layerIndex = z.number().int().min(0);
/** Missing: the default; null: none. */
export const orNone = (d: number | null) =>
  z
    .number()
    .positive()
    .nullable()
    .optional()
    .transform((v) => (v === undefined ? d : v));
export const layerTypes = z
  .array(z.string())
  .nullish()
  .transform((v) => v ?? null);
export const tokenIds = z
  .union([z.number().int(), z.array(z.number().int())])
  .nullish()
  .transform((v) => v ?? null);
