declare module 'node-gyp-build' {
  const load: {
    /** The path of the addon for the package at `directory`; throws when there is none. */
    resolve(directory: string): string;
  };
  export = load;
}
