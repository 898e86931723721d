import { bool, byteSize, count, field, int, name, num, orNull, str } from './field';

/** Options of the loggers that `trainer.logger` names; ours, apart from what verl takes from the environment. */
export const loggingSection = {
  tensorboard: {
    dir: field(
      orNull(str),
      null,
      'Directory of the event files; null: TENSORBOARD_DIR, else tensorboard/ in the run directory.',
    ),
  },
  wandb: {
    base_url: field(orNull(str), null, 'Server; null: WANDB_BASE_URL, else https://api.wandb.ai.'),
    entity: field(orNull(name), null, 'User or team; null: WANDB_ENTITY, else that of the API key.'),
    project: field(orNull(name), null, 'Project; null: WANDB_PROJECT, else trainer.project_name.'),
  },
  mlflow: {
    tracking_uri: field(orNull(str), null, 'Server, http:// or https://; null: MLFLOW_TRACKING_URI.'),
  },
  prometheus: {
    host: field(str, '127.0.0.1', 'Address that the endpoint listens on.'),
    port: field(int(0, 65535), 0, 'Port of the endpoint; 0: any free one, printed at the start.'),
  },
  trace: field(bool, true, 'Write trace.jsonl: what the trainer and each rank were at, and when.'),
  tokens: {
    samples: field(
      count('sequences', 0),
      2,
      'troupe train: responses of a step of which all that is known of each token is written to tokens/; 0: none.',
    ),
    every: field(int(1), 5, 'Steps between two for which that is done; the first is one of them.'),
    max_tokens: field(int(1), 1024, 'Tokens of a response, from its beginning.'),
    after_update: field(
      bool,
      false,
      'Also their log-probs after the update, which takes one more forward pass over them.',
    ),
  },
  workers: {
    starts: field(
      int(0, 100_000),
      10,
      'Starts of the workers whose output is kept in logs/ of the run directory, the last ones; 0: none.',
    ),
    max_size: field(byteSize, 16 * 2 ** 20, 'Of the output of one worker; the oldest of more is dropped.'),
  },
  ui: {
    host: field(str, '127.0.0.1', 'Address that the page of trainer.ui is served at.'),
    port: field(int(0, 65535), 0, 'Its port; 0: any free one, printed at the start.'),
  },
  request_timeout: field(num(0.1, 600), 10, 'Seconds that wandb or mlflow have to answer a request.'),
  flush_timeout: field(num(0, 600), 10, 'Seconds at the end of a run for what wandb or mlflow lack.'),
};
