// The speed of the page of `troupe ui` in Chromium: node bench/ui.mjs [--runs 500] [--chromium PATH]. See docs/ui.md. The browser: that of
// --chromium, else of TROUPE_CHROMIUM, else Debian's.
import { spawn } from 'node:child_process';
import {
  appendFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { chromium } from 'playwright-core';
import { commandLine } from '../scripts/command_line.mjs';
import { writeLongMetrics, writeRun } from '../test/helpers/synthetic_runs.mjs';
import { median } from './measure.mjs';
import { keepOwnPriority, longestWait, waits } from './threads.mjs';

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), '..');
const { values: args } = commandLine({
  options: {
    runs: { type: 'string', least: 1, default: '500' },
    chromium: { type: 'string', default: process.env.TROUPE_CHROMIUM ?? '/usr/bin/chromium' },
  },
});

if (!existsSync(args.chromium)) {
  console.error(
    `there is no Chromium at ${args.chromium}: install it (apt-get install chromium), or give --chromium PATH`,
  );
  process.exit(2);
}

const say = (what, value) => console.log(`${what.padEnd(72)} ${value}`);
const ms = (value) => `${value.toFixed(0)} ms`;

const root = mkdtempSync(join(tmpdir(), 'ui-bench-'));
const many = join(root, 'many');

function prepare() {
  writeRun(join(root, 'one/long'), { steps: 10_000 });
  writeLongMetrics(join(root, 'one/points'), 1_000_000, 654_321);
  mkdirSync(join(root, 'one/texts/samples'), { recursive: true });
  writeFileSync(join(root, 'one/texts/metrics.jsonl'), '{"step":100,"critic/score/mean":1}\n');
  for (let step = 1; step <= 100; step++) {
    const rows = Array.from({ length: 1000 }, (_, i) =>
      JSON.stringify({
        step,
        input: `question ${i}`,
        output: `answer ${step}/${i} ${'and more '.repeat(30)}`,
        gts: 'x',
        score: i % 2,
        index: i,
        data_source: 'math',
        response_length: i,
      }),
    );
    writeFileSync(join(root, `one/texts/samples/${step}.jsonl`), `${rows.join('\n')}\n`);
  }
  // The files of one run under many names.
  for (let i = 0; i < Number(args.runs); i++) {
    const directory = join(many, `run-${i}`);
    mkdirSync(directory, { recursive: true });
    for (const name of ['metrics.jsonl', 'timings.jsonl', 'events.jsonl', 'config.json'])
      linkSync(join(root, 'one/long', name), join(directory, name));
  }
}

/** The command, and what it prints. */
async function serve(directory) {
  const started = performance.now();
  const child = spawn(process.execPath, [join(ROOT, 'dist/cli.js'), 'ui', directory, '--port', '0'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const address = await new Promise((done) => {
    child.stdout.on('data', (text) => {
      const found = /http:\S+/.exec(String(text));
      if (found) done(found[0]);
    });
  });
  return {
    child,
    address,
    origin: new URL(address).origin,
    seconds: (performance.now() - started) / 1000,
    started,
  };
}

async function until(page, expression) {
  while (!(await page.evaluate(expression))) await new Promise((done) => setTimeout(done, 5));
}

/** Milliseconds from the navigation to the first paint, and to the first curve. */
async function opened(browser, server, hash) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const page = await context.newPage();
  // The cookie alone: nothing of the page is there yet.
  await context.request.get(server.address, { maxRedirects: 0 });
  await page.goto(`${server.origin}/#/${hash}`);
  await until(page, `document.querySelector('.chart[data-drawn], .run-rows .run') !== null`);
  const drawn = await page.evaluate(
    `Number(document.querySelector('.chart')?.dataset.drawn ?? performance.now())`,
  );
  const paint = await page.evaluate(`performance.getEntriesByName('first-contentful-paint')[0].startTime`);
  await context.close();
  return { paint, drawn };
}

async function openings(browser) {
  for (const [directory, hash, what] of [
    [join(root, 'one'), 'curves?run=long', 'a run of 10 000 steps'],
    [many, '', `${args.runs} runs of 10 000 steps`],
  ]) {
    const found = { start: [], first: [], drawn: [], again: [] };
    for (let i = 0; i < 5; i++) {
      const server = await serve(directory);
      const cold = await opened(browser, server, hash);
      const warm = await opened(browser, server, hash);
      found.start.push(1000 * server.seconds);
      found.first.push(cold.paint);
      found.drawn.push(cold.drawn);
      found.again.push(warm.drawn);
      server.child.kill();
    }
    say(`${what}: the command, until its address is printed`, ms(median(found.start)));
    say(`${what}: from opening to the first paint`, ms(median(found.first)));
    say(`${what}: from opening to the first rows or curve, files not yet read`, ms(median(found.drawn)));
    say(`${what}: the same again`, ms(median(found.again)));
  }
}

async function pageAt(browser, server, hash) {
  const page = await (await browser.newContext({ viewport: { width: 1280, height: 800 } })).newPage();
  await page.goto(server.address);
  await page.goto(`${server.origin}/#/${hash}`);
  return page;
}

async function liveUpdates(browser, server) {
  const page = await pageAt(browser, server, 'curves?run=long');
  const last = `document.querySelector('[data-metric="critic/score/mean"] .last')?.textContent`;
  await until(page, `${last} !== undefined && ${last} !== ''`);
  const found = [];
  for (let i = 1; i <= 20; i++) {
    await new Promise((done) => setTimeout(done, 137));
    const value = (2 + i / 1000).toFixed(3);
    const started = performance.now();
    appendFileSync(
      join(root, 'one/long/metrics.jsonl'),
      `${JSON.stringify({ step: 10_000 + i, 'critic/score/mean': Number(value) })}\n`,
    );
    await until(page, `${last} === String(${Number(value)})`);
    found.push(performance.now() - started);
  }
  say(
    'from a line written to its value on the page: median, largest of 20',
    `${ms(median(found))}, ${ms(Math.max(...found))}`,
  );
  await page.context().close();
}

async function scrolling(browser, server) {
  const page = await pageAt(browser, server, 'samples?run=texts');
  await until(page, `document.querySelectorAll('.row').length > 5`);
  const frames = await page.evaluate(`new Promise((done) => {
    const list = document.querySelector('.list');
    const times = [];
    const begin = performance.now();
    const frame = (now) => {
      times.push(now);
      list.scrollTop += 60;
      if (now - begin < 4000) requestAnimationFrame(frame);
      else done(times);
    };
    requestAnimationFrame(frame);
  })`);
  const gaps = frames
    .slice(1)
    .map((time, i) => time - frames[i])
    .toSorted((a, b) => a - b);
  const rate = (1000 * (frames.length - 1)) / (frames.at(-1) - frames[0]);
  say(
    '100 000 samples scrolled for 4 s: frames a second; 99 of 100 within',
    `${rate.toFixed(1)}; ${gaps[Math.floor(gaps.length * 0.99)].toFixed(1)} ms`,
  );
  await page.context().close();
}

async function zooming(browser, server) {
  const page = await pageAt(browser, server, 'curves?run=points&metric=critic/score/mean');
  await until(page, `document.querySelector('.chart')?.hasAttribute('data-drawn')`);
  await page.locator('.chart').focus();
  // When the frame with the new curve has been painted, not when it has been drawn.
  await page.evaluate(`new MutationObserver(() => requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { globalThis.shown = performance.now(); };
    port2.postMessage(null);
  })).observe(document.querySelector('.chart'), { attributes: true, attributeFilter: ['data-drawn'] })`);
  const found = [];
  for (let i = 0; i < 48; i++) {
    const key = ['+', '+', 'ArrowRight', '-', '-', '0'][i % 6];
    await page.evaluate(`performance.clearResourceTimings();
      addEventListener('keydown', () => { globalThis.pressed = performance.now(); }, { capture: true, once: true })`);
    const answer = page.waitForResponse((response) => response.url().includes('/api/series'));
    const before = waits();
    await page.keyboard.press(key);
    await (await answer).finished();
    await new Promise((done) => setTimeout(done, 250));
    const { total, answered } = await page.evaluate(`(() => {
      const { responseEnd } = performance.getEntriesByType('resource').findLast(({ name }) => name.includes('/api/series'));
      return { total: globalThis.shown - globalThis.pressed, answered: responseEnd - globalThis.pressed };
    })()`);
    found.push({ total, answered, waited: longestWait(before, waits()) });
  }
  const worst = found.toSorted((a, b) => b.total - a.total)[0];
  say(
    'zoom into 1 000 000 points, from the key to the painted curve: median, largest of 48',
    `${ms(median(found.map(({ total }) => total)))}, ${ms(worst.total)}`,
  );
  say(
    '  of the largest: until the answer was there; what one thread waited for a core',
    `${ms(worst.answered)}; ${ms(worst.waited)}`,
  );
  await page.context().close();
}

function sizes() {
  const directory = join(ROOT, 'ui/dist');
  const files = readdirSync(directory, { recursive: true, withFileTypes: true }).filter((entry) =>
    entry.isFile(),
  );
  const bytes = files.reduce(
    (sum, { parentPath, name }) => sum + gzipSync(readFileSync(join(parentPath, name)), { level: 9 }).length,
    0,
  );
  say('the page, compressed', `${(bytes / 1000).toFixed(1)} kB in ${files.length} files`);
}

const usualPriorities = keepOwnPriority();
try {
  sizes();
  prepare();
  const browser = await chromium.launch({ executablePath: args.chromium, args: ['--no-sandbox'] });
  await openings(browser);
  const server = await serve(join(root, 'one'));
  await liveUpdates(browser, server);
  await scrolling(browser, server);
  await zooming(browser, server);
  server.child.kill();
  await browser.close();
} finally {
  usualPriorities();
  rmSync(root, { recursive: true, force: true });
}
