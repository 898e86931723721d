"""An agent in Python, with the package openai."""
import json, os
from openai import OpenAI

client = OpenAI()
messages = json.loads(os.environ['TROUPE_TASK'])['prompt']
parameters = {'type': 'object', 'properties': {'a': {'type': 'number'}, 'b': {'type': 'number'}}}
tools = [{'type': 'function', 'function': {'name': 'add', 'parameters': parameters}}]
while True:
    message = client.chat.completions.create(model='x', messages=messages, tools=tools).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        given = json.loads(call.function.arguments)
        messages.append({'role': 'tool', 'tool_call_id': call.id, 'content': str(given['a'] + given['b'])})
print(message.content)
