"""The agent of this example with the package openai: rollout.agent.command: [python3, examples/agent/openai_client.py]"""
import json
import os
import re
import sys

if not os.environ.get("OPENAI_API_KEY") or not os.environ.get("OPENAI_BASE_URL"):
    sys.exit(
        "openai_client.py: expected OPENAI_BASE_URL and OPENAI_API_KEY in the environment, as a run gives them to the command in "
        "rollout.agent.command: try it with `troupe agent try`, or set both to a server of your own"
    )

try:
    from openai import OpenAI
except ImportError as error:
    sys.exit(
        f"openai_client.py: expected a Python with the package openai ({error}): install it with "
        f"`{sys.executable} -m pip install -U openai`"
    )

MAX_TURNS = 3
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Multiplies two numbers, as in 12*34.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def calculator(expression: str) -> str:
    found = re.fullmatch(r"(\d+)\*(\d+)", expression)
    return str(int(found[1]) * int(found[2])) if found else "="


client = OpenAI(max_retries=0)
messages = json.load(sys.stdin)["prompt"]
for _ in range(MAX_TURNS):
    message = client.chat.completions.create(model="policy", messages=messages, tools=[TOOL]).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        told = calculator(json.loads(call.function.arguments)["expression"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": told})
print(json.dumps({"answer": message.content}))
