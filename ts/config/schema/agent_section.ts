// Keys of agents: turns, tools, and who works on a prompt.
import { TOOL_FORMATS } from '../../base/tool_formats';
import {
  bool,
  choice,
  count,
  field,
  fixed,
  ignored,
  int,
  mapping,
  needs,
  orNull,
  seconds,
  str,
  strings,
} from './field';

const AGENT_LOOPS = ['single_turn_agent', 'tool_agent', 'search_agent'] as const;

export const multiTurnSection = {
  enable: field(bool, false, 'Let the tool agent work on prompts, where rollout.agent names no other.'),
  max_assistant_turns: field(orNull(count('passes')), null, 'tool_agent: responses; null: no limit.'),
  max_user_turns: field(orNull(count('passes')), null, 'tool_agent: turns of tools; null: no limit.'),
  tool_config_path: field(
    orNull(str),
    null,
    'YAML file of verl that names tools in Python: tools: [{class_name, config, tool_schema}].',
  ),
  function_tool_path: field(
    orNull(str),
    null,
    'Python file whose functions under verl’s decorator function_tool are tools.',
  ),
  interaction_config_path: needs('interactions in Python'),
  max_parallel_calls: field(
    count('passes'),
    1,
    'tool_agent: calls of one response that are made; the others are left out.',
  ),
  max_tool_response_length: field(
    count('batchTokens'),
    256,
    'Characters of a tool’s answer that the model is told.',
  ),
  tool_response_truncate_side: field(
    choice('left', 'middle', 'right'),
    'middle',
    'Where a longer answer is cut: left keeps its end, right its beginning, middle half of either.',
  ),
  format: field(
    choice(...TOOL_FORMATS, 'auto'),
    'hermes',
    'How the model writes calls of tools; auto: as its chat template says. glm, minimax, seed, kimi and llama3_json: verl’s names of glm45, minimax_m2, seed_oss, kimi_k2 and llama3.',
  ),
  tokenization_sanity_check_mode: ignored('turns are never tokenised again'),
  completion_callback: needs('completion callbacks in Python'),
  use_inference_chat_template: ignored('turns are never tokenised again'),
  num_repeat_rollouts: ignored('rollout.n is the number of trajectories per prompt'),
};

export const agentSection = {
  default_agent_loop: field(
    choice(...AGENT_LOOPS),
    'single_turn_agent',
    'Who works on prompts; single_turn_agent: one response, or with do_search the search agent, with multi_turn.enable the tool agent.',
  ),
  path: field(
    orNull(str),
    null,
    'JavaScript or TypeScript module whose default export is defineAgent({...}).',
  ),
  name: field(str, 'default', 'Its export.'),
  command: field(
    orNull(strings),
    null,
    'Any program as the agent: a shell line, or its words. It finds the policy at OPENAI_BASE_URL and ANTHROPIC_BASE_URL.',
  ),
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
  mcp_servers: field(
    mapping,
    {},
    'MCP servers by name: {command, args?, env?, cwd?} or {url, headers?}; optionally tools: [names] and timeout.',
  ),
  python_tool: field(bool, false, 'Give agents the tool python: a program in the sandbox of reward.sandbox.'),
  python: field(str, 'python3', 'The interpreter of multi_turn.tool_config_path and function_tool_path.'),
  num_workers: field(
    count('processes'),
    8,
    'Processes of Python for these tools, at most: one more is started when all that there are have calls.',
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
  history: field(
    choice('append', 'template'),
    'append',
    'Earlier turns of a conversation: as they were sampled, or as the chat template writes them now, in a sequence of its own where they differ.',
  ),
  stop_at_tags: field(
    bool,
    true,
    'search_agent: end a response with its first closing tag; false: cut it there afterwards.',
  ),
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
