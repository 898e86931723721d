import { printable } from '../base/printable';
import { TroupeError } from '../errors';
import type { TensorMapping } from '../model/tensor_mapping';
import { fileTensors, isBuffer, withoutPrefix } from '../model/tensor_names';
import type { NativeTensorFile, NativeTensorSlice } from '../native/bridge';
import { F8_E4M3 } from './fp8';
import { blocksName, blocksShape, MXFP4 } from './mxfp4';
import { isPacked, packedSlice, shownShape as show, shownName } from './packed_tensor';
import type { StoredTensor } from './safetensors';
import { type FloatDtype, isFloatDtype, partOffset } from './write_plan';

export interface LoadPlan {
  files: NativeTensorFile[];
  /** The tensors to be read, by canonical Hugging Face name. */
  found: Map<string, StoredTensor>;
}

export interface LoadRules {
  /** Names that may be absent: the parameter keeps its initial value. */
  optional?: (hf: string) => boolean;
  /** Names that may be there without being used. */
  ignored?: (hf: string) => boolean;
  /** What is wrong when they do not match; default: do not fit its config.json. */
  what?: string;
}

const SHOWN = 5;

/**
 * Matches what a checkpoint holds with what a model needs. Missing, misshapen and surplus tensors, and dtypes that are not
 * floating point, are all reported in one INVALID_MODEL error, five of each with expected and actual shapes.
 */
export function planLoad(
  where: string,
  stored: ReadonlyMap<string, StoredTensor>,
  mapping: readonly TensorMapping[],
  rules: LoadRules = {},
): LoadPlan {
  const byShortName = new Map<string, StoredTensor>();
  for (const tensor of stored.values()) byShortName.set(withoutPrefix(tensor.name), tensor);
  const found = new Map<string, StoredTensor>();
  const used = new Set<string>();
  const missing: string[] = [];
  const misshapen: string[] = [];
  const unreadable: string[] = [];
  for (const [m] of fileTensors(mapping)) {
    const tensor = stored.get(m.hf) ?? byShortName.get(withoutPrefix(m.hf));
    if (tensor === undefined) {
      if (!rules.optional?.(m.hf)) missing.push(`${m.hf} ${show(m.shape)}`);
      continue;
    }
    used.add(tensor.name);
    if (!sameShape(tensor.shape, m.shape)) misshapen.push(misfit(tensor, m.shape));
    else if (!isReadable(tensor, m)) unreadable.push(`${shownName(tensor.name)}: ${unreadableDtype(tensor)}`);
    else found.set(m.hf, tensor);
  }
  const extra = [...stored]
    .filter(([hf, t]) => !used.has(t.name) && !isBuffer(hf) && !rules.ignored?.(hf))
    .map(([, t]) => `${shownName(t.name)} ${show(t.shape)}`);
  const problems = [
    list('missing', missing),
    list('of the wrong shape', misshapen),
    list('not expected in this model', extra),
    list('of an unsupported dtype (supported: F32, F16, BF16)', unreadable),
  ].filter((line) => line !== '');
  if (problems.length > 0) {
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] the tensors of ${where} ${rules.what ?? 'do not fit its config.json'}:\n${problems.join('\n')}`,
    );
  }
  return { files: toFiles(mapping, found), found };
}

function toFiles(
  mapping: readonly TensorMapping[],
  found: ReadonlyMap<string, StoredTensor>,
): NativeTensorFile[] {
  const files = new Map<string, NativeTensorFile>();
  for (const m of mapping) {
    const tensor = found.get(m.hf);
    if (tensor === undefined) continue;
    let file = files.get(tensor.file);
    if (file === undefined) {
      file = { path: tensor.file, header: new Uint8Array(0), size: tensor.fileSize, tensors: [] };
      files.set(tensor.file, file);
    }
    file.tensors.push(storedSlice(m, tensor));
  }
  return [...files.values()];
}

/** Numbers, or packed matrices where the parameter is one. */
const isReadable = (tensor: StoredTensor, { part }: TensorMapping): boolean =>
  isPacked(tensor) ? tensor.shape.length === (part === undefined ? 2 : 3) : isFloatDtype(tensor.dtype);

function unreadableDtype(tensor: StoredTensor): string {
  const { dtype } = tensor;
  if (isPacked(tensor)) return `${dtype}, which the weights of matrices alone may be`;
  return dtype === F8_E4M3
    ? `${dtype} without a quantization_config in config.json: expected the one that it was published with`
    : printable(dtype, { max: 50 });
}

/** Of a tensor that can be read: what of a parameter it is, and where it lies. */
export function storedSlice(
  { param, row, rows, shape, part, transpose }: TensorMapping,
  tensor: StoredTensor,
): NativeTensorSlice {
  const slice = { param, row, rows, label: tensor.name };
  if (isPacked(tensor)) return { ...slice, ...packedSlice(tensor, part, transpose) };
  const dtype = tensor.dtype as FloatDtype;
  return { ...slice, transpose, dtype, offset: tensor.offset + partOffset(shape, part, dtype), scales: null };
}

/** In the terms of the file. */
function misfit({ name, dtype, shape }: StoredTensor, expected: readonly number[]): string {
  const [named, written] = dtype === MXFP4 ? [blocksName(name), blocksShape] : [name, same];
  return `${shownName(named)}: expected ${show(written(expected))} but the file has ${show(written(shape))}`;
}

const same = (shape: readonly number[]): readonly number[] => shape;

const sameShape = (a: readonly number[], b: readonly number[]): boolean =>
  a.length === b.length && a.every((d, i) => d === b[i]);

function list(what: string, lines: string[]): string {
  if (lines.length === 0) return '';
  const more = lines.length > SHOWN ? `\n    and ${lines.length - SHOWN} more` : '';
  return `  ${lines.length} ${what}:\n    ${lines.slice(0, SHOWN).join('\n    ')}${more}`;
}
