// Builds the page of `troupe ui` into ui/dist, which the server reads; the package ships it built.
import { defineConfig } from 'vite';

export const config = {
  root: import.meta.dirname ?? new URL('.', import.meta.url).pathname,
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    target: 'es2022',
    // Everything in files of its own: the policy of the server allows nothing inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  logLevel: 'warn',
};

// biome-ignore lint/style/noDefaultExport: Vite reads its configuration from the default export.
export default defineConfig(config);
