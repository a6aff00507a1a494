"""Chat templates: parsed by Jinja2, checked against what we implement, evaluated by ourselves.

Not here: what a conversation looks like to a template (``chat``).

Always true: a template runs within its fuel and its text within a length, whatever it holds; every
character it renders knows its origin. What we do not implement is refused by name: statements,
expressions, filters and tests when the template is read (those of a branch when it is taken),
methods when they are called.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as loop_controls

from insitu.codec.template_expressions import (
    ARITHMETIC,
    Scope,
    make_namespace,
    make_range,
    make_record,
)
from insitu.codec.template_filters import FILTERS
from insitu.codec.template_json import runs
from insitu.codec.template_statements import Statements
from insitu.codec.template_strings import want_text
from insitu.codec.template_tests import TESTS
from insitu.codec.template_values import (
    Function,
    Meter,
    TemplateFault,
    TemplateLimitError,
    TemplateRaised,
    Text,
    joined,
    lift,
    text_of,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jinja2.parser import Parser

MAX_TEMPLATE_CHARS = 1_000_000
MAX_CHARS = 16_000_000
_FUEL = 200_000
_MAX_FUEL = 2_000_000
_DATE_SIGNS = frozenset("aAbBdmyYHMSjpIe-%")

_ALLOWED: frozenset[type] = frozenset(
    {
        nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign,
        nodes.AssignBlock, nodes.Macro, nodes.With, nodes.FilterBlock, nodes.Break, nodes.Continue,
        nodes.Const, nodes.Name, nodes.NSRef, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair,
        nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Keyword, nodes.Getattr,
        nodes.Getitem, nodes.Slice, nodes.Concat, nodes.Compare, nodes.Operand, nodes.And, nodes.Or,
        nodes.Not, nodes.Neg, nodes.Pos, *ARITHMETIC,
    }
)  # fmt: skip


class UnsupportedTemplate(Exception):
    """A template that is not Jinja, or uses something that is not implemented, named here."""


class _Generation(Extension):
    """``{% generation %}`` marks what a model wrote, for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True, slots=True)
class TypedText:
    """A rendered prompt in pieces: each is the template's (True) or the caller's (False)."""

    pieces: tuple[tuple[str, bool], ...]

    @property
    def text(self) -> str:
        """The prompt as plain text."""
        return "".join(text for text, _ in self.pieces)


class Template:
    """One parsed template; ``render`` may be called from several threads at once."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise UnsupportedTemplate(f"is longer than {MAX_TEMPLATE_CHARS} characters")
        self.source = source
        environment = Environment(  # noqa: S701 - a prompt is not HTML
            trim_blocks=True, lstrip_blocks=True, extensions=[loop_controls, _Generation]
        )
        try:
            tree = environment.parse(source)
            self._body = tree.body
            for node in self._body:
                _check(node)
            # Names, and words that may be attributes or keys: what a caller gives under any other
            # cannot be seen.
            self.variables = frozenset(node.name for node in tree.find_all(nodes.Name))
            self.attributes = frozenset(_attributes(tree))
        except TemplateSyntaxError as error:
            raise UnsupportedTemplate(f"line {error.lineno}: {error.message}") from error
        except RecursionError as error:
            raise UnsupportedTemplate("is nested too deep") from error
        except ValueError as error:
            raise UnsupportedTemplate(f"holds what is no Jinja: {str(error)[:80]}") from error

    def render(
        self,
        given_values: Mapping[str, Any],
        written_values: Mapping[str, str],
        today: str | None = None,
    ) -> TypedText:
        """The prompt; variables are the caller's values and the model file's texts."""
        try:
            meter = Meter(_fuel_for(given_values), MAX_CHARS)
            return _typed(self._rendered(given_values, written_values, today, meter), meter)
        except RecursionError as error:
            raise TemplateLimitError("the template is nested too deep") from error
        except OverflowError as error:
            raise TemplateLimitError("a number is too large for its use") from error

    def _rendered(
        self,
        given_values: Mapping[str, Any],
        written_values: Mapping[str, str],
        today: str | None,
        meter: Meter,
    ) -> Text:
        names: dict[str, Any] = {
            "range": Function("range", lambda *bounds: make_range(meter, *bounds)),
            "namespace": Function("namespace", make_namespace),
            "dict": Function("dict", make_record),
            "raise_exception": Function("raise_exception", lambda text: _raise(text, meter)),
        }
        if today is not None:
            day = date.fromisoformat(today)
            names["strftime_now"] = Function("strftime_now", lambda text: _format_day(day, text))
        names.update({name: written(text) for name, text in written_values.items()})
        names.update({name: lift(value, meter) for name, value in given_values.items()})
        out: list[Text] = []
        Statements(meter).run(self._body, Scope(names), out)
        return joined(out, meter)


def _check(node: nodes.Node, *, is_soft: bool = False) -> None:
    """Refuse by name what we would not know how to evaluate.

    As in Jinja, a filter or test in a branch that may never be taken is missed when it is.
    """
    kind = type(node).__name__
    where = f"line {node.lineno}"
    if type(node) not in _ALLOWED:
        raise UnsupportedTemplate(f"{where}: {kind} is not supported")
    is_soft = is_soft or isinstance(node, (nodes.If, nodes.CondExpr))
    if isinstance(node, nodes.Filter) and node.name not in FILTERS and not is_soft:
        raise UnsupportedTemplate(f"{where}: filter '{node.name}' is not supported")
    if isinstance(node, nodes.Test) and node.name not in TESTS and not is_soft:
        raise UnsupportedTemplate(f"{where}: test '{node.name}' is not supported")
    if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        raise UnsupportedTemplate(f"{where}: attribute '{node.attr}' is not supported")
    if isinstance(node, nodes.For) and node.recursive:
        raise UnsupportedTemplate(f"{where}: a recursive loop is not supported")
    is_unpacked = isinstance(node, (nodes.Call, nodes.Filter, nodes.Test))
    if is_unpacked and (node.dyn_args is not None or node.dyn_kwargs is not None):  # type: ignore[attr-defined]
        raise UnsupportedTemplate(f"{where}: unpacked arguments are not supported")
    for child in node.iter_child_nodes():
        _check(child, is_soft=is_soft)


def _attributes(tree: nodes.Node) -> Iterator[str]:
    for attribute in tree.find_all(nodes.Getattr):
        yield attribute.attr
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            # map(attribute="function.name") reads both.
            yield from constant.value.split(".")


def _fuel_for(values: Mapping[str, Any]) -> int:
    """More for a longer conversation, up to a bound."""
    messages, tools = values.get("messages") or (), values.get("tools") or ()
    return min(_MAX_FUEL, _FUEL + 1_000 * (len(messages) + len(tools)))


def _raise(text: Any, meter: Meter) -> None:
    raise TemplateRaised(text_of(text, meter).value[:1_000])


def _format_day(day: date, text: Any) -> Text:
    value = want_text(text, "a date's format").value
    signs = [value[index + 1 : index + 2] for index, c in enumerate(value) if c == "%"]
    if len(value) > 200 or not set(signs) <= _DATE_SIGNS:
        raise TemplateFault("a date's format is not supported")
    return written(day.strftime(value))


def _typed(text: Text, meter: Meter) -> TypedText:
    stretches = runs(text.mask, meter)
    return TypedText(
        tuple((text.value[start:end], text.mask[start] == 1) for start, end in stretches)
    )
