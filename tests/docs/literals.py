"""Texts that the code has in calls and tuples; a name is what was assigned to it before."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

Scope = dict[str, list[ast.expr]]


def functions(path: Path) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield each function of a module, and its body at the end, with what names are assigned."""
    tree = ast.parse(path.read_text())
    module = _assigned(tree)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and id(node) not in inside:
            inside |= {id(one) for one in ast.walk(node)}
            yield node, {**module, **_assigned(node)}
    rest = [one for one in tree.body if not isinstance(one, ast.FunctionDef | ast.ClassDef)]
    yield ast.Module(rest, []), module


def _assigned(scope: ast.AST) -> Scope:
    found: Scope = {}
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, value in zip(names, values, strict=False):
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found.setdefault(name, []).append(value)
    return found


def texts(node: ast.expr | None, scope: Scope, depth: int = 3) -> list[str]:
    """Return what an expression may say, `...` for what is known only when it runs."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(_part(part, scope, depth) for part in parts)]
        case ast.IfExp(body=one, orelse=other):
            return [*texts(one, scope, depth), *texts(other, scope, depth)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = texts(left, scope, depth), texts(right, scope, depth)
            return [f"{a}{b}" for a in first or ["..."] for b in second or ["..."]]
        case ast.Name(id=name, lineno=line) if depth and name in scope:
            # What was assigned last, as the text runs.
            before = [value for value in scope[name] if value.lineno <= line]
            return texts((before or scope[name])[-1], scope, depth - 1)
    return []


def known_texts(node: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return what an expression may say as one that needs no names; nothing where that is open."""
    found: list[ast.expr] = [
        ast.Constant(value=text, lineno=0, col_offset=0) for text in texts(node, scope)
    ]
    while len(found) > 1:
        one, other, *rest = found
        both = ast.IfExp(test=one, body=one, orelse=other, lineno=0, col_offset=0)
        found = [both, *rest]
    return found


def _part(part: ast.expr, scope: Scope, depth: int) -> str:
    if isinstance(part, ast.FormattedValue):
        known = texts(part.value, scope, depth - 1) if depth else []
        return known[0] if len(known) == 1 else "..."
    return (texts(part, scope, depth) or ["..."])[0]
