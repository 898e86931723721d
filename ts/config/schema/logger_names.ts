/** What `trainer.logger` may name. `file` and `jsonl` are the JSONL files that are always written. */
export const LOGGER_NAMES: readonly string[] = [
  'console',
  'file',
  'jsonl',
  'tensorboard',
  'wandb',
  'mlflow',
  'prometheus',
];

/** Loggers of verl that Troupe does not have. */
export const UNAVAILABLE_LOGGERS: readonly string[] = [
  'swanlab',
  'vemlp_wandb',
  'clearml',
  'trackio',
  'rl_insight',
];
