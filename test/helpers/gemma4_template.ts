// A chat template that writes messages as that of Gemma 4 does: calls with their keys in order and without quotation marks, what tools told behind
// them in the same turn, where the model goes on; the words of a message behind all that; thoughts of what came after the last question alone.

/** `emptyThought`: before an answer that is to come without one, as for the larger models. */
export const gemma4Template = (emptyThought: boolean): string => `{%- macro said(v) -%}
{%- if v is none -%}null
{%- elif v is string -%}<|"|>{{ v }}<|"|>
{%- elif v is boolean -%}{{ 'true' if v else 'false' }}
{%- elif v is mapping -%}{{ '{' }}{{ members(v) }}{{ '}' }}
{%- elif v is sequence -%}[{%- for one in v -%}{{ said(one) }}{{ '' if loop.last else ',' }}{%- endfor -%}]
{%- else -%}{{ v }}
{%- endif -%}
{%- endmacro -%}
{%- macro members(all) -%}
{%- for key, one in all | dictsort -%}{{ key }}:{{ said(one) }}{{ '' if loop.last else ',' }}{%- endfor -%}
{%- endmacro -%}
{%- set thinks = enable_thinking | default(false) -%}
{%- set seen = namespace(question=-1, role='', tail='') -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set seen.question = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if thinks or tools -%}
{{- '<|turn>system\\n' -}}{{- '<|think|>\\n' if thinks else '' -}}
{%- for t in tools or [] -%}<|tool>declaration:{{ t.function.name }}{{ '{}' }}<tool|>{%- endfor -%}
{{- '<turn|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role != 'tool' -%}
{%- set role = 'model' if m.role == 'assistant' else m.role -%}
{%- if role != 'model' or seen.role != 'assistant' -%}{{- '<|turn>' + role + '\\n' -}}{%- endif -%}
{%- if m.reasoning_content and loop.index0 > seen.question -%}
{{- '<|channel>thought\\n' + m.reasoning_content + '\\n<channel|>' -}}
{%- endif -%}
{%- set seen.tail = '' -%}
{%- for call in m.tool_calls or [] -%}
{%- if call.function.arguments is not mapping -%}{{ raise_exception('arguments are no mapping') }}{%- endif -%}
{{- '<|tool_call>call:' + call.function.name + '{' -}}{{ members(call.function.arguments) }}{{- '}<tool_call|>' -}}
{%- set seen.tail = 'calls' -%}
{%- endfor -%}
{%- set next = namespace(told=true, role='') -%}
{%- for other in messages[loop.index:] -%}
{%- if other.role != 'tool' -%}{%- set next.told = false -%}{%- if next.role == '' -%}{%- set next.role = other.role -%}{%- endif -%}{%- endif -%}
{%- if other.role == 'tool' and next.told and m.tool_calls -%}
{%- set of = namespace(name='unknown') -%}
{%- for call in m.tool_calls -%}{%- if call.id == other.tool_call_id -%}{%- set of.name = call.function.name -%}{%- endif -%}{%- endfor -%}
{{- '<|tool_response>response:' + of.name + '{value:' + said(other.content) + '}<tool_response|>' -}}
{%- set seen.tail = 'told' -%}
{%- endif -%}
{%- endfor -%}
{{- m.content -}}
{%- if seen.tail == 'calls' -%}<|tool_response>
{%- elif role == 'model' and next.role == 'assistant' -%}
{%- elif seen.tail != 'told' or m.content or next.role != '' -%}{{- '<turn|>\\n' -}}
{%- endif -%}
{%- set seen.role = m.role -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{%- if seen.tail == '' -%}{{- '<|turn>model\\n' -}}{{- '${emptyThought ? '<|channel>thought\\n<channel|>' : ''}' if not thinks else '' -}}
{%- elif seen.tail == 'told' and thinks -%}{{- '<|channel>thought\\n' -}}
{%- endif -%}
{%- endif -%}`;

/** What the tokenizer has special tokens for; those that end a response last. */
export const GEMMA4_TOKENS = [
  ...[
    '<|turn>',
    '<|think|>',
    '<|tool>',
    '<tool|>',
    '<|tool_call>',
    '<tool_call|>',
    '<tool_response|>',
    '<|"|>',
  ],
  ...['<|channel>', '<channel|>', '<|tool_response>', '<turn|>'],
];
