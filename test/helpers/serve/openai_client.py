# python3 openai_client.py URL: what the official Python client makes of a server's answers, as JSON.
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="secret", max_retries=0)
ask = dict(model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=24, temperature=0, seed=1)
whole = client.chat.completions.create(**ask)
streamed = ""
for chunk in client.chat.completions.create(**ask, stream=True):
    if chunk.choices and chunk.choices[0].delta.content:
        streamed += chunk.choices[0].delta.content
text = client.completions.create(model="tiny", prompt="hello", max_tokens=8, temperature=0)
try:
    openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="wrong", max_retries=0).models.list()
    refused = False
except openai.AuthenticationError:
    refused = True
print(json.dumps({
    "whole": whole.choices[0].message.content,
    "streamed": streamed,
    "finish": whole.choices[0].finish_reason,
    "completion": text.choices[0].text,
    "models": [model.id for model in client.models.list()],
    "refused": refused,
}))
