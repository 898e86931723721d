// Tensors of values of a few bits, of which those of a block have a scale in common.
import { printable } from '../base/printable';
import { TroupeError } from '../errors';
import type { NativeTensorSlice } from '../native/bridge';
import type { Packing, StoredTensor } from './safetensors';

export type PackedDtype = 'MXFP4' | 'F8_E4M3';

export type PackedTensor = StoredTensor & { dtype: PackedDtype; packing: Packing };

export const isPacked = (tensor: StoredTensor): tensor is PackedTensor => tensor.packing !== undefined;

export const hasPacked = (stored: ReadonlyMap<string, StoredTensor>): boolean =>
  [...stored.values()].some(isPacked);

/** Of a matrix as it lies in the files; a tensor of three dimensions is several, one behind the other. */
export function packedMatrix({ shape, packing }: PackedTensor): { rows: number; columns: number } {
  const [a = 0, b = 0] = shape.slice(-2);
  return packing.transposed ? { rows: b, columns: a } : { rows: a, columns: b };
}

/** How many scales a matrix has in a row and in a column of blocks. */
export function blocksOf(
  { rows, columns }: { rows: number; columns: number },
  [blockRows, blockColumns]: Packing['block'],
): { rows: number; columns: number } {
  return { rows: Math.ceil(rows / blockRows), columns: Math.ceil(columns / blockColumns) };
}

/**
 * What the core reads of the matrix at `part`, but for its place in a parameter; undefined: of all of it. `transpose`: the parameter has rows for
 * columns of the shape.
 */
export function packedSlice(
  tensor: PackedTensor,
  part: number | undefined,
  transpose: boolean,
): Pick<NativeTensorSlice, 'transpose' | 'dtype' | 'offset' | 'scales'> {
  const { dtype, shape, offset, bytes, packing } = tensor;
  const { scales, scaleDtype, transposed } = packing;
  const parts = part === undefined ? 1 : (shape[0] as number);
  // One scale for all parts is that of each.
  const ofPart = isShared(packing) ? 0 : scales.bytes / parts;
  const [blockRows, blockColumns] = packing.block;
  return {
    transpose: transpose !== transposed,
    dtype,
    offset: offset + (part ?? 0) * (bytes / parts),
    scales: {
      path: scales.file,
      offset: scales.offset + (part ?? 0) * ofPart,
      dtype: scaleDtype,
      blockRows,
      blockColumns,
    },
  };
}

/** One scale for all of the tensor. */
export const isShared = ({ scales }: Packing): boolean =>
  scales.shape.reduce((count, extent) => count * extent, 1) === 1;

/** About one tensor of a file. */
export const badTensor = ({ name, file }: StoredTensor, message: string): TroupeError =>
  new TroupeError('INVALID_MODEL', `[model] ${file}: tensor '${shownName(name)}': ${message}`);

export const shownName = (name: string): string => printable(name, { max: 200 });

export const shownShape = (shape: readonly number[]): string =>
  printable(`[${shape.join(', ')}]`, { max: 100 });
