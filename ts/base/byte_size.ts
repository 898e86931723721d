const UNITS: Readonly<Record<string, number>> = {
  B: 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KIB: 2 ** 10,
  MIB: 2 ** 20,
  GIB: 2 ** 30,
  TIB: 2 ** 40,
};

/** "80GiB", "80 GB" or "81920MiB" in bytes; null when the text is no positive size with a unit. */
export function parseByteSize(text: string): number | null {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b)\s*$/i.exec(text);
  if (match === null) return null;
  const bytes = Number(match[1]) * (UNITS[(match[2] as string).toUpperCase()] ?? Number.NaN);
  return bytes >= 1 && Number.isSafeInteger(Math.floor(bytes)) ? Math.floor(bytes) : null;
}

/** In the largest binary unit that leaves a number of at least 1: "12.50 GiB". */
export function formatBytes(bytes: number): string {
  if (bytes < 0) return `-${formatBytes(-bytes)}`;
  for (const unit of ['TiB', 'GiB', 'MiB', 'KiB']) {
    const size = UNITS[unit.toUpperCase()] as number;
    if (bytes >= size) return `${(bytes / size).toFixed(2)} ${unit}`;
  }
  return `${bytes} B`;
}
