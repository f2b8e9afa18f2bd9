"""Chat templates: messages to the prompt a model was trained on.

The template is Jinja2 as Hugging Face transformers runs it. Text from outside never becomes a
control token: see marker_guard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import jinja2

from zllm.text.errors import TemplateError
from zllm.text.marker_guard import MarkerGuard
from zllm.text.messages import checked_messages, checked_tools
from zllm.text.sandbox import LARGEST_TEXT, BudgetError, TemplateEnvironment
from zllm.text.template_names import named_templates
from zllm.text.tokenizer import Tokenizer

# The longest published templates have some 20,000 characters.
LARGEST_SOURCE = 1_000_000
# The names that Hugging Face transformers chooses by itself.
_CHOSEN = ("default", "tool_use")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered prompt in which stand-ins still mark the literal text from outside."""

    guarded: str
    literals: Mapping[int, str]
    control_tokens: frozenset[str]

    @property
    def text(self) -> str:
        """The prompt as text."""
        return self.guarded.translate(self.literals)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids: the template's own control tokens, and all between them as plain text."""
        assert tokenizer.special_tokens.keys() <= self.control_tokens, "render with them to encode"
        ids: list[int] = []
        at_start = True
        for part, control in tokenizer.split_control_tokens(self.guarded):
            if control is None:
                plain = part.translate(self.literals)
                ids += tokenizer.encode(plain, special=False, at_start=at_start)
            else:
                ids.append(control)
            at_start = False
        return ids


class ChatTemplate:
    """Compiled templates: "default", and "tool_use" for requests with tools where there is one.

    `bos_token` and `eos_token` are texts they may print, "" for none.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises TemplateError naming the line that is not valid Jinja2."""
        sources = named_templates(source)
        self._names = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment = TemplateEnvironment(now)
        self._known = ", ".join(sources)
        self._templates = {
            name: self._compiled(sources[name]) for name in _CHOSEN if name in sources
        }
        # What the templates themselves may print cannot stand for text from outside.
        self._sources = list(sources.values())

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The templates that came with the tokenizer. Raises TemplateError if there is none."""
        if not tokenizer.chat_templates:
            raise TemplateError("this model has no chat template; pass a prompt or a template")
        return cls(
            tokenizer.chat_templates,
            bos_token=_token_text(tokenizer, tokenizer.bos_id),
            eos_token=_token_text(tokenizer, min(tokenizer.eos_ids, default=None)),
        )

    def _compiled(self, source: str) -> jinja2.Template:
        if len(source) > LARGEST_SOURCE:
            raise TemplateError(
                f"chat template has {len(source)} characters; expected at most {LARGEST_SOURCE}"
            )
        return _guarded_call(lambda: self._environment.from_string(source))

    def _chosen(self, with_tools: bool) -> jinja2.Template:
        name = "tool_use" if with_tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise TemplateError(f"no chat template is named {name!r}; there are: {self._known}")
        return self._templates[name]

    def render(
        self,
        messages: Any,
        *,
        add_generation_prompt: bool = True,
        tools: Any = None,
        control_tokens: Collection[str] = (),
        **variables: Any,
    ) -> Rendered:
        """Render messages; `variables` reach the template by name, as from outside.

        With `control_tokens`, the result keeps their texts in the messages apart from those that
        the template writes. Raises RequestError naming the bad field of a message, TemplateError
        naming the line where the template fails.
        """
        outside = {
            **variables,
            "messages": checked_messages(messages),
            "tools": checked_tools(tools),
        }
        markers = frozenset(control_tokens)
        guarding = _guard(markers).start(outside, self._sources, self._names)
        names = {
            **self._names,
            **guarding.protect(outside),
            "add_generation_prompt": add_generation_prompt,
        }
        # Roles are words of a fixed list, which templates compare and print.
        for message, original in zip(names["messages"], outside["messages"], strict=True):
            message["role"] = original["role"]
        template = self._chosen(outside["tools"] is not None)
        return Rendered(self._run(template, names), guarding.restorer(), markers)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Any,
        *,
        add_generation_prompt: bool = True,
        tools: Any = None,
        **variables: Any,
    ) -> list[int]:
        """Token ids of the rendered messages. Control tokens come from the template alone."""
        rendered = self.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            control_tokens=tokenizer.special_tokens,
            **variables,
        )
        return rendered.encode(tokenizer)

    def _run(self, template: jinja2.Template, names: Mapping[str, Any]) -> str:
        self._environment.start_budget()

        def run() -> str:
            parts: list[str] = []
            size = 0
            for part in template.generate(names):
                size += len(part)
                if size > LARGEST_TEXT:
                    raise BudgetError(f"a prompt above {LARGEST_TEXT} characters")
                parts.append(part)
            return "".join(parts)

        return _guarded_call(run)


_guard = functools.lru_cache(maxsize=8)(MarkerGuard)


def _token_text(tokenizer: Tokenizer, id: int | None) -> str:
    return "" if id is None else tokenizer.token_bytes(id).decode("utf-8", "replace")


def _guarded_call(action: Callable[[], Result]) -> Result:
    """Turn whatever a template does wrong into one TemplateError that names the line."""
    try:
        return action()
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise TemplateError("chat template: nested or recursive beyond Python's limit") from error
    except Exception as error:
        where = _line(error)
        raise TemplateError(f"chat template{where}: {error or type(error).__name__}") from error


def _line(error: BaseException) -> str:
    """`, line N` of the template where the error arose; Jinja2 puts its lines into tracebacks."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f", line {line}"
