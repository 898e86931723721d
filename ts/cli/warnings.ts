// Some releases of Node say that loading an ES module with require() is experimental. We need nothing else of it, and
// nobody who runs a command can do anything about it; every other warning is printed as before.
const printers = process.listeners('warning');
process.removeAllListeners('warning');
process.on('warning', (warning) => {
  if (warning.name === 'ExperimentalWarning' && /\brequire\(\)|ES Module/.test(warning.message)) return;
  for (const print of printers) print.call(process, warning);
});

export {};
