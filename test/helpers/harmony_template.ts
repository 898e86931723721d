// A chat template that writes messages as that of gpt-oss does: thoughts before calls as long as there is no answer after them, one call to a
// message, what tools told as JSON, another tag at the end of the last answer.
export const HARMONY_TEMPLATE = `<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>
{%- if tools %}<|start|>developer<|message|>{% for t in tools %}type {{ t.function.name }} = any;{% endfor %}<|end|>{% endif %}
{%- set last = namespace(name=none) %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls is defined %}
{%- set later = namespace(answer=false) %}
{%- for other in messages[loop.index:] %}{% if other.role == 'assistant' and other.tool_calls is not defined %}{% set later.answer = true %}{% endif %}{% endfor %}
{%- if m.content and m.thinking %}{{ raise_exception('content and thinking') }}{% endif %}
{%- set words = m.content or m.thinking %}
{%- if words and not later.answer %}<|start|>assistant<|channel|>analysis<|message|>{{ words }}<|end|>{% endif %}
{%- set call = m.tool_calls[0].function %}{% set last.name = call.name -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' and loop.last and not add_generation_prompt %}
{%- if m.thinking is defined %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif -%}
<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>
{%- elif m.role == 'assistant' -%}
<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- elif m.role == 'tool' -%}
<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- else -%}
<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}`;
