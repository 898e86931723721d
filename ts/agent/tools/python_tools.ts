// Tools in Python, as verl has them: processes of python/tool_server.py, each a server of the Model Context Protocol.
import path from 'node:path';
import { z } from 'zod';
import { reasonOf } from '../../base/text';
import { parseYamlTree, readConfigText } from '../../config/reading/read';
import { resolveReferences } from '../../config/reading/references';
import type { Tree } from '../../config/reading/tree';
import { ConfigError } from '../../errors';
import { packageRoot } from '../../install/package_root';
import { McpServer } from './mcp';
import type { Tool, ToolContext } from './tool';

const SECTION = 'actor_rollout_ref.rollout';
export const CONFIG_KEY = `${SECTION}.multi_turn.tool_config_path`;
export const FUNCTION_KEY = `${SECTION}.multi_turn.function_tool_path`;

export interface PythonToolOptions {
  /** A file of verl: `tools: [{class_name, config, tool_schema}]`; null: none. */
  configPath: string | null;
  /** A Python file with functions under verl's decorator function_tool; null: none. */
  functionPath: string | null;
  /** The interpreter. */
  python: string;
  /** Processes at most. */
  processes: number;
}

/** A Python that imports verl, and torch with it, on a busy machine. */
const CONNECT_MS = 300_000;

const file = z.object({
  tools: z
    .array(
      z.object({
        class_name: z.string().regex(/\w\.\w+$/),
        config: z.looseObject({ type: z.string() }),
        tool_schema: z.looseObject({}).nullish().default(null),
      }),
    )
    .min(1),
});

/** @throws ConfigError naming the key, too */
function parsedFile(name: string): Tree {
  try {
    return parseYamlTree(readConfigText(name), name);
  } catch (cause) {
    throw new ConfigError(`${CONFIG_KEY}: ${reasonOf(cause)}`, CONFIG_KEY);
  }
}

/** The tools of a file of verl. @throws ConfigError */
function readTools(name: string): z.infer<typeof file>['tools'] {
  const tree = resolveReferences(parsedFile(name), (key, why) => {
    throw new ConfigError(`${CONFIG_KEY}: ${name}: ${key}: ${why}`, CONFIG_KEY);
  });
  const parsed = file.safeParse(tree);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new ConfigError(
      `${CONFIG_KEY}: expected ${name} to have tools: [{class_name: module.Class, config: {type: native}, tool_schema}]: ` +
        `${issue?.path.join('.')}: ${issue?.message}`,
      CONFIG_KEY,
    );
  }
  const other = parsed.data.tools.find(({ config }) => config.type !== 'native');
  if (other !== undefined) {
    throw new ConfigError(
      `${CONFIG_KEY}: ${name}: ${other.class_name} has the type ${other.config.type}, and classes of type native run here: ` +
        `name MCP servers in ${SECTION}.agent.mcp_servers`,
      CONFIG_KEY,
    );
  }
  return parsed.data.tools;
}

/**
 * Processes that run the same tools. A call goes to the one that has the fewest, so one more is started when all that
 * there are have some; a process that ends is started again by its next call.
 */
export class PythonTools {
  private readonly processes: { server: McpServer; calls: number }[];

  /** @throws ConfigError where the files are not what verl reads */
  constructor({ configPath, functionPath, python, processes }: PythonToolOptions) {
    const setup = { classes: configPath === null ? [] : readTools(configPath), functions: functionPath };
    const settings = {
      command: python,
      args: ['-u', path.join(packageRoot, 'python', 'tool_server.py'), JSON.stringify(setup)],
      env: {},
    };
    const place = {
      title: 'tools in Python',
      key: configPath === null ? FUNCTION_KEY : CONFIG_KEY,
      connectMs: CONNECT_MS,
      showsErrors: true,
    };
    this.processes = Array.from({ length: processes }, (_, i) => ({
      server: new McpServer(`python ${i}`, settings, place),
      calls: 0,
    }));
  }

  /** Starts the first process. @throws TroupeError IO when it does not load them */
  async tools(): Promise<Tool[]> {
    const tools = (await this.processes[0]?.server.tools()) ?? [];
    return tools.map((tool) => ({
      ...tool,
      call: (args, context) => this.call(tool.name, args, context),
    }));
  }

  async close(): Promise<void> {
    await Promise.allSettled(this.processes.map(({ server }) => server.close()));
  }

  private async call(name: string, args: unknown, context: ToolContext): Promise<unknown> {
    const least = this.processes.reduce((a, b) => (b.calls < a.calls ? b : a));
    least.calls++;
    try {
      return await least.server.call(name, args, context);
    } finally {
      least.calls--;
    }
  }
}
