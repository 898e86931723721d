import { field, int, num, orNull, str } from './field';

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
    entity: field(orNull(str), null, 'User or team; null: WANDB_ENTITY, else that of the API key.'),
    project: field(orNull(str), null, 'Project; null: WANDB_PROJECT, else trainer.project_name.'),
  },
  mlflow: {
    tracking_uri: field(orNull(str), null, 'Server, http:// or https://; null: MLFLOW_TRACKING_URI.'),
  },
  prometheus: {
    host: field(str, '127.0.0.1', 'Address that the endpoint listens on.'),
    port: field(int(0, 65535), 0, 'Port of the endpoint; 0: any free one, printed at the start.'),
  },
  request_timeout: field(num(0.1, 600), 10, 'Seconds that wandb or mlflow have to answer a request.'),
  flush_timeout: field(num(0, 600), 10, 'Seconds at the end of a run for what wandb or mlflow lack.'),
};
