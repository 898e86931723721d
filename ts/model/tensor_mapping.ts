/**
 * One Hugging Face tensor, or a part of it, and where it lies in Troupe's parameters (native/model/decoder_layout.h): rows
 * [row, row + rows) of `param`, stored transposed in the file when `transpose` (GPT-2's Conv1D).
 */
export interface TensorMapping {
  hf: string;
  shape: number[]; // in the file, of the whole tensor; a number has none
  /** The tensor holds those of all experts one behind the other, and this is the one at `part` of its first dimension. */
  part?: number;
  param: string;
  row: number;
  rows: number;
  transpose: boolean;
  /** A buffer: float32 in files of any dtype, without gradient and moments. */
  buffer?: true;
}

/** Rows of a fused parameter that are a tensor of their own in the files. */
export interface FusedRows {
  hf: string;
  rows: number;
}

/** Collects the mapping; `cols` 0 marks a vector. */
export class MappingBuilder {
  readonly entries: TensorMapping[] = [];

  tensor(hf: string, param: string, rows: number, cols = 0, transpose = false): void {
    this.fused(param, [{ hf, rows }], cols, transpose);
  }

  /** Depthwise, of one dimension: the file has another one of size 1 between. */
  convolution(param: string, slices: readonly FusedRows[], width: number): void {
    let row = 0;
    for (const { hf, rows } of slices) {
      this.entries.push({ hf, shape: [rows, 1, width], param, row, rows, transpose: false });
      row += rows;
    }
  }

  /** A matrix whose columns the file has as several dimensions. */
  shaped(hf: string, param: string, shape: number[]): void {
    this.entries.push({ hf, shape, param, row: 0, rows: shape[0] as number, transpose: false });
  }

  /** A vector that the file may have with dimensions of 1 before it; without any dimension: one number. */
  buffer(hf: string, param: string, shape: number[]): void {
    const rows = shape.at(-1) ?? 1;
    this.entries.push({ hf, shape, param, row: 0, rows, transpose: false, buffer: true });
  }

  /** One of the tensors that the file holds as one, whose first dimension they are, transposed; cols 0: vectors. */
  part(hf: string, part: number, parts: number, param: string, rows: number, cols = 0): void {
    const shape = cols === 0 ? [parts, rows] : [parts, cols, rows];
    this.entries.push({ hf, shape, part, param, row: 0, rows, transpose: cols > 0 });
  }

  /** The same of matrices as they are. */
  matrixOf(hf: string, part: number, parts: number, param: string, rows: number, cols: number): void {
    this.entries.push({ hf, shape: [parts, rows, cols], part, param, row: 0, rows, transpose: false });
  }

  /** Several file tensors stacked by rows in one parameter. */
  fused(param: string, slices: FusedRows[], cols = 0, transpose = false): void {
    let row = 0;
    for (const { hf, rows } of slices) {
      const shape = cols === 0 ? [rows] : transpose ? [cols, rows] : [rows, cols];
      this.entries.push({ hf, shape, param, row, rows, transpose });
      row += rows;
    }
  }
}
