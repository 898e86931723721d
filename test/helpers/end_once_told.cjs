// --require'd by a command: it gets SIGTERM in the moment in which it has said what TROUPE_TEST_TOLD matches.
const told = new RegExp(process.env.TROUPE_TEST_TOLD);

for (const stream of [process.stdout, process.stderr]) {
  const write = stream.write.bind(stream);
  stream.write = (text, ...rest) => {
    const drained = write(text, ...rest);
    if (told.test(String(text))) process.kill(process.pid, 'SIGTERM');
    return drained;
  };
}
