// The page of `troupe ui` in Chromium: every page of it, live, with hostile texts, at sizes that people have.
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { barriers, CHROMIUM, until, Watched } from '../helpers/chromium';
import { TRAJECTORY, writeLongMetrics, writeRun } from '../helpers/synthetic_runs.mjs';

const HOSTILE = [
  '<script>document.title = "taken over"</script>',
  '<img src=x onerror="document.title = \'taken over\'">',
  '<a href="javascript:document.title = 1">link</a><iframe srcdoc="<b>"></iframe>',
  '</div></main><h1>not a heading</h1>{{7*7}}\u202e\u0000',
].join('\n');

const PAGES = {
  overview: '',
  curves: 'curves?run=math/a',
  'several runs': 'curves?run=math/a&run=math/b',
  'large curve': 'curves?run=math/a&metric=critic/score/mean',
  samples: 'samples?run=math/a',
  trajectory: 'samples?run=agent&sample=samples/3.jsonl@0',
  'one prompt': 'samples?run=math/a&same=samples/validation_10.jsonl@0',
  tokens: 'tokens?run=math/a',
  time: 'time?run=math/a',
  mismatch: 'mismatch?run=math/a',
  events: 'events?run=math/a',
  plan: 'plan?run=math/a',
  configuration: 'config?run=math/a',
  differences: 'config?run=math/a&run=math/b',
};

/** Adds up how far things move that nobody has touched. */
const WATCH_SHIFTS = `globalThis.moved = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) globalThis.moved += entry.value;
}).observe({ type: 'layout-shift', buffered: true });`;
/** Whether the newest value of the score is this. */
const lastIs = (text: string): string =>
  `document.querySelector('[data-metric="critic/score/mean"] .last')?.textContent === '${text}'`;
/** Texts beyond the edge of a box that neither scrolls nor says that it goes on. */
const CUT_OFF = `[...document.querySelectorAll('main *')].filter((element) => {
  const style = getComputedStyle(element);
  return !element.matches('.hidden') && style.overflowX === 'hidden' && style.textOverflow !== 'ellipsis' && element.clientWidth > 0 &&
    element.scrollWidth > element.clientWidth + 1;
}).map((element) => element.className)`;
const TAB_SEEN = `(() => {
  const [tab, bar] = ['.tabs [aria-current]', '.tabs'].map((name) => document.querySelector(name).getBoundingClientRect());
  return tab.left >= bar.left && tab.right <= bar.right + 1;
})()`;
const DRAWN = `document.querySelector('.chart')?.hasAttribute('data-drawn')`;

if (CHROMIUM === null)
  console.log('test/e2e/ui_page.test.ts is skipped: there is no Chromium (apt-get install chromium)');

(CHROMIUM === null ? describe.skip : describe)('the page in Chromium', () => {
  const root = mkdtempSync(join(tmpdir(), 'ui-page-'));
  const run = (id: string, ...more: string[]): string => join(root, id, ...more);
  let ui: Watched;

  beforeAll(async () => {
    writeRun(run('math/a'), { steps: 120 });
    writeRun(run('math/b'), { steps: 80, seed: 2, state: 'running' });
    mkdirSync(run('agent', 'samples'), { recursive: true });
    writeFileSync(run('agent', 'metrics.jsonl'), '{"step":3,"critic/score/mean":1}\n');
    writeFileSync(run('agent', 'samples/3.jsonl'), `${TRAJECTORY}\n`);
    ui = await Watched.open(root);
  });
  afterAll(() => ui?.close());
  afterEach(async () => {
    for (const context of ui.browser.contexts()) await context.close();
    expect(ui.complaints.splice(0)).toEqual([]);
  });

  test.each(Object.entries(PAGES))(
    '%s: complete, without barriers, wide and light, dark and on a phone; nothing moves',
    async (_, hash) => {
      for (const [colorScheme, viewport] of [
        ['light', { width: 1280, height: 800 }],
        ['dark', { width: 390, height: 844 }],
      ] as const) {
        const page = await ui.page(hash, { colorScheme, viewport, reducedMotion: 'reduce' });
        await page.evaluate(WATCH_SHIFTS);
        await ui.settled(page);
        expect(await page.locator('.note').count()).toBe(0);
        expect((await page.locator('main').textContent())?.length).toBeGreaterThan(40);
        expect(await barriers(page)).toEqual([]);
        expect(await page.evaluate('document.documentElement.scrollWidth - innerWidth')).toBeLessThanOrEqual(
          0,
        );
        expect(await page.evaluate(CUT_OFF)).toEqual([]);
        // Where one is can be seen among the tabs.
        if (hash !== '') expect(await page.evaluate(TAB_SEEN)).toBe(true);
        // "Good" by Web Vitals.
        expect(await page.evaluate('globalThis.moved')).toBeLessThan(0.1);
        await page.context().close();
      }
    },
  );

  test('a wrong token is told where the right one is', async () => {
    const page = await (await ui.browser.newContext()).newPage();
    const answer = await page.goto(`${ui.server.origin}/?token=wrong`);
    expect([answer?.status(), await page.locator('body').textContent()]).toEqual([
      401,
      expect.stringContaining('Open the address'),
    ]);
    expect((await page.goto(`${ui.server.origin}/api/runs`))?.status()).toBe(401);
    // The browser says so, too.
    ui.complaints.length = 0;
  });

  test('the token leaves the address', async () => {
    const page = await ui.page('');
    expect(page.url()).not.toContain('token');
    expect(await page.evaluate('document.cookie')).toBe('');
  });

  test('what a run writes appears without being asked for', async () => {
    const page = await ui.page('curves?run=math/b');
    const value = page.locator('[data-metric="critic/score/mean"] .last').first();
    await value.waitFor();
    const before = await value.textContent();
    appendFileSync(run('math/b', 'metrics.jsonl'), '{"step":81,"critic/score/mean":0.123');
    // What is written after half a line is there: that line has been looked at, too.
    appendFileSync(run('math/b', 'events.jsonl'), '{"time":1,"step":81,"kind":"warning","message":"w"}\n');
    await until(page, `[...document.querySelectorAll('.facts > div')].at(-1)?.textContent?.includes('2')`);
    await ui.settled(page);
    expect(await value.textContent()).toBe(before);
    appendFileSync(run('math/b', 'metrics.jsonl'), '4}\n');
    await until(page, lastIs('0.1234'));
    // The run goes on from an earlier checkpoint: its file is another one, with fewer lines.
    const lines = readFileSync(run('math/b', 'metrics.jsonl'), 'utf8').split('\n').slice(0, 50);
    writeFileSync(run('math/b', 'new'), `${lines.join('\n')}\n{"step":51,"critic/score/mean":0.777}\n`);
    renameSync(run('math/b', 'new'), run('math/b', 'metrics.jsonl'));
    await until(page, lastIs('0.777'));
    await page.goto(`${ui.server.origin}/#/`);
    await page.getByText('math/b').waitFor();
    writeRun(run('new-one'), { steps: 5 });
    await page.getByText('new-one').waitFor();
    // A validation comes after the other numbers of its step.
    const row = page.getByRole('row').filter({ hasText: 'new-one' });
    appendFileSync(run('new-one', 'metrics.jsonl'), '{"step":5,"val-core/math/acc/mean@4":0.4321}\n');
    await row.getByText('0.4321').waitFor();
  });

  test('after a connection was lost everything is asked for again', async () => {
    for (const [hash, question] of [
      ['', '/api/runs?'],
      ['curves?run=math/a', '/api/series?'],
      ['events?run=math/a', '/api/events?'],
    ] as const) {
      const page = await ui.page(hash);
      await page.getByRole('status').getByText('live').waitFor();
      await ui.settled(page);
      // All that there is to tell has been told.
      await page.waitForTimeout(1000);
      await ui.settled(page);
      const again = page.waitForRequest((request) => request.url().includes(question), { timeout: 20_000 });
      ui.disconnect();
      await again;
      await page.getByRole('status').getByText('live').waitFor();
      await page.context().close();
    }
    // The browser says that connections ended.
    ui.complaints.length = 0;
  });

  test('curves that come into view together are one question', async () => {
    const page = await ui.page('');
    const asked: string[] = [];
    page.on('request', (request) => {
      if (request.url().includes('/api/series')) asked.push(request.url());
    });
    await page.goto(`${ui.server.origin}/#/curves?run=math/a`);
    await until(page, `document.querySelectorAll('.chart[data-drawn]').length >= 4`);
    expect(new URL(asked[0] as string).searchParams.getAll('name').length).toBeGreaterThanOrEqual(4);
    // The first news say what is known.
    await until(page, `document.querySelector('[role="status"]')?.textContent === 'live'`);
    await page.waitForTimeout(1000);
    await ui.settled(page);
    expect(asked.filter((address) => asked.indexOf(address) !== asked.lastIndexOf(address))).toEqual([]);
  });

  test('a text full of HTML and scripts is text', async () => {
    const row = {
      step: 7,
      input: HOSTILE,
      output: HOSTILE,
      gts: HOSTILE,
      score: 1,
      data_source: HOSTILE,
      [HOSTILE]: HOSTILE,
      index: 0,
    };
    mkdirSync(run('hostile', 'samples'), { recursive: true });
    mkdirSync(run('hostile', 'tokens'), { recursive: true });
    writeFileSync(
      run('hostile', 'metrics.jsonl'),
      `${JSON.stringify({ step: 7, [HOSTILE]: 1, 'critic/score/mean': 1 })}\n`,
    );
    writeFileSync(run('hostile', 'samples/7.jsonl'), `${JSON.stringify(row)}\n`);
    const token = {
      step: 7,
      index: 0,
      input: HOSTILE,
      score: 1,
      length: 1,
      tokens: [HOSTILE],
      ids: [1],
      mask: [1],
      old_log_probs: [-1],
      data_source: HOSTILE,
    };
    writeFileSync(run('hostile', 'tokens/7.jsonl'), `${JSON.stringify(token)}\n`);
    writeFileSync(
      run('hostile', 'events.jsonl'),
      `${JSON.stringify({ time: 1, step: 7, kind: 'warning', message: HOSTILE })}\n`,
    );
    writeFileSync(run('hostile', 'config.json'), JSON.stringify({ trainer: { name: HOSTILE } }));
    for (const [hash, where] of [
      ['samples?run=hostile&sample=samples/7.jsonl@0', '.sample'],
      ['samples?run=hostile&same=samples/7.jsonl@0', '.across'],
      ['tokens?run=hostile', '.tokens'],
      ['events?run=hostile', '.events'],
      ['config?run=hostile', '.config'],
      ['curves?run=hostile&find=onerror', '.charts'],
    ] as const) {
      const page = await ui.page(hash);
      await page.getByText('<img src=x onerror=', { exact: false }).first().waitFor({ state: 'attached' });
      await ui.settled(page);
      expect([hash, await page.title()]).toEqual([hash, expect.stringContaining('Troupe')]);
      expect([
        hash,
        await page.locator(`${where} :is(script, img, iframe, a[href^="javascript"])`).count(),
      ]).toEqual([hash, 0]);
      expect(await page.getByRole('heading', { name: 'not a heading', exact: true }).count()).toBe(0);
      await page.context().close();
    }
  });

  test('1 000 000 points: the peak stays, zoom by mouse and keys', async () => {
    writeLongMetrics(run('long'), 1_000_000, 654_321);
    const page = await ui.page('curves?run=long&metric=critic/score/mean');
    const chart = page.locator('.chart');
    await until(page, DRAWN);
    const series = async (): Promise<{ y: number[]; total: number }> => {
      const answer = page.waitForResponse((response) => response.url().includes('/api/series'));
      await page.keyboard.press('+');
      return (await (await answer).json())[0].series[0];
    };
    await chart.focus();
    expect(await series()).toMatchObject({ total: expect.any(Number), y: expect.arrayContaining([9]) });
    const box = (await page.locator('.u-over').boundingBox())!;
    const zoomed = page.waitForResponse((response) => response.url().includes('/api/series'));
    await page.mouse.move(box.x + box.width * 0.2, box.y + 50);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.4, box.y + 60, { steps: 4 });
    await page.mouse.up();
    expect((await (await zoomed).json())[0].series[0].total).toBeLessThan(200_000);
    const back = page.waitForResponse(
      (response) => response.url().includes('/api/series') && !response.url().includes('from='),
    );
    await chart.focus();
    await page.keyboard.press('Escape');
    expect((await (await back).json())[0].series[0].total).toBe(1_000_000);
  });

  test('a zoom is drawn once, with its answer; with the points that are there when that takes long', async () => {
    const page = await ui.page('curves?run=math/a&metric=critic/score/mean');
    await page.clock.install();
    await page.reload();
    await until(page, DRAWN);
    await ui.settled(page);
    await page.locator('.chart').focus();
    await page.clock.pauseAt(Date.now() + 60_000);
    await page.evaluate(`globalThis.drawn = 0;
      new MutationObserver(() => globalThis.drawn++).observe(document.querySelector('.chart'), { attributeFilter: ['data-drawn'] })`);
    let answer = (): void => {};
    const held = new Promise<void>((done) => {
      answer = done;
    });
    await page.route('**/api/series?*', async (route) => {
      await held;
      await route.continue();
    });
    const asked = page.waitForRequest('**/api/series?*');
    await page.keyboard.press('+');
    await asked;
    expect(await page.evaluate('globalThis.drawn')).toBe(0);
    await page.clock.runFor(100);
    expect(await page.evaluate('globalThis.drawn')).toBe(1);
    answer();
    await until(page, 'globalThis.drawn === 2');
    await page.unroute('**/api/series?*');
    await page.keyboard.press('+');
    await until(page, 'globalThis.drawn >= 3');
    await page.clock.runFor(100);
    expect(await page.evaluate('globalThis.drawn')).toBe(3);
  });

  test('curves as PNG, SVG and CSV', async () => {
    const page = await ui.page('curves?run=math/a&run=math/b&metric=critic/score/mean');
    await until(page, DRAWN);
    const saved = async (kind: string): Promise<Buffer> => {
      const download = page.waitForEvent('download');
      await page.getByRole('button', { name: kind }).click();
      const file = await download;
      expect(file.suggestedFilename()).toBe(`critic_score_mean.${kind.toLowerCase()}`);
      return readFileSync(await file.path());
    };
    expect((await saved('PNG')).subarray(1, 4).toString()).toBe('PNG');
    const svg = (await saved('SVG')).toString();
    expect(svg).toMatch(/^<svg [\s\S]*<\/svg>$/);
    expect(svg).toContain('math/b');
    const csv = (await saved('CSV')).toString().trim().split('\r\n');
    expect(csv[0]).toBe('run,step,value,smoothed');
    expect(csv.filter((line) => line.startsWith('math/a,'))).toHaveLength(120);
    // Of a long curve every value, not those on the screen.
    writeLongMetrics(run('long'), 50_000, 30_000);
    await page.goto(`${ui.server.origin}/#/curves?run=long&metric=critic/score/mean`);
    await until(page, `document.title.includes('long') && ${DRAWN}`);
    expect((await saved('CSV')).toString().trim().split('\r\n')).toHaveLength(50_001);
  });

  test('a token says what its colour stands for where it is, by mouse and by keys', async () => {
    const page = await ui.page('tokens?run=math/a');
    const tip = page.locator('.token-tip');
    await page.locator('.tokens span').nth(3).hover();
    expect(await tip.textContent()).toMatch(/^log-prob -?[\d.]+p [\d.]+ %$/);
    await page.locator('.token-facts').hover();
    await tip.waitFor({ state: 'detached' });
    await page.locator('.tokens').focus();
    await page.keyboard.press('End');
    expect(await page.locator('.tokens .at').getAttribute('data-i')).toBe('149');
    await tip.waitFor();
  });

  test('by keys alone: choose two runs, compare them, change colours', async () => {
    appendFileSync(run('math/b', 'metrics.jsonl'), '{"step":200,"critic/of_b":1}\n');
    const page = await ui.page('', { colorScheme: 'light' });
    await page.getByLabel('Compare math/a').focus();
    await page.keyboard.press('Space');
    await page.getByLabel('Compare math/b').focus();
    await page.keyboard.press('Space');
    await page.getByRole('button', { name: 'Compare 2' }).focus();
    await page.keyboard.press('Enter');
    await page.getByRole('list', { name: 'Runs compared' }).waitFor();
    // Of one of them alone, which is not the first.
    await page.locator('[data-metric="critic/of_b"]').waitFor();
    const theme = (): Promise<unknown> => page.evaluate('document.documentElement.dataset.theme');
    expect(await theme()).toBe('light');
    await page.getByRole('button', { name: 'Dark colours' }).focus();
    await page.keyboard.press('Enter');
    expect(await theme()).toBe('dark');
    await page.reload();
    expect(await theme()).toBe('dark');
  });
});
