// Pictures of one colour, to be named.
import sharp from 'sharp';

/** By the word for each. */
export const COLOURS: Readonly<Record<string, [number, number, number]>> = {
  r: [220, 40, 40],
  g: [40, 200, 40],
  b: [40, 40, 220],
};

/** A picture of one colour, darker and lighter by place, of a size of its own. */
async function picture(colour: string, i: number): Promise<string> {
  const [height, width] = [24 + ((i * 7) % 19), 24 + ((i * 5) % 23)];
  const pixels = Buffer.alloc(height * width * 3);
  for (let p = 0; p < height * width; p++)
    for (let c = 0; c < 3; c++)
      pixels[3 * p + c] = (COLOURS[colour]?.[c] as number) + ((p * 13 + i * 29 + c * 7) % 35);
  const png = await sharp(pixels, { raw: { height, width, channels: 3 } })
    .png()
    .toBuffer();
  return `data:image/png;base64,${png.toString('base64')}`;
}

/** Prompts with one picture each, those from `first` on. */
export async function rows(count: number, first: number): Promise<Record<string, unknown>[]> {
  return Promise.all(
    Array.from({ length: count }, async (_, k) => {
      const colour = 'rgb'[k % 3] as string;
      return {
        data_source: 'colours',
        prompt: [{ role: 'user', content: 'see <image>?' }],
        images: [await picture(colour, first + k)],
        reward_model: { style: 'rule', ground_truth: colour },
        extra_info: { index: k },
      };
    }),
  );
}

/** The same for supervised fine-tuning. */
export const examples = (all: readonly Record<string, unknown>[]): Record<string, unknown>[] =>
  all.map(({ prompt, images, reward_model: truth }) => ({
    prompt,
    images,
    response: (truth as { ground_truth: string }).ground_truth,
  }));
