"""Digests of code, in which text, comments, annotations and imports do not count."""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from functools import cache

# They run a benchmark and make none of its numbers.
WITHOUT_NUMBERS = ("_records", "_methods", "_command_line", "_timing")


def digest(path):
    """Return a digest of a file; of a module, of the code that makes its results.

    So a module that has moved has not changed, nor have those that import it.
    """
    content = path.read_bytes()
    return short_digest("\n".join(_code(ast.parse(content))) if path.suffix == ".py" else content)


def short_digest(content):
    """Return a short digest of a text or of bytes."""
    content = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()[:8]


def _code(node, modules=()):
    """Yield the names and constants of a syntax tree, without text and the names of modules."""
    is_text = isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", 0), str)
    is_text |= isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    if is_text or isinstance(node, ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.JoinedStr):
        # What it computes and how it is shown, without the text between.
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                yield from _code(one.value, modules)
                yield ast.dump(one.format_spec) if one.format_spec else ""
        return
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in modules:
        node = ast.Name(node.attr, node.ctx)
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST) and name not in ("annotation", "returns"):
                yield from _code(one, modules)
            elif isinstance(one, str | int | float):
                yield repr(one)


@cache
def digest_of_command(root, home, name, options):
    """Return a digest of the code that makes the numbers of a benchmark's command.

    This is the function of this name, or else `main`, with all that they lead to by name, in any
    file of the benchmarks, and the defaults of its options.
    """
    own, _ = _definitions(root, home)
    start = [*own[name], *_defaults(own["main"], options)] if name in own else own["main"]
    waiting, found = [(home, node) for node in start], {}
    while waiting:
        module, node = waiting.pop()
        if node not in found:
            imported = _definitions(root, module)[1]
            found[node] = "\n".join(_code(node, imported))
            local = _local_names(node) if isinstance(node, ast.FunctionDef) else ()
            for one in ast.walk(node):
                if isinstance(one, ast.Name) and one.id not in local:
                    waiting += _resolved(root, module, one.id)
                elif isinstance(one, ast.Attribute) and getattr(one.value, "id", "") in imported:
                    waiting += _resolved(root, ".".join(imported[one.value.id]), one.attr)
    return short_digest("\n\n".join(sorted(found.values())))


@cache
def _definitions(root, module):
    """Return the statements of a module by the names they define, and where others are from."""
    own, imported = defaultdict(list), {}
    path = root / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists() or path.stem in WITHOUT_NUMBERS:
        return own, imported
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("benchmarks"):
            imported |= {one.asname or one.name: (node.module, one.name) for one in node.names}
    # Also what an if defines, such as METHODS |= {...} where torch is installed.
    inner = [one for node in tree.body if isinstance(node, ast.If) for one in node.body]
    for node in [*tree.body, *inner]:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        parts = (part for one in targets if one for part in ast.walk(one))
        names = {getattr(part, "id", None) for part in parts} | {getattr(node, "name", None)}
        for name in names - {None}:
            own[name].append(node)
    return own, imported


def _local_names(function):
    """Return the names of a function's variables."""
    parts = [*ast.walk(function)]
    names = (one for one in parts if isinstance(one, ast.Name))
    stored = {one.id for one in names if isinstance(one.ctx, ast.Store)}
    return stored | {one.arg for one in parts if isinstance(one, ast.arg)}


def _resolved(root, module, name):
    """Return the statements that define a name, and their modules."""
    own, imported = _definitions(root, module)
    if name in imported:
        return _resolved(root, *imported[name])
    return [(module, node) for node in own.get(name, ())]


def _defaults(main, options):
    """Return the defaults of a record's options, as syntax trees."""
    return [
        keyword.value
        for node in main
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"
        for keyword in call.keywords
        if keyword.arg == "default" and call.args[-1].value.strip("-").replace("-", "_") in options
    ]
