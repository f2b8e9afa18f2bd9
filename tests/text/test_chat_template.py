from __future__ import annotations

import random
import re
import time
from datetime import datetime
from typing import Any

import pytest

from tests.text import text_data
from zllm.errors import RequestError
from zllm.text.chat_template import ChatTemplate
from zllm.text.errors import TemplateError
from zllm.text.tokenizer import Tokenizer

PROMPTS = text_data.load_json("smollm2_prompts.json")

# Written for these tests in the manner of Llama 3.1's and Qwen2.5's templates.
LLAMA_LIKE = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + strftime_now("%d %b %Y") + "\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson + '}' }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN_LIKE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" ~ (tool | tojson) }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}{%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}{{- content }}{%- endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}<think></think>{%- endif %}
{%- endif %}
"""


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def render(source: str, messages: Any = None, **settings: Any) -> str:
    return ChatTemplate(source).render(messages or user("Hi"), **settings).text


@pytest.mark.parametrize("item", PROMPTS)
def test_smollm2_prompts_match_peer(item: dict[str, Any]) -> None:
    tokenizer = text_data.smollm2()
    template = ChatTemplate.of(tokenizer)
    assert template.render(item["messages"]).text == item["prompt"]
    assert template.encode(tokenizer, item["messages"]) == item["prompt_ids"]


def test_white_space_of_blocks() -> None:
    """Case A08."""
    source = (text_data.DATA / "blocks.jinja").read_text()
    messages = [*user("one"), {"role": "assistant", "content": "two"}]
    assert render(source, messages) == "<u>one</u>\n<a>two</a>\n<a>\n"
    assert render("a\n\n") == "a\n"


def test_typed_control_token_stays_text() -> None:
    """Case A07."""
    tokenizer = text_data.chain_a()
    ids = ChatTemplate.of(tokenizer).encode(tokenizer, user("x<|end|>y9"))
    assert ids == [319, 120, 60, 124, 101, 110, 100, 124, 62, 121, 57]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds <b> & 'ü'",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
        },
    }
]
TOOL_CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": "<ü>"}'},
}
CONVERSATION = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "<think>\nsum\n</think>\n\n2"},
]


def test_llama_like_template_with_tools() -> None:
    template = ChatTemplate(LLAMA_LIKE, bos_token="<|bos|>", now=lambda: datetime(2026, 11, 29))
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    tool = (
        '{\n    "type": "function",\n    "function": {\n        "name": "add",\n'
        '        "description": "Adds <b> & \'ü\'",\n        "parameters": {\n'
        '            "type": "object",\n            "properties": {\n                "a": {\n'
        '                    "type": "number"\n                }\n'
        "            }\n        }\n    }\n}"
    )
    assert template.render(CONVERSATION, tools=TOOLS).text == (
        "<|bos|>" + head.format("system") + f"Today: 29 Nov 2026\n{tool}Be brief.<|eot_id|>"
        f"{head.format('user')}1+1?<|eot_id|>"
        f'{head.format("assistant")}{{"name": "add", "parameters": {{"a": "<ü>"}}}}<|eot_id|>'
        f"{head.format('tool')}2<|eot_id|>"
        f"{head.format('assistant')}<think>\nsum\n</think>\n\n2<|eot_id|>"
        f"{head.format('assistant')}"
    )


def test_qwen_like_template_with_tools() -> None:
    template = ChatTemplate(QWEN_LIKE)
    assert template.render(CONVERSATION[1:], tools=TOOLS, enable_thinking=False).text == (
        "<|im_start|>system\n# Tools\n<tools>\n"
        '{"type": "function", "function": {"name": "add", "description": "Adds <b> & \'ü\'", '
        '"parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}'
        "\n</tools><|im_end|>\n"
        "<|im_start|>user\n1+1?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": "<ü>"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>assistant\n<think></think>"
    )


def test_template_refuses_messages() -> None:
    calls = [{"role": "assistant", "tool_calls": [TOOL_CALL, TOOL_CALL]}]
    with pytest.raises(TemplateError, match="line 18: This model only supports single tool-calls"):
        ChatTemplate(LLAMA_LIKE).render(calls)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", user(parts)) == "a\nb"


TEMPLATES = {
    "smollm2": text_data.smollm2_metadata()["tokenizer.chat_template"],
    "qwen-like": QWEN_LIKE,
    "spaced": "{% for m in messages %}<|im_start|>{{ m.content | trim }}|im_end|>{% endfor %}",
    "completing": "{% for m in messages %}<|im_{{ m.content }}im_start|>{% endfor %}",
    "trimming": "{% for m in messages %}<|im_{{ m.content | trim }}im_start|>{% endfor %}",
    "adjacent": "{% for m in messages %}{{ m.content }}{{ m.name }}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages | tojson(ensure_ascii=true) }}{{ tools | tojson }}",
}
PIECES = ("<|im_start|>", "<|im_end|>", "<|im_", "<|", "end|>", "|>", ">", "<", "a", " ", "\n", "ü")


@pytest.mark.parametrize("name", TEMPLATES)
def test_nothing_from_outside_becomes_a_control_token(name: str) -> None:
    tokenizer, rng = text_data.smollm2(), random.Random(9)
    template = ChatTemplate(TEMPLATES[name])

    def text() -> str:
        private = ("\ue000", "\U000f0000", chr(rng.randrange(0x100000, 0x10FFFD)))
        return "".join(rng.choices(PIECES + private, k=rng.randint(0, 5)))

    for _ in range(400):
        messages = [
            {"role": rng.choice(("user", "assistant")), "content": text(), "name": text()}
            for _ in range(rng.randint(1, 3))
        ]
        tools = [{"function": {"name": "f", "description": text(), "parameters": {text(): text()}}}]
        harmless = [{**message, "content": "a", "name": "a"} for message in messages]
        none = [{"function": {"name": "f", "description": "a", "parameters": {"a": "a"}}}]
        ids = template.encode(tokenizer, messages, tools=tools)
        want = template.encode(tokenizer, harmless, tools=none)

        def control(ids: list[int]) -> list[int]:
            return [id for id in ids if id in tokenizer.special_ids]

        assert control(ids) == control(want), (messages, tools)
        plain = template.render(messages, tools=tools).text
        assert tokenizer.decode(ids, show_special=True) == plain


def test_ids_between_control_tokens_are_those_of_the_text_alone() -> None:
    tokenizer = text_data.smollm2()
    template = ChatTemplate("<|im_start|>{{ messages[0].content }}<|im_end|>")
    for text in text_data.strings(500, seed=10):
        ids = template.encode(tokenizer, user(text))
        assert ids == [1, *tokenizer.encode(text, special=False), 2]


def test_control_token_that_strips_takes_white_space_as_without_a_template() -> None:
    tokenizer = text_data.chain_a()
    template = ChatTemplate("a  <|pad_l|>  {{ messages[0].content }}<|pad_r|>  b")
    assert template.encode(tokenizer, user("c")) == tokenizer.encode(
        "a  <|pad_l|>  c<|pad_r|>  b", special=True
    )


BAD_MESSAGES: list[tuple[Any, str]] = [
    ([], "messages: expected a list"),
    ("Hi", "messages: expected a list"),
    (["Hi"], r"messages\[0\]: expected an object"),
    ([{"content": "Hi"}], r"messages\[0\].role: .*got None"),
    ([*user("a"), {"role": "user|>x", "content": ""}], r"messages\[1\].role: .*'user\|>x'"),
    ([{"role": "user"}], r"messages\[0\].content: missing"),
    (user(3), r"messages\[0\].content: expected text"),
    (user([{"type": "image_url"}]), r"messages\[0\].content\[0\].type: .*'image_url'"),
    (user([{"type": "text", "text": 1}]), r"messages\[0\].content\[0\].text: expected text"),
    ([{"role": "assistant", "tool_calls": 1}], r"messages\[0\].tool_calls: expected a list"),
    ([{"role": "assistant", "tool_calls": [{}]}], r"messages\[0\].tool_calls\[0\].function: "),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        r"tool_calls\[0\].function.arguments: not valid JSON",
    ),
]


@pytest.mark.parametrize(("messages", "named"), BAD_MESSAGES)
def test_bad_messages_are_refused_by_name(messages: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        ChatTemplate("").render(messages)
    with pytest.raises(RequestError, match=r"tools\[0\]"):
        ChatTemplate("").render(user("Hi"), tools=["add"])


HOSTILE = {
    "file": "{% include '/etc/hostname' %}",
    "internals": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "mutation": "{{ messages.append(1) }}",
    "range": "{% for i in range(10**12) %}{% endfor %}",
    "nested-loops": "{% set r = range(90000) %}{% for a in r %}{% for b in r %}{% endfor %}"
    "{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "output": "{% for i in range(90000) %}{{ 'aaaaaaaaaa' * 1000 }}{% endfor %}",
    "repetition": "{{ 'a' * 10**12 }}",
    "list": "{{ ([0] * 10**12) | length }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "squaring": "{% set n = namespace(i=3) %}{% for i in range(64) %}{% set n.i = n.i * n.i %}"
    "{% endfor %}",
    "doubling": "{% set n = namespace(s='aa') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}"
    "{% endfor %}",
    "adding": "{% set n = namespace(s='aa') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}"
    "{% endfor %}",
    "padding": "{{ 'a'.ljust(10**12) }}",
    "padding-filter": "{{ 'a' | center(10**12) }}",
    "format": "{{ '{:999999999999}'.format(1) }}",
    "percent-format": "{{ '%999999999999d' % 1 }}",
    "format-filter": "{{ '%999999999999d' | format(1) }}",
    "replacing": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "lipsum": "{{ lipsum(n=10**12) }}",
    "joining": "{{ range(90000) | join('b' * 10**6) }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_template_is_refused_soon(source: str) -> None:
    started = time.process_time()
    with pytest.raises(TemplateError, match="chat template"):
        render("\n" + source)
    # Measured below 2 s; the budget of steps is what the nested loops wait for.
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\n{% if %}", "line 2: Expected an expression"),
        ("\n\n{{ messages[0].content + 1 }}", "line 3: can only concatenate str"),
        ("\n{{ x.y.z }}", "line 2: 'x' is undefined"),
        ("{% for m in messages %}", "line 1: Unexpected end of template"),
    ],
)
def test_error_names_the_line(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(message)):
        render(source)


def test_large_source_and_missing_template_are_refused() -> None:
    with pytest.raises(TemplateError, match="at most"):
        ChatTemplate("a" * 1_000_001)
    without = {**text_data.smollm2_metadata(), "tokenizer.chat_template": None}
    with pytest.raises(TemplateError, match="no chat template"):
        ChatTemplate.of(Tokenizer.from_gguf(without))


def test_loops_keep_their_helpers_under_the_budget() -> None:
    source = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}"
        "{% for m in messages if m.role == 'user' %}{{ loop.length }}{% else %}none{% endfor %}"
        "{% for m in nothing %}{% else %}empty{% endfor %}"
    )
    messages = [*user("a"), {"role": "assistant", "content": "b"}]
    assert render(source, messages) == "1/2False 2/2True 1empty"
