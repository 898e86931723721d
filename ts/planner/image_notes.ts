// What is said of the images that a plan counts.
import { formatBytes } from '../base/byte_size';
import { promptOf } from './engine_request';
import type { PlanSpec, RoleSpec } from './plan';
import { imagesWithin, imageTokens } from './prompt_images';
import { batchBytes } from './worker_batch';

/** Which images were assumed, and why; nothing where no role reads any. */
export function imageNotes(pools: readonly PlanSpec[]): string[] {
  const roles = pools.flatMap((pool) => pool.roles.map((role) => ({ role, gpu: pool.device === 'cuda' })));
  const reading = roles.filter(({ role }) => role.images !== undefined);
  const prompt = Math.max(...reading.map(({ role }) => promptTokens(role)));
  const [first] = reading;
  if (first === undefined) return [];
  const images = imagesWithin(prompt, first.role.images as NonNullable<RoleSpec['images']>);
  const { height = 0, width = 0 } = images[0] ?? {};
  const onHost = Math.max(
    ...reading.map(({ role, gpu }) => (gpu ? Math.max(...VERBS.map((verb) => batchBytes(role, verb))) : 0)),
  );
  return [
    `images: no data are looked at; counted are prompts whose ${prompt} tokens are all of images, as far as these come out: ${images.length} of at most ` +
      `${height} x ${width} tokens, ${imageTokens(images)} in all. Fewer and smaller ones take less, but that each takes whole tiles of 128 patches`,
    ...(onHost === 0
      ? []
      : [`images: their pixels take up to ${formatBytes(onHost)} of the host for each rank`]),
  ];
}

const VERBS = ['inference', 'update', 'generate', 'validate'];

/** The longest prompt that the role is given. */
function promptTokens({ model, inference, update, rollouts }: RoleSpec): number {
  const loads = [inference, update].flatMap((load) => (load === null ? [] : [promptOf(load)]));
  const all = [...loads, ...rollouts.map(({ promptLength }) => promptLength)];
  return Math.min(model.maxPositions - 1, Math.max(0, ...all));
}
