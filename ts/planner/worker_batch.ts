// What of a batch takes memory of the process of a rank beside a few bytes for each token.
import { routingBytes } from '../engine/routed_experts';
import { promptOf } from './engine_request';
import type { Load, RoleSpec } from './plan';
import { imagesWithin, imageTokens } from './prompt_images';

/** Ids and log-probs of a teacher's tokens. */
const TEACHER_TOKEN = 8;

/**
 * Bytes in one verb of the engine: pixels of the images of all prompts that the rank is sent, the tokens of a teacher for all responses, and
 * the experts of all tokens where these are recorded or given.
 */
export function batchBytes(role: RoleSpec, verb: string): number {
  const rollout = role.rollouts.find((shape) => shape.verb === verb);
  if (rollout !== undefined) return rollout.prompts * pixelBytes(role, rollout.promptLength);
  const load = verb === 'inference' ? role.inference : verb === 'update' ? role.update : null;
  if (load === null) return 0;
  const { sent = load.sequences, samples = 1 } = load;
  const experts = (role.routing ?? 'none') === 'none' ? 0 : routingBytes(role.model) * load.longest;
  const ofPrompts = Math.ceil(sent / samples) * pixelBytes(role, promptOf(load));
  const taught = verb === 'update' || role.name === 'teacher' ? teacherBytes(role, load) : 0;
  return ofPrompts + sent * (taught + experts);
}

/** Of a prompt of so many tokens. */
export function pixelBytes({ images, model }: RoleSpec, prompt: number): number {
  if (images === undefined) return 0;
  return imageTokens(imagesWithin(Math.min(prompt, model.maxPositions - 1), images)) * images.tokenBytes;
}

const teacherBytes = ({ teacherTokens = 0 }: RoleSpec, { response }: Load): number =>
  TEACHER_TOKEN * teacherTokens * response;
