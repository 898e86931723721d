import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { imageLimits, imagesWithin, imageTokens } from '../../../ts/planner/prompt_images';
import { VISION_MODEL } from '../../helpers/vision_model';

const within = (tokens: number, leastTokens: number, mostTokens: number): [number, number][] =>
  imagesWithin(tokens, { leastTokens, mostTokens }).map(({ height, width }) => [height, width]);

test('as large as they may be, the rest smaller, until what is left is too small for one', () => {
  expect(within(100, 1, Number.POSITIVE_INFINITY)).toEqual([[10, 10]]);
  expect(within(300, 4, 64)).toEqual([...Array.from({ length: 4 }, () => [8, 8]), [4, 11]]);
  expect(within(3, 4, 64)).toEqual([]);
});

test('of every number of tokens nearly all are of images, in sides of which none is 200 times the other', () => {
  for (let tokens = 1; tokens <= 3000; tokens++) {
    const images = imagesWithin(tokens, { leastTokens: 4, mostTokens: 700 });
    const all = imageTokens(images);
    expect(all).toBeLessThanOrEqual(tokens);
    expect(tokens - all).toBeLessThan(4);
    for (const { height, width } of images) {
      expect(height * width).toBeLessThanOrEqual(700);
      expect(Math.max(height, width)).toBeLessThanOrEqual(200 * Math.min(height, width));
    }
  }
});

test('limits: of the model, those of the configuration before them; a directory without them has none', () => {
  const { config } = loadModelDirectory(VISION_MODEL, 'lm', {});
  const vision = config.vision as NonNullable<typeof config.vision>;
  const none = { min_pixels: null, max_pixels: null };
  // 512 to 4096 pixels, of which a token has 64.
  expect(imageLimits(VISION_MODEL, vision, none)).toEqual({
    leastTokens: 8,
    mostTokens: 64,
    tokenBytes: 192,
  });
  expect(imageLimits(VISION_MODEL, vision, { min_pixels: 640, max_pixels: 1280 })).toMatchObject({
    leastTokens: 10,
    mostTokens: 20,
  });
  expect(imageLimits(__dirname, vision, none)).toMatchObject({
    leastTokens: 1,
    mostTokens: Number.POSITIVE_INFINITY,
  });
});
