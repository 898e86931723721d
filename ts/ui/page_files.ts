// The page as it was built: a few files, read once, compressed once.
import { readdirSync, readFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { TroupeError } from '../errors';
import { packageRoot } from '../install/package_root';

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
};

export interface PageFile {
  type: string;
  body: Buffer;
  gzip: Buffer;
  /** Its name changes with its content. */
  lasting: boolean;
}

export const PAGE_DIRECTORY = join(packageRoot, 'ui', 'dist');

/** By path. @throws TroupeError IO where the page is not built */
export function loadPage(directory = PAGE_DIRECTORY): ReadonlyMap<string, PageFile> {
  const files = new Map<string, PageFile>();
  let names: string[] = [];
  try {
    names = readdirSync(directory, { recursive: true, encoding: 'utf8' });
  } catch {
    // Said below.
  }
  for (const name of names) {
    const type = TYPES[extname(name)];
    if (type === undefined) continue;
    const body = readFileSync(join(directory, name));
    files.set(`/${name}`, { type, body, gzip: gzipSync(body), lasting: name.startsWith('assets') });
  }
  const index = files.get('/index.html');
  if (index === undefined)
    throw new TroupeError(
      'IO',
      `[ui] ${directory} has no index.html: the page is not built, run npm run build`,
    );
  files.set('/', index);
  return files;
}
