/** Loggers besides the JSONL files. */
export const LOGGER_BACKENDS = ['console', 'tensorboard', 'wandb', 'mlflow', 'prometheus'] as const;

/** What `trainer.logger` may name. `file` and `jsonl` are the JSONL files that are always written. */
export const LOGGER_NAMES: readonly string[] = ['console', 'file', 'jsonl', ...LOGGER_BACKENDS.slice(1)];

/** Loggers of verl that Troupe does not have. */
export const UNAVAILABLE_LOGGERS: readonly string[] = [
  'swanlab',
  'vemlp_wandb',
  'clearml',
  'trackio',
  'rl_insight',
];
