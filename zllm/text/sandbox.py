"""The Jinja2 environment that runs chat templates, which are untrusted programs.

Jinja2's sandbox keeps a template from files and Python's internals. On top of it one rendering has
a budget of steps, a deadline and a largest text, because nested loops and repeated doubling are
within its reach. Source of the helpers: Hugging Face transformers' chat template utilities.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# Far above real prompts: a million characters are some 250,000 tokens.
LARGEST_TEXT = 16_000_000
LARGEST_INTEGER_BITS = 10_000
LARGEST_STEPS = 2_000_000
LONGEST_S = 20.0

_PADDING = frozenset(
    ("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice")
)
_WIDE_FORMAT = re.compile(r"[0-9]{7}|%[-+ #0]*\*|:[^}]*\{")
# Not the private-use planes: a stand-in of marker_guard must stay what it is.
_ESCAPED = re.compile("[^\x00-\x7f\U000f0000-\U0010fffd]")


class BudgetError(Exception):
    """A template asks for more time or memory than one rendering may have."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text; here it only scopes."""

    tags = {"generation"}  # noqa: RUF012 (Jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(
            parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line
        )


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment of one template. `start_budget` begins each rendering."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.filters["tojson"] = _to_json
        self.filters = {name: self._bounded(name, run) for name, run in self.filters.items()}
        self.filters["_counted"] = lambda items: _Counted(items, self._spend)
        self.filters["_joined"] = self._joined
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda style: now().strftime(style)
        # It makes as much text as it is asked for.
        del self.globals["lipsum"]
        self.start_budget()

    def start_budget(self) -> None:
        """Give the next rendering its full budget."""
        self._steps = 0
        self._deadline = time.monotonic() + LONGEST_S

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _CountedSteps().visit(tree)
        tree.set_environment(self)
        return tree

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._spend()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            _check_growth(function.__name__, owner, args)
        return _small(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._spend()
        if operator == "*" and _repeated_size(left, right) > LARGEST_TEXT:
            raise BudgetError(f"a repetition above {LARGEST_TEXT} elements")
        if operator == "**" and _power_bits(left, right) > LARGEST_INTEGER_BITS:
            raise BudgetError(f"a power above {LARGEST_INTEGER_BITS} bits")
        if operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise BudgetError("a format of more than 6 digits")
        return _small(super().call_binop(context, operator, left, right))

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > LARGEST_STEPS:
            raise BudgetError(f"more than {LARGEST_STEPS} steps")
        if time.monotonic() > self._deadline:
            raise BudgetError(f"more than {LONGEST_S:.0f} s")

    def _joined(self, parts: Sequence[Any]) -> Any:
        self._spend()
        return _small("".join(map(str, parts)))

    def _bounded(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._spend()
            subject = next((index for index, value in enumerate(args) if _is_subject(value)), 0)
            rest = (*args[subject + 1 :], *kwargs.values())
            _check_growth(name, args[subject], rest)
            return _small(run(*args, **kwargs))

        return bounded


class _Counted:
    """What a template's loop iterates over; each item is a step."""

    def __init__(self, items: Iterable[Any], spend: Callable[[], None]) -> None:
        self._items = items
        self._spend = spend

    def __len__(self) -> int:
        # Jinja2 copies the items itself when this raises TypeError.
        return len(self._items)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._spend()
            yield item


class _CountedSteps(NodeTransformer):
    """Passes each loop's items and each `~` through a filter that keeps the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_joined")


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _is_subject(value: Any) -> bool:
    """Not the environment or a context, which Jinja2 passes to some filters first."""
    return not isinstance(value, jinja2.Environment | Context | nodes.EvalContext)


def _check_growth(name: str, subject: Any, arguments: Sequence[Any]) -> None:
    """Refuse a call whose result may be far larger than all that went in."""
    texts = [value for value in arguments if isinstance(value, str)]
    numbers = [value for value in arguments if isinstance(value, int)]
    size = 0
    if name in _PADDING:
        size = max(numbers, default=0)
    elif name == "replace" and isinstance(subject, str) and len(texts) == 2:
        size = subject.count(texts[0]) * len(texts[1])
    elif name == "join" and isinstance(subject, str) and arguments:
        size = len(subject) * _count(arguments[0])
    elif name == "join" and texts:
        size = len(texts[0]) * _count(subject)
    elif name in ("format", "format_map") and _WIDE_FORMAT.search(str(subject)):
        raise BudgetError("a format of more than 6 digits")
    elif name == "tojson":
        size = max(numbers, default=0) * 1_000_000
    if size > LARGEST_TEXT:
        raise BudgetError(f"{name} to more than {LARGEST_TEXT} characters")


def _count(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def _repeated_size(left: Any, right: Any) -> int:
    if isinstance(left, int):
        left, right = right, left
    return _count(left) * right if isinstance(right, int) else 0


def _power_bits(base: Any, exponent: Any) -> int:
    integers = isinstance(base, int) and isinstance(exponent, int)
    return int(base.bit_length() * exponent) if integers else 0


def _small(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > LARGEST_TEXT:
        raise BudgetError(f"a text or list above {LARGEST_TEXT} elements")
    if isinstance(value, int) and value.bit_length() > LARGEST_INTEGER_BITS:
        raise BudgetError(f"an integer above {LARGEST_INTEGER_BITS} bits")
    return value


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja2's filter: no HTML escapes, insertion order, characters as they are."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _ESCAPED.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
