// The Python around a response's code. It is source text in a single file, so that it runs the same way in a sandbox here
// and on a server. What solutions take for granted is imported beforehand, in verl's order: builtins after math, whose pow would
// hide the built-in one, and modules after what has their names.
const PRELUDE = `import base64, sys
sys.setrecursionlimit(600000)
scope = {"__name__": NAME}
exec("""
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from builtins import *
from typing import *
import bisect, collections, copy, datetime, functools, heapq, io, itertools, json, math, operator, random, re, statistics
import string, sys, time
""", scope)
source = base64.b64decode(SOURCE).decode("utf-8")
`;

// Whatever the code prints goes to stderr: stdout carries the value alone.
// JSON has no keys but texts: in a dict that is the one argument, integers are what they say, as in verl. Of the names that are
// there beforehand none is the function.
const CALL = `import json, os
result_file = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
arguments = json.load(sys.stdin)
if len(arguments) == 1 and isinstance(arguments[0], dict):
    try:
        arguments = [{int(key): value for key, value in arguments[0].items()}]
    except ValueError:
        pass
scope.pop(FUNCTION, None)
exec(compile(source, "solution.py", "exec"), scope)
owner = scope["Solution"]() if isinstance(scope.get("Solution"), type) else None
function = getattr(owner, FUNCTION, None) or scope[FUNCTION]
json.dump(function(*arguments), result_file)
result_file.flush()
`;

const RUN = `exec(compile(source, "solution.py", "exec"), scope)
`;

/** A Python literal; JSON's escapes are Python's as long as they are ASCII, which base64 and names are. */
const literal = (text: string): string => `"${text}"`;

const withSource = (code: string, name: string): string =>
  PRELUDE.replace('NAME', () => literal(name)).replace('SOURCE', () =>
    literal(Buffer.from(code, 'utf8').toString('base64')),
  );

/** Runs the code as a program. */
export const programOf = (code: string): string => withSource(code, '__main__') + RUN;

/**
 * Calls a function of the code, or a method of its class Solution, with the list of arguments that stdin holds as JSON, and
 * writes its value to stdout as JSON.
 */
export function callOf(code: string, fnName: string): string {
  const name = literal(Buffer.from(fnName, 'utf8').toString('base64'));
  return `${withSource(code, 'solution')}FUNCTION = base64.b64decode(${name}).decode("utf-8")\n${CALL}`;
}

/**
 * The code of a response: after the last "\`\`\`python", up to the next fence; else the first fenced block, without a line that
 * is the name of a language. null: there is none. (verl's prime_code and sandbox_fusion.)
 */
export function extractCode(response: string): string | null {
  const start = response.lastIndexOf('```python');
  if (start >= 0) {
    const rest = response.slice(start + '```python'.length);
    const end = rest.indexOf('```');
    return end < 0 ? rest : rest.slice(0, end);
  }
  const block = response.split('```', 3)[1];
  if (block === undefined) return null;
  const [first = '', ...rest] = block.split('\n');
  return rest.length > 0 && /^[a-z0-9+#]+$/i.test(first.trim()) ? rest.join('\n') : block;
}
