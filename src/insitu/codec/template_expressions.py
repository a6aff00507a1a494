"""What an expression of a chat template is worth.

Not here: statements (``template_statements``), what is allowed at all (``template``).

Always true: every node costs fuel; attributes reach only what is named here, never Python's own.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from jinja2 import nodes

from insitu.codec import template_strings as strings
from insitu.codec.template_filters import FILTERS, named, pairs
from insitu.codec.template_tests import TESTS, compare
from insitu.codec.template_values import (
    MAX_RANGE,
    Function,
    Items,
    Namespace,
    Record,
    Stream,
    TemplateFault,
    TemplateLimitError,
    Text,
    Undefined,
    checked_number,
    contains,
    elements,
    equal,
    is_number,
    joined,
    key_of,
    kind_of,
    text_of,
    truth,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.codec.template_values import Meter

ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    nodes.Add: operator.add,
    nodes.Sub: operator.sub,
    nodes.Mul: operator.mul,
    nodes.Div: operator.truediv,
    nodes.FloorDiv: operator.floordiv,
    nodes.Mod: operator.mod,
    nodes.Pow: operator.pow,
}
_MAX_POWER = 64


class Scope:
    """Names in sight, innermost last; the first holds what the whole template sees."""

    def __init__(self, *frames: dict[str, Any]) -> None:
        self.frames = list(frames)

    def find(self, name: str) -> Any:
        """A name's value."""
        for frame in reversed(self.frames):
            if name in frame:
                return frame[name]
        return Undefined(name)


class Expressions:
    """Evaluates expressions against a scope; one for one rendering."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._handlers: dict[type, Callable[[Any, Scope], Any]] = {
            nodes.Const: self._const,
            nodes.TemplateData: lambda node, scope: written(node.data),
            nodes.Name: lambda node, scope: scope.find(node.name),
            nodes.Tuple: self._list,
            nodes.List: self._list,
            nodes.Dict: self._dict,
            nodes.CondExpr: self._condition,
            nodes.Filter: self._filter,
            nodes.Test: self._test,
            nodes.Call: self._call,
            nodes.Getattr: self._getattr,
            nodes.Getitem: self._getitem,
            nodes.Concat: self._concat,
            nodes.Compare: self._compare,
            nodes.And: self._and,
            nodes.Or: self._or,
            nodes.Not: lambda node, scope: not truth(self.value(node.node, scope)),
            nodes.Neg: lambda node, scope: -self._number(node.node, scope),
            nodes.Pos: lambda node, scope: self._number(node.node, scope),
            **dict.fromkeys(ARITHMETIC, self._arithmetic),
        }

    def value(self, node: nodes.Node, scope: Scope) -> Any:
        """The value of an expression."""
        self._meter.spend()
        return self._handlers[type(node)](node, scope)

    def _const(self, node: nodes.Const, _: Scope) -> Any:
        if isinstance(node.value, str):
            text = written(node.value)
            self._meter.look(text)
            return text
        return node.value

    def _list(self, node: nodes.List, scope: Scope) -> Items:
        made = Items(self.value(item, scope) for item in node.items)
        made.from_template = True
        return made

    def _dict(self, node: nodes.Dict, scope: Scope) -> Record:
        record, is_written = Record(), True
        for pair in node.items:
            key = self.value(pair.key, scope)
            is_written &= not isinstance(key, Text) or 0 not in key.mask
            record[key_of(key)] = self.value(pair.value, scope)
        record.from_template = is_written
        return record

    def _condition(self, node: nodes.CondExpr, scope: Scope) -> Any:
        if truth(self.value(node.test, scope)):
            return self.value(node.expr1, scope)
        return Undefined("else") if node.expr2 is None else self.value(node.expr2, scope)

    def _filter(self, node: nodes.Filter, scope: Scope) -> Any:
        assert node.node is not None
        value = self.value(node.node, scope)
        return self.applied(
            f"filter {node.name}", named(FILTERS, node.name, "filter"), node, scope, value
        )

    def _test(self, node: nodes.Test, scope: Scope) -> Any:
        value = self.value(node.node, scope)
        return self.applied(
            f"test {node.name}", named(TESTS, node.name, "test"), node, scope, value
        )

    def applied(
        self, name: str, function: Callable[..., Any], node: Any, scope: Scope, value: Any
    ) -> Any:
        """A filter or test with its arguments, on a value."""
        args, kwargs = self._arguments(node, scope)
        return self._run(name, function, (self._meter, value, *args), kwargs)

    def _run(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        # Whatever it does with a string takes at least a look at each character.
        self._meter.look(*args, *kwargs.values())
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            raise TemplateFault(f"{name} cannot take what it was given") from error

    def _arguments(self, node: Any, scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        args = [self.value(argument, scope) for argument in node.args]
        return args, {pair.key: self.value(pair.value, scope) for pair in node.kwargs}

    def _call(self, node: nodes.Call, scope: Scope) -> Any:
        target = self.value(node.node, scope)
        if not isinstance(target, Function):
            raise TemplateFault(f"{kind_of(target)} cannot be called")
        args, kwargs = self._arguments(node, scope)
        return self._run(target.name, target.call, args, kwargs)

    def _getattr(self, node: nodes.Getattr, scope: Scope) -> Any:
        return self.attribute(self.value(node.node, scope), node.attr)

    def attribute(self, value: Any, name: str) -> Any:
        """``value.name``: a method known here, or else a mapping's entry."""
        if isinstance(value, Undefined):
            raise TemplateFault(f"'{value.name}' is undefined")
        if isinstance(value, Text) and name in strings.METHODS:
            return self._method(name, strings.METHODS[name], value)
        if isinstance(value, Record):
            if name in _RECORD_METHODS:
                return self._method(name, _RECORD_METHODS[name], value)
            if name in _CHANGING:
                raise TemplateFault(f"a mapping's {name}() is not supported")
            return value.get(name, Undefined(name))
        if isinstance(value, Namespace):
            return value.values.get(name, Undefined(name))
        if isinstance(value, Items):
            if name in _CHANGING:
                raise TemplateFault(f"a list's {name}() is not supported")
            if name in _ITEMS_METHODS:
                return self._method(name, _ITEMS_METHODS[name], value)
        return Undefined(name)

    def _method(self, name: str, method: Callable[..., Any], value: Any) -> Function:
        meter = self._meter

        def call(*args: Any, **kwargs: Any) -> Any:
            meter.look(value)  # at each call: a template may keep a method and call it often
            return method(meter, value, *args, **kwargs)

        return Function(name, call)

    def _getitem(self, node: nodes.Getitem, scope: Scope) -> Any:
        value = self.value(node.node, scope)
        if isinstance(value, Undefined):
            raise TemplateFault(f"'{value.name}' is undefined")
        if isinstance(node.arg, nodes.Slice):
            return self._slice(value, node.arg, scope)
        key = self.value(node.arg, scope)
        if isinstance(value, Record):
            name = key_of(key)
            return value.get(name, Undefined(str(name)))
        if isinstance(value, Stream):
            return Undefined("item")
        if isinstance(value, (Text, Items)) and isinstance(key, int):
            is_inside = -len(value) <= key < len(value)
            return value[key] if is_inside else Undefined(f"item {key}")
        if isinstance(key, Text):
            return self.attribute(value, key.value)
        return Undefined("item")

    def _slice(self, value: Any, node: nodes.Slice, scope: Scope) -> Any:
        parts = [
            None if part is None else self.value(part, scope)
            for part in (node.start, node.stop, node.step)
        ]
        if not all(part is None or isinstance(part, int) for part in parts) or parts[2] == 0:
            raise TemplateFault("a slice needs integers, and a step other than 0")
        if not isinstance(value, (Text, Items)):
            raise TemplateFault(f"{kind_of(value)} cannot be sliced")
        self._meter.make(len(value))
        if isinstance(value, Text):
            return value[slice(*parts)]
        made = Items(value[slice(*parts)])
        made.from_template = value.from_template
        return made

    def _concat(self, node: nodes.Concat, scope: Scope) -> Text:
        meter = self._meter
        return joined([text_of(self.value(part, scope), meter) for part in node.nodes], meter)

    def _compare(self, node: nodes.Compare, scope: Scope) -> bool:
        left = self.value(node.expr, scope)
        for operand in node.ops:
            right = self.value(operand.expr, scope)
            if not self._holds(operand.op, left, right):
                return False
            left = right
        return True

    def _holds(self, op: str, left: Any, right: Any) -> bool:
        if op in {"in", "notin"}:
            return contains(right, left, self._meter) == (op == "in")
        if op in {"eq", "ne"}:
            return equal(left, right, self._meter) == (op == "eq")
        order = compare(self._meter, left, right)
        return {"lt": order < 0, "lteq": order <= 0, "gt": order > 0, "gteq": order >= 0}[op]

    def _and(self, node: nodes.And, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        return self.value(node.right, scope) if truth(left) else left

    def _or(self, node: nodes.Or, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        return left if truth(left) else self.value(node.right, scope)

    def _number(self, node: nodes.Node, scope: Scope) -> Any:
        value = self.value(node, scope)
        if not is_number(value):
            raise TemplateFault(f"{kind_of(value)} has no sign")
        return value

    def _arithmetic(self, node: nodes.BinExpr, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        kind = type(node)
        if isinstance(left, Text) and kind is nodes.Mod:
            self._meter.look(left)
            values = list(right) if isinstance(right, Items) else [right]
            return strings.percent(self._meter, left, values)
        if isinstance(left, Text) and isinstance(right, Text) and kind is nodes.Add:
            return strings.added(self._meter, left, right)
        if isinstance(left, Items) and isinstance(right, Items) and kind is nodes.Add:
            self._meter.spend((len(left) + len(right)) // 16)
            made = Items([*left, *right])
            made.from_template = left.from_template and right.from_template
            return made
        if kind is nodes.Mul and isinstance(left, Text) and isinstance(right, int):
            self._meter.make(len(left) * max(0, right))
            return Text(left.value * right, left.mask * right)
        if not (is_number(left) and is_number(right)):
            raise TemplateFault(f"{kind_of(left)} and {kind_of(right)} do not go together")
        if kind is nodes.Pow and abs(right) > _MAX_POWER:
            raise TemplateLimitError("a power is too large")
        try:
            return checked_number(ARITHMETIC[kind](left, right))
        except (ZeroDivisionError, OverflowError) as error:
            raise TemplateFault("a number is divided by 0 or too large") from error


def _get(_: Meter, record: Record, key: Any, default: Any = None) -> Any:
    return record.get(key_of(key), default)


def _index(meter: Meter, items: Items, wanted: Any) -> int:
    for index, item in enumerate(items):
        if equal(item, wanted, meter):
            return index
    raise TemplateFault("a list does not hold what was looked for")


_RECORD_METHODS: dict[str, Callable[..., Any]] = {
    "get": _get,
    "items": pairs,
    "keys": lambda meter, record: Items(elements(record, meter)),
    "values": lambda meter, record: Items(record.values()),
}
_ITEMS_METHODS: dict[str, Callable[..., Any]] = {
    "index": _index,
    "count": lambda meter, items, wanted: sum(equal(item, wanted, meter) for item in items),
}
# What Python's mappings and lists have and a template may not use: it would change a value.
_CHANGING = frozenset(
    {
        "append", "clear", "copy", "extend", "fromkeys", "insert", "pop", "popitem", "remove",
        "reverse", "setdefault", "sort", "update",
    }
)  # fmt: skip


def make_range(meter: Meter, *bounds: Any) -> Items:
    """``range()``, up to a length."""
    if not all(isinstance(bound, int) for bound in bounds):
        raise TemplateFault("range needs integers")
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise TemplateLimitError(f"a range is longer than {MAX_RANGE}")
    meter.spend(len(numbers) // 16)
    return Items(numbers)


def make_namespace(*args: Any, **kwargs: Any) -> Namespace:
    """``namespace()``."""
    values: dict[str, Any] = {}
    for record in args:
        if not isinstance(record, Record):
            raise TemplateFault("a namespace is made of names and mappings")
        values.update(record)
    return Namespace({**values, **kwargs})


def make_record(**kwargs: Any) -> Record:
    """``dict()``."""
    record = Record(kwargs)
    record.from_template = True
    return record
