// Keys of agents: turns, tools, and who works on a prompt.
import {
  bool,
  choice,
  count,
  field,
  fixed,
  ignored,
  int,
  mapping,
  orNull,
  seconds,
  str,
  strings,
} from './field';

export const AGENT_LOOPS = ['single_turn_agent', 'search_agent'] as const;

export const agentSection = {
  default_agent_loop: field(
    choice(...AGENT_LOOPS),
    'single_turn_agent',
    'Who works on prompts; single_turn_agent: one response, or with do_search the search agent.',
  ),
  path: field(
    orNull(str),
    null,
    'JavaScript or TypeScript module whose default export is defineAgent({...}).',
  ),
  name: field(str, 'default', 'Its export.'),
  kwargs: field(
    mapping,
    {},
    'What the module’s export is called with, where it is a function that makes the agent.',
  ),
  tools: field(
    orNull(strings),
    null,
    'JavaScript or TypeScript modules; every tool (defineTool) that they export is given to agents.',
  ),
  tool_timeout: field(seconds, 30, 'Seconds that one call of a tool may take.'),
  timeout: field(seconds, 600, 'Seconds that one trajectory may take.'),
  retries: field(int(0, 100), 0, 'Further attempts of a trajectory whose agent fails.'),
  on_error: field(
    choice('zero', 'fail'),
    'zero',
    'A trajectory whose agent fails for good: a reward of 0, or the end of the run. When all of a batch fail it ends in either case.',
  ),
  max_concurrent: field(count('sequences'), 512, 'Trajectories at once.'),
  stop_at_tags: field(
    bool,
    true,
    'search_agent: end a response with its first closing tag; false: cut it there afterwards.',
  ),
  num_workers: ignored('trajectories are asynchronous tasks of the trainer'),
  agent_loop_config_path: fixed(
    [null],
    'agents are JavaScript modules (path) or programs (command), not classes in Python',
  ),
  agent_loop_manager_class: fixed(
    [null],
    'agents are JavaScript modules (path) or programs (command), not classes in Python',
  ),
  custom_async_server: ignored('there is one rollout engine'),
};
