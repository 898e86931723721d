// The tool python: programs that the model writes, in the sandbox of code rewards.
import { z } from 'zod';
import type { CodeRunner } from '../../reward/code/runner';
import { defineTool, type Tool } from './tool';

/** `runner`: made when the tool is first used. */
export const pythonTool = (runner: () => Promise<CodeRunner>): Tool =>
  defineTool({
    name: 'python',
    description: 'Runs a Python program and returns what it prints. Nothing is kept between two runs.',
    parameters: z.object({ code: z.string().describe('The program: what it is to tell, it prints.') }),
    run: async ({ code }) => {
      const { status, stdout, stderr } = await (await runner()).run({ code, stdin: '' });
      if (status === 'finished') return stdout;
      const error = stderr.trim();
      throw new Error(
        [`the program failed (${status})`, stdout, error].filter((part) => part !== '').join('\n'),
      );
    },
  });
