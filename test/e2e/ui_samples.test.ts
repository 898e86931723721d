// The list of samples in Chromium: at sizes that people have, while answers are slow and while the run goes on.
import { appendFileSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Page, Route } from 'playwright-core';
import { CHROMIUM, Watched } from '../helpers/chromium';

if (CHROMIUM === null)
  console.log('test/e2e/ui_samples.test.ts is skipped: there is no Chromium (apt-get install chromium)');

const sample = (step: number, index: number): string =>
  JSON.stringify({
    step,
    input: `question ${index}`,
    output: `answer ${step}/${index}`,
    gts: 'x',
    score: index % 2,
    index,
    data_source: `s${index % 3}`,
    response_length: index,
  });

(CHROMIUM === null ? describe.skip : describe)('the list of samples in Chromium', () => {
  const root = mkdtempSync(join(tmpdir(), 'ui-samples-'));
  const file = (id: string, step: number): string => join(root, id, 'samples', `${step}.jsonl`);
  let ui: Watched;

  beforeAll(async () => {
    for (const [id, steps] of [
      ['many', 100],
      ['few', 1],
    ] as const) {
      mkdirSync(join(root, id, 'samples'), { recursive: true });
      writeFileSync(join(root, id, 'metrics.jsonl'), `{"step":${steps},"critic/score/mean":1}\n`);
      for (let step = 1; step <= steps; step++)
        writeFileSync(
          file(id, step),
          Array.from({ length: 1000 }, (_, index) => `${sample(step, index)}\n`).join(''),
        );
    }
    ui = await Watched.open(root);
  });
  afterAll(() => ui?.close());
  afterEach(async () => {
    for (const context of ui.browser.contexts()) await context.close();
    expect(ui.complaints.splice(0)).toEqual([]);
  });

  const chosen = (page: Page, answer: string): Promise<void> =>
    page.locator('.sample').getByText(answer, { exact: true }).waitFor();

  /** Rows are not answered until the function that comes back is called. */
  async function holdRows(page: Page): Promise<() => void> {
    let release = (): void => {};
    const held = new Promise<void>((done) => {
      release = done;
    });
    await page.route('**/api/samples?*', async (route: Route) => {
      await held;
      await route.continue();
    });
    return release;
  }

  test('100 000 samples: a few rows exist, the last can be reached by keys and mouse, filters hold', async () => {
    const page = await ui.page('samples?run=many');
    await page.getByText('100,000 of 100,000 samples').waitFor();
    expect(await page.locator('.row').count()).toBeLessThan(40);
    await page.locator('.list').evaluate((list) => {
      list.scrollTop = list.scrollHeight / 2;
    });
    await page.getByText('answer 50/', { exact: false }).first().waitFor();
    expect(await page.locator('.row').count()).toBeLessThan(40);
    await page.locator('.list').focus();
    await page.keyboard.press('End');
    await page.getByText('answer 1/999').first().waitFor();
    await page.keyboard.press('ArrowUp');
    await page.locator('.sample').getByText('answer 1/998').waitFor();
    expect(await page.locator('.list').getAttribute('aria-activedescendant')).toBe('row-99998');
    await page.getByRole('button', { name: 'Filters' }).click();
    await page.getByLabel('score from').fill('1');
    await page.getByLabel('length to').fill('9');
    await page.getByText('500 of 100,000 samples').waitFor();
    await page.getByLabel('Find text').fill('question 7');
    await page.getByText('100 of 100,000 samples').waitFor();
  });

  test('a row that is not there yet is chosen by a key all the same', async () => {
    const page = await ui.page('samples?run=many');
    await page.getByText('answer 100/0', { exact: true }).waitFor();
    const release = await holdRows(page);
    await page.locator('.list').focus();
    await page.keyboard.press('End');
    await page.locator('#row-99999').waitFor();
    await page.keyboard.press('ArrowUp');
    release();
    await chosen(page, 'answer 1/998');
  });

  test('rows stay while a run goes on, and keys choose among them, until the new ones are there', async () => {
    const page = await ui.page('samples?run=few');
    await page.getByText('answer 1/0', { exact: true }).waitFor();
    const release = await holdRows(page);
    const asked = page.waitForRequest('**/api/samples?*');
    appendFileSync(file('few', 1), `${sample(1, 1000)}\n`);
    await asked;
    expect(await page.locator('#row-0').textContent()).toContain('answer 1/0');
    await page.locator('.list').focus();
    await page.keyboard.press('ArrowDown');
    await chosen(page, 'answer 1/1');
    release();
    await page.getByText('1,001 of 1,001 samples').waitFor();
    await page.keyboard.press('End');
    await chosen(page, 'answer 1/1000');
  });
});
