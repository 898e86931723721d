// What npm start runs: the arithmetic example, or with --agent the one of agents.
const agent = process.argv.includes('--agent');
await import(agent ? './agent/run.mjs' : './arithmetic/run.mjs');
