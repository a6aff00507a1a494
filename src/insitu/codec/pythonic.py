"""Calls written as Python expressions, read as data: nothing is evaluated.

Always true: only names, keyword arguments and literals are understood; all else is no call.
"""

from __future__ import annotations

import ast
import json
import math
from typing import Any

_NAMES = {"true": True, "false": False, "null": None}


def calls_of(text: str) -> list[tuple[str, dict[str, Any]]] | None:
    """The calls of ``[f(a=1), g()]``, or of one or several without brackets; None if it is none."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    try:
        made = [_call(node) for node in nodes]
    except (ValueError, RecursionError):
        return None
    return made or None


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError
        arguments[keyword.arg] = _literal(keyword.value)
    json.dumps(arguments)
    return _name(node.func), arguments


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    raise ValueError


def _literal(node: ast.expr) -> Any:
    """A value that JSON can hold."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        return {
            _key(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)
        }
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    value = ast.literal_eval(node)
    is_number = isinstance(value, int | float) and math.isfinite(value)
    if value is not None and not isinstance(value, str) and not is_number:
        raise ValueError
    return value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError
    return node.value
