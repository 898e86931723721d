// The page as it was built: a few files, read once, compressed once, when they are first asked for.
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

export class PageFile {
  #gzip: Buffer | null = null;

  constructor(
    readonly type: string,
    readonly body: Buffer,
    /** Its name changes with its content. */
    readonly lasting: boolean,
  ) {}

  get gzip(): Buffer {
    this.#gzip ??= gzipSync(this.body);
    return this.#gzip;
  }
}

const PAGE_DIRECTORY = join(packageRoot, 'ui', 'dist');

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
    files.set(`/${name}`, new PageFile(type, readFileSync(join(directory, name)), name.startsWith('assets')));
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
