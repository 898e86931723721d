// The same package from CommonJS: the types resolve, and both module systems see one implementation.
import troupe = require('troupe');

async function main(directory: string): Promise<void> {
  const critic: troupe.Critic = await troupe.Critic.create({ model: directory, numThreads: 1 });
  try {
    const batch: troupe.Batch = troupe.Batch.fromSequences([[1, 2, 3]], [[4, 5]]);
    const { values }: { values: Float32Array } = await critic.computeValues(batch);
    if (values.length !== 2 || !values.every(Number.isFinite)) throw new Error(`values: ${values.join(' ')}`);
  } finally {
    await critic.close();
  }
  const moduleExports = (await import('troupe')) as typeof troupe;
  if (moduleExports.Critic !== troupe.Critic) throw new Error('import and require give different classes');
  console.log('smoke: ok');
}

main(process.argv[2] ?? 'critic').catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
