// The tools that the configuration of a run names, there before its prompts are counted.
import type { Agent } from '../agent/define';
import { pythonTool } from '../agent/tools/python';
import { isTool, type Tool, toolSchemas } from '../agent/tools/tool';
import { loadUserModule } from '../base/user_module';
import type { ResolvedConfig } from '../config/config';
import { agentOf } from '../config/derived/agents';
import { ConfigError } from '../errors';
import type { CodeRunner } from '../reward/code/runner';

const SECTION = 'actor_rollout_ref.rollout.agent';

/** Given by a program instead of the configuration. */
export interface GivenAgent {
  agent?: Agent;
  tools?: readonly Tool[];
}

/** Of tools that processes or hosts of their own run. */
interface ToolServer {
  tools(): Promise<Tool[]>;
  close(): Promise<void>;
}

export interface RunTools {
  tools: readonly Tool[];
  /** Those that every prompt of the data comes with, as chat templates have them; null: what prompts become is the agent's matter. */
  shown: ReturnType<typeof toolSchemas> | null;
  close(): Promise<void>;
}

/**
 * null: the run has no agent. `runner`: of the programs that the tool `python` is given.
 * @throws ConfigError when a module cannot be loaded or exports no tool, and where two tools have one name
 */
export async function configuredTools(
  config: ResolvedConfig,
  runner: () => Promise<CodeRunner>,
  given: GivenAgent = {},
): Promise<RunTools | null> {
  const { agent: keys, multi_turn: turns } = config.actor_rollout_ref.rollout;
  const kind = given.agent ? 'given' : agentOf(config);
  if (kind === null) return null;
  const servers: ToolServer[] = [];
  if (Object.keys(keys.mcp_servers).length > 0) {
    const { McpServer, mcpSettings } = require('../agent/tools/mcp') as typeof import('../agent/tools/mcp');
    servers.push(...mcpSettings(keys.mcp_servers).map(([name, options]) => new McpServer(name, options)));
  }
  if (turns.tool_config_path !== null || turns.function_tool_path !== null) {
    const { PythonTools } =
      require('../agent/tools/python_tools') as typeof import('../agent/tools/python_tools');
    servers.push(
      new PythonTools({
        configPath: turns.tool_config_path,
        functionPath: turns.function_tool_path,
        python: keys.python,
        processes: keys.num_workers,
      }),
    );
  }
  const close = async (): Promise<void> => {
    await Promise.allSettled(servers.map((server) => server.close()));
  };
  try {
    const tools = [
      ...(given.tools ?? (keys.tools ?? []).flatMap(moduleTools)),
      ...(keys.python_tool ? [pythonTool(runner)] : []),
      ...(await Promise.all(servers.map((server) => server.tools()))).flat(),
    ];
    checkNames(tools);
    return { tools, shown: kind === 'tool_agent' ? toolSchemas(tools) : null, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** @throws ConfigError where two tools have one name */
function checkNames(tools: readonly Tool[]): void {
  const seen = new Set<string>();
  for (const { name } of tools) {
    if (seen.has(name)) throw new ConfigError(`${SECTION}: two tools have the name ${name}`, SECTION);
    seen.add(name);
  }
}

/** Every tool that a module exports, by itself or in a list. */
function moduleTools(path: string): Tool[] {
  const exported = loadUserModule(
    path,
    `${SECTION}.tools`,
    'tools in Python are for actor_rollout_ref.rollout.multi_turn.function_tool_path or tool_config_path',
  );
  const found = [...new Set(Object.values(exported).flat())].filter(isTool);
  if (found.length > 0) return found;
  throw new ConfigError(
    `${SECTION}.tools: ${path} exports no tool: expected some made by defineTool`,
    `${SECTION}.tools`,
  );
}
