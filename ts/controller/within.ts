/** Waits for the promise, but no longer than `ms`: whether it has settled. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  const inTime = await Promise.race([promise.then(() => true), timeout]);
  clearTimeout(timer);
  return inTime;
}
