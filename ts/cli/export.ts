import { statSync } from 'node:fs';
import path from 'node:path';
import { formatBytes } from '../base/byte_size';
import { type ExportOptions, exportCheckpoint } from '../export/export_checkpoint';

/** `troupe export`. Returns the exit code. */
export async function exportCommand(
  checkpoint: string,
  out: string,
  options: ExportOptions,
  write: (text: string) => void = (text) => process.stdout.write(text),
): Promise<number> {
  const { source, merged, files } = await exportCheckpoint(checkpoint, out, options);
  const weights = files.filter((file) => file.endsWith('.safetensors'));
  const bytes = weights.reduce((sum, file) => sum + statSync(path.join(out, file)).size, 0);
  const what =
    source.adapter && !merged ? `adapter of the ${source.role} (--merge-lora: the whole model)` : source.role;
  write(
    `${out}: ${what} from ${source.dir}, ${formatBytes(bytes)} in ${weights.length === 1 ? '1 file' : `${weights.length} files`}\n`,
  );
  return 0;
}
