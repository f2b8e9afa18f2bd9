"""Named templates, and what the templates of published models rely on."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.text import text_data
from tests.text.test_chat_template import CONVERSATION, TOOLS, render, user
from zllm.text.chat_template import ChatTemplate
from zllm.text.errors import TemplateError
from zllm.text.tokenizer import Tokenizer

NAMED = {"default": "D{{ messages[0].content }}", "tool_use": "T{{ tools|length }}", "rag": "{%"}


@pytest.mark.parametrize(
    "form", [NAMED, [{"name": name, "template": source} for name, source in NAMED.items()]]
)
def test_named_templates(form: Any) -> None:
    """A table or a list; tools pick their own, and one that nobody asks for may be broken."""
    files = text_data.load_json("chain_a_tokenizer.json")
    tokenizer = Tokenizer.from_hf(files, {"chat_template": form})
    template = ChatTemplate.of(tokenizer)
    assert template.render(user("Hi")).text == template.render(user("Hi"), tools=[]).text == "DHi"
    assert template.render(user("Hi"), tools=TOOLS).text == "T1"
    metadata = {
        **text_data.smollm2_metadata(),
        "tokenizer.chat_template": NAMED["default"],
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": NAMED["tool_use"],
    }
    from_gguf = ChatTemplate.of(Tokenizer.from_gguf(metadata))
    assert from_gguf.render(user("Hi"), tools=TOOLS).text == "T1"


def test_names_without_a_default() -> None:
    template = ChatTemplate({"tool_use": "T", "rag": "R"})
    assert template.render(user("Hi"), tools=TOOLS).text == "T"
    with pytest.raises(TemplateError, match="'default'; there are: tool_use, rag"):
        template.render(user("Hi"))


@pytest.mark.parametrize("form", [3, ["a"], {"default": 1}, [{"name": "a"}]])
def test_damaged_template_forms_are_refused(form: Any) -> None:
    with pytest.raises(TemplateError, match="chat_template is"):
        Tokenizer.from_hf(text_data.load_json("chain_a_tokenizer.json"), {"chat_template": form})


# What published templates use, about one habit a line.
HELPERS = (text_data.DATA / "helpers.jinja").read_text()


def peer_environment() -> jinja2.Environment:
    """Jinja2 set up as Hugging Face transformers does for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment.filters["tojson"] = to_json
    environment.globals["strftime_now"] = lambda style: datetime(2026, 11, 29).strftime(style)
    return environment


def test_helpers_give_what_the_peer_gives() -> None:
    plain = [message for message in CONVERSATION if not message.get("tool_calls")]
    variables = {"enable_thinking": False, "reasoning_effort": None}
    ours = ChatTemplate(HELPERS, bos_token="<s>", now=lambda: datetime(2026, 11, 29))
    want = (
        peer_environment()
        .from_string(HELPERS)
        .render(
            messages=plain, tools=TOOLS, bos_token="<s>", add_generation_prompt=True, **variables
        )
    )
    assert ours.render(plain, tools=TOOLS, **variables).text == want
    guarded = ours.render(plain, tools=TOOLS, control_tokens=["<s>", "</s>"], **variables)
    assert guarded.text == want


ARGUMENTS = {
    "object": "{{ call.arguments | tojson }} {{ call.arguments.a }}{{ call.arguments is mapping }}",
    "printed": "{{ call.arguments }}",
    "added": "{{ '<' + call.arguments + '>' }}{{ call.arguments + '' }}",
    "joined": "{{ '<' ~ call.arguments ~ '>' }}",
}
RESULTS = {
    "object": '{"a": "<ü>"} <ü>True',
    "printed": '{"a":"<ü>"}',
    "added": '<{"a":"<ü>"}>{"a":"<ü>"}',
    "joined": '<{"a":"<ü>"}>',
}


@pytest.mark.parametrize("habit", ARGUMENTS)
@pytest.mark.parametrize("markers", [(), ("<ü>",)])
def test_arguments_of_a_tool_call_are_object_and_text(habit: str, markers: tuple[str]) -> None:
    function = {"name": "add", "arguments": '{"a":"<ü>"}'}
    messages = [{"role": "assistant", "tool_calls": [{"function": function}]}]
    source = "{% set call = messages[0].tool_calls[0].function %}" + ARGUMENTS[habit]
    rendered = ChatTemplate(source).render(messages, control_tokens=markers)
    assert rendered.text == RESULTS[habit]


def test_arguments_given_as_an_object_are_printed_as_json() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "ü"}}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]},
    ]
    source = "{% for m in messages %}{{ m.tool_calls[0].function.arguments }}{% endfor %}"
    assert render(source, messages) == '{"a": "ü"}{}'


def test_reasoning_reaches_the_template() -> None:
    messages = [{"role": "assistant", "content": "4", "reasoning_content": "2+2"}]
    source = (
        "{% if enable_thinking %}<think>{{ messages[0].reasoning_content }}</think>{% endif %}"
        "{{ messages[0].content }}"
    )
    assert render(source, messages, enable_thinking=True) == "<think>2+2</think>4"
    assert render(source, messages, enable_thinking=False) == render(source, messages) == "4"
