// The page of `troupe ui` in a real browser: Debian's Chromium, or that of TROUPE_CHROMIUM.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import type { Server } from 'node:http';
import { join, resolve } from 'node:path';
import { type Browser, type BrowserContextOptions, chromium, type Page, type Request } from 'playwright-core';
import { UiServer } from '../../ts/ui/server';

const ROOT = resolve(__dirname, '../..');
const PLACES = [
  process.env['TROUPE_CHROMIUM'],
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
];

export const CHROMIUM = PLACES.find((path) => path !== undefined && existsSync(path)) ?? null;

/** The page may not be built where only the tests are run. */
function buildPage(): void {
  if (existsSync(join(ROOT, 'ui/dist/index.html'))) return;
  const vite = join(ROOT, 'node_modules/vite/bin/vite.js');
  const { status, stderr } = spawnSync(process.execPath, [vite, 'build', 'ui'], {
    cwd: ROOT,
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`the page could not be built: ${stderr}`);
}

/** A server over `directory` and a browser. */
export class Watched {
  /** What the browser complained of: errors of scripts, and what the Content-Security-Policy refused. */
  readonly complaints: string[] = [];
  /** What each page has asked for and not been answered; the connection for news does not count. */
  private readonly open = new WeakMap<Page, Set<Request>>();

  static async open(directory: string): Promise<Watched> {
    buildPage();
    const server = await UiServer.open({ directory, host: '127.0.0.1', port: 0 });
    const browser = await chromium.launch({ executablePath: CHROMIUM as string, args: ['--no-sandbox'] });
    return new Watched(server, browser);
  }

  private constructor(
    readonly server: UiServer,
    readonly browser: Browser,
  ) {}

  /** A new window at `#/{hash}`, logged in. */
  async page(hash: string, options: BrowserContextOptions = {}): Promise<Page> {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    const page = await context.newPage();
    page.on('pageerror', (error) => this.complaints.push(error.message));
    page.on('console', (message) => {
      if (message.type() === 'error') this.complaints.push(message.text());
    });
    const open = new Set<Request>();
    this.open.set(page, open);
    page.on('request', (request) => {
      if (!request.url().includes('/api/live')) open.add(request);
    });
    const done = (request: Request): void => {
      open.delete(request);
    };
    page.on('requestfinished', done);
    page.on('requestfailed', done);
    await page.goto(this.server.address);
    await page.goto(`${this.server.origin}/#/${hash}`);
    return page;
  }

  /** Waits until a page shows something, and all that it asked for has come and been drawn. */
  async settled(page: Page): Promise<void> {
    const drawn = `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`;
    await until(page, `!['', '…'].includes(document.querySelector('main')?.textContent?.trim() ?? '')`);
    // What comes may ask for more: it is still when nothing has come for some frames, however long they take.
    for (let still = 0; still < 4; ) {
      await page.evaluate(drawn);
      still = this.open.get(page)?.size === 0 ? still + 1 : 0;
      if (still === 0) await page.waitForTimeout(20);
    }
  }

  /** Ends all connections, as a network does; the server stays. */
  disconnect(): void {
    (this.server as unknown as { server: Server }).server.closeAllConnections();
  }

  async close(): Promise<void> {
    await this.browser.close();
    await this.server.close();
  }
}

/** Waits until an expression holds in the page. Asked from outside: the page's policy lets nobody evaluate strings in it. */
export async function until(page: Page, expression: string): Promise<void> {
  const end = Date.now() + 30_000;
  while (!(await page.evaluate(expression))) {
    if (Date.now() > end) throw new Error(`never came true: ${expression}`);
    await page.waitForTimeout(50);
  }
}

const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

/** What is in the way of people with other eyes or hands, by WCAG 2.2 A and AA: "rule: where". */
export async function barriers(page: Page): Promise<string[]> {
  // In the page, but not by it: its policy refuses scripts that are not its own.
  await page.evaluate(AXE);
  return await page.evaluate<string[]>(`(async () => {
    const { violations } = await axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] });
    return violations.flatMap(({ id, nodes }) =>
      nodes.slice(0, 3).map(({ html, failureSummary }) => id + ': ' + html.slice(0, 160) + ' ' + (failureSummary ?? '')),
    );
  })()`);
}
