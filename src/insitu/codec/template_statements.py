"""What the statements of a chat template write.

Not here: expressions (``template_expressions``), the entry and its limits (``template``).

Always true: a loop's and a macro's names stay inside it, as Jinja has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import nodes

from insitu.codec.template_expressions import Expressions, Scope
from insitu.codec.template_filters import FILTERS, named
from insitu.codec.template_values import (
    Function,
    Items,
    Namespace,
    Record,
    TemplateFault,
    TemplateLimitError,
    Text,
    Undefined,
    elements,
    equal,
    joined,
    kind_of,
    text_of,
    truth,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from insitu.codec.template_values import Meter

_MAX_MACRO_DEPTH = 16


class _LeftTurn(TemplateFault):
    """Ends a turn of the loop around it; a fault where there is none."""

    def __init__(self) -> None:
        super().__init__("a break or continue stands outside of a loop")


class _BreakLoop(_LeftTurn):
    pass


class _ContinueLoop(_LeftTurn):
    pass


class Statements:
    """Executes statements; one for one rendering."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._expressions = Expressions(meter)
        self._macro_depth = 0
        self._handlers: dict[type, Callable[[Any, Scope, list[Text]], None]] = {
            nodes.Output: self._output,
            nodes.If: self._if,
            nodes.For: self._for,
            nodes.Assign: self._assign,
            nodes.AssignBlock: self._assign_block,
            nodes.Macro: self._macro,
            nodes.With: self._with,
            nodes.FilterBlock: self._filter_block,
            nodes.Break: self._break,
            nodes.Continue: self._continue,
        }

    def run(self, body: Iterable[nodes.Node], scope: Scope, out: list[Text]) -> None:
        """Execute statements in order, writing to ``out``."""
        for node in body:
            self._meter.spend()
            self._handlers[type(node)](node, scope, out)

    def _value(self, node: nodes.Node, scope: Scope) -> Any:
        return self._expressions.value(node, scope)

    def _output(self, node: nodes.Output, scope: Scope, out: list[Text]) -> None:
        for part in node.nodes:
            text = text_of(self._value(part, scope), self._meter)
            self._meter.make(len(text))
            out.append(text)

    def _if(self, node: nodes.If, scope: Scope, out: list[Text]) -> None:
        for branch in (node, *node.elif_):
            if truth(self._value(branch.test, scope)):
                self.run(branch.body, scope, out)
                return
        self.run(node.else_, scope, out)

    def _for(self, node: nodes.For, scope: Scope, out: list[Text]) -> None:
        values = elements(self._value(node.iter, scope), self._meter)
        if node.test is not None:
            values = [value for value in values if self._is_kept(node, value, scope)]
        loop = _Loop(values, self._meter)
        for index, value in enumerate(values):
            self._meter.spend()
            frame: dict[str, Any] = {}
            inner = Scope(*scope.frames, frame)
            self._bind(node.target, value, inner)
            frame["loop"] = loop.at(index)
            try:
                self.run(node.body, inner, out)
            except _ContinueLoop:
                continue
            except _BreakLoop:
                break
        if not values:
            self.run(node.else_, Scope(*scope.frames, {}), out)

    def _is_kept(self, node: nodes.For, value: Any, scope: Scope) -> bool:
        assert node.test is not None
        inner = Scope(*scope.frames, {})
        self._bind(node.target, value, inner)
        return truth(self._value(node.test, inner))

    def _bind(self, target: nodes.Node, value: Any, scope: Scope) -> None:
        if isinstance(target, nodes.Name):
            scope.frames[-1][target.name] = value
        elif isinstance(target, nodes.NSRef):
            space = scope.find(target.name)
            if not isinstance(space, Namespace):
                raise TemplateFault(f"{kind_of(space)} is not a namespace")
            space.values[target.attr] = value
        else:
            assert isinstance(target, nodes.Tuple)
            values = elements(value, self._meter)
            if len(values) != len(target.items):
                raise TemplateFault(f"{len(values)} values do not fit {len(target.items)} names")
            for part, item in zip(target.items, values, strict=True):
                self._bind(part, item, scope)

    def _assign(self, node: nodes.Assign, scope: Scope, _: list[Text]) -> None:
        self._bind(node.target, self._value(node.node, scope), scope)

    def _assign_block(self, node: nodes.AssignBlock, scope: Scope, _: list[Text]) -> None:
        text: Any = self._captured(node.body, Scope(*scope.frames, {}))
        if node.filter is not None:
            text = self._filtered(node.filter, text, scope)
        self._bind(node.target, text, scope)

    def _filter_block(self, node: nodes.FilterBlock, scope: Scope, out: list[Text]) -> None:
        text = self._captured(node.body, Scope(*scope.frames, {}))
        out.append(text_of(self._filtered(node.filter, text, scope), self._meter))

    def _filtered(self, node: nodes.Filter, text: Text, scope: Scope) -> Any:
        # The innermost filter of the chain has no operand: the block's text stands there.
        if node.node is not None:
            assert isinstance(node.node, nodes.Filter)
            text = self._filtered(node.node, text, scope)
        return self._expressions.applied(
            f"filter {node.name}", named(FILTERS, node.name, "filter"), node, scope, text
        )

    def _captured(self, body: Iterable[nodes.Node], scope: Scope) -> Text:
        out: list[Text] = []
        self.run(body, scope, out)
        return joined(out, self._meter)

    def _with(self, node: nodes.With, scope: Scope, out: list[Text]) -> None:
        inner = Scope(*scope.frames, {})
        values = [self._value(value, scope) for value in node.values]
        for target, value in zip(node.targets, values, strict=True):
            self._bind(target, value, inner)
        self.run(node.body, inner, out)

    def _break(self, *_: object) -> None:
        raise _BreakLoop

    def _continue(self, *_: object) -> None:
        raise _ContinueLoop

    def _macro(self, node: nodes.Macro, scope: Scope, _: list[Text]) -> None:
        frames = tuple(scope.frames)

        def call(*args: Any, **kwargs: Any) -> Text:
            frame = self._macro_frame(node, Scope(*frames), args, kwargs)
            if self._macro_depth == _MAX_MACRO_DEPTH:
                raise TemplateLimitError(
                    f"macros call each other more than {_MAX_MACRO_DEPTH} deep"
                )
            self._macro_depth += 1
            try:
                return self._captured(node.body, Scope(*frames, frame))
            finally:
                self._macro_depth -= 1

        scope.frames[-1][node.name] = Function(f"macro {node.name}", call)

    def _macro_frame(
        self, node: nodes.Macro, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        names = [argument.name for argument in node.args]
        unknown = kwargs.keys() - set(names[len(args) :])
        if len(args) > len(names) or unknown:
            raise TemplateFault(f"macro {node.name} does not take these arguments")
        frame = dict(zip(names, args, strict=False))
        num_required = len(names) - len(node.defaults)
        inner = Scope(*scope.frames, frame)
        for index in range(len(args), len(names)):
            name = names[index]
            if name in kwargs:
                frame[name] = kwargs[name]
            elif index >= num_required:
                frame[name] = self._value(node.defaults[index - num_required], inner)
            else:
                frame[name] = Undefined(name)
        return frame


class _Loop:
    """The ``loop`` variable, made anew for each turn."""

    def __init__(self, values: list[Any], meter: Meter) -> None:
        self._values = values
        self._meter = meter
        self._previous: Any = None

    def at(self, index: int) -> Record:
        """What ``loop`` is at this turn."""
        values, size = self._values, len(self._values)
        record = Record(
            index=index + 1,
            index0=index,
            revindex=size - index,
            revindex0=size - index - 1,
            first=index == 0,
            last=index == size - 1,
            length=size,
            cycle=Function("loop.cycle", lambda *args: args[index % len(args)] if args else None),
            changed=Function("loop.changed", self._changed),
        )
        if index:
            record["previtem"] = values[index - 1]
        if index + 1 < size:
            record["nextitem"] = values[index + 1]
        return record

    def _changed(self, *args: Any) -> bool:
        value = Items(args)
        has_changed = self._previous is None or not equal(value, self._previous, self._meter)
        self._previous = value
        return has_changed
