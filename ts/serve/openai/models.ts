// GET /v1/models.
import { ApiError } from '../call/api_error';
import type { ServedModel } from '../call/served_model';

const entry = ({ name, created, engine }: ServedModel): object => ({
  id: name,
  object: 'model',
  created,
  owned_by: 'troupe',
  max_model_len: engine.maxTokens,
});

export const modelList = (model: ServedModel): object => ({ object: 'list', data: [entry(model)] });

/** `escaped`: the name in a path. @throws ApiError 404 for another model */
export function modelEntry(model: ServedModel, escaped: string): object {
  const asked = unescaped(escaped);
  if (asked === model.name) return entry(model);
  throw new ApiError(404, `there is no model ${JSON.stringify(asked)} here`, 'model', 'model_not_found');
}

function unescaped(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
