"""Wrong edits by rule: of every tagged statement of algorithms/, of the masks, and of the rules derived by hand.

Each drops a term or a scale, negates, swaps operands, shifts an index or a bound, transposes, takes another axis, skips a
function, or reads the sibling of a parameter.
"""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

from algorithms.machinery.tags import tags_in, tags_of
from tests.mutations.edits import Edit, Offsets, statements

__all__ = ["ROOT", "generated"]

ROOT = pathlib.Path(__file__).resolve().parents[2]
BY_HAND = re.compile(r"forward|backward|jvp|rule|core")
"""In the name of a function of ops/ that is part of a rule derived by hand."""
WHOLE = ("alg01_embedding", "losses", "masks", "model/attention", "model/distances", "model/embedding", "model/mlp",
         "model/norm", "model/positions", "ops/activation", "ops/rotation")  # fmt: skip
"""Files of which every statement is meant, tagged or not, but those that check arguments."""
SKIPPED = {"abs", "drop", "exp", "layer_norm", "log", "roll", "score", "softmax", "sqrt", "square", "tanh"}
"""Functions of one array, in whose place the array can be."""
SIBLINGS = {
    "norm1": "norm2", "norm2": "norm1", "norm3": "norm4", "norm4": "norm5", "norm5": "norm4", "W_k": "W_v", "W_v": "W_k",
    "self_attention": "cross_attention", "cross_attention": "self_attention", "sin": "cos", "cos": "sin",
}  # fmt: skip
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}


@functools.cache
def generated() -> dict[str, Edit]:
    """Return all edits by name: file, function and statement, code → code in its place."""
    found: dict[str, Edit] = {}
    for path in sorted((ROOT / "algorithms").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith(("algorithms/machinery/", "algorithms/inside/")):
            for name, edit in _of_file(file, path.read_text("utf-8")):
                found.setdefault(name, edit)
    return found


def _of_file(file: str, text: str) -> Iterator[tuple[str, Edit]]:
    tags, where = tags_in(text), Offsets(text)
    for function, statement in statements(ast.parse(text)):
        if not function:
            continue
        tag = tags_of(statement, tags)
        by_hand = file.startswith("algorithms/ops/") and any(map(BY_HAND.search, function.split(".")))
        is_whole = file.removeprefix("algorithms/").removesuffix(".py") in WHOLE and "__post_init__" not in function
        if tag is None and not by_hand and not is_whole:
            continue
        line = tag[0].first if tag else "inside"
        for expression in _expressions(statement):
            for node, new in _wrong(expression, where.source):
                first, end = where.span(node)
                said = " ".join(f"{text[first:end]} → {new}".split())
                name = f"{file.removeprefix('algorithms/')}: {function}, {line}: {said}"
                yield name, Edit(file, function, line, text[first:end], new, at=(first, end))


def _expressions(statement: ast.stmt) -> list[ast.expr]:
    """What of a statement is edited: the value, the condition, or the head of a loop."""
    if isinstance(statement, ast.FunctionDef):
        return [d for d in statement.decorator_list if isinstance(d, ast.Call)]
    kept = ("value", "test", "iter")
    return [part for name in kept if isinstance(part := getattr(statement, name, None), ast.expr)]


def _wrong(expression: ast.expr, source) -> Iterator[tuple[ast.expr, str]]:
    """Yield each part of an expression that can be edited, and what takes its place."""
    nodes = list(ast.walk(expression))
    powers = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)]
    squared = {power.left for power in powers if source(power.right) == "2"}
    squared |= {n.args[0] for n in nodes if isinstance(n, ast.Call) and source(n.func) == "jnp.square"}
    choices = {n for n in nodes if isinstance(n, ast.Compare | ast.IfExp) and "as_printed()" in source(n)}
    for node in (n for n in nodes if n not in choices):  # all implementations compute the same
        match node:
            case ast.BinOp():
                wrong = _of_operation(node, source(node.left), source(node.right))
                is_even = node in squared and isinstance(node.op, ast.Sub)  # the square of a − b is that of b − a
                yield from ((node, new) for new in (wrong[:-1] if is_even else wrong))
            case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
                yield node, source(node.operand)
            case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
                yield node, f"{source(node.left)} {COMPARISONS[type(op)]} {source(node.comparators[0])}"
            case ast.IfExp():
                yield node, f"{source(node.orelse)} if {source(node.test)} else {source(node.body)}"
            case ast.Subscript():
                yield from ((index, f"({source(index)}) + 1") for index in _indices(node))
            case ast.Attribute(attr=name) if name == "T" or name in SIBLINGS:
                yield node, source(node.value) if name == "T" else f"{source(node.value)}.{SIBLINGS[name]}"
            case ast.Call():
                yield from _of_call(node, source)
            case ast.keyword(arg="axis", value=ast.Constant(value=int(axis))):
                yield node.value, "-1" if axis == 0 else "0"


def _of_operation(node: ast.BinOp, left: str, right: str) -> list[str]:
    match node.op:
        case ast.Add():
            return [left, f"{left} - ({right})", right]
        case ast.Sub():
            return [left, f"{left} + {right}", f"({right}) - ({left})"]
        case ast.Mult():
            return [left, right]
        case ast.Div() | ast.Pow() | ast.FloorDiv() | ast.Mod():
            return [left]
        case ast.BitAnd() | ast.BitOr():
            return [left, right]
        case ast.MatMult():
            return [f"({right}) @ ({left})"]
    return []


def _of_call(node: ast.Call, source) -> Iterator[tuple[ast.expr, str]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "where" and len(node.args) == 3:
        condition, one, other = map(source, node.args)
        yield node, f"{source(node.func)}({condition}, {other}, {one})"
    if name in SKIPPED and node.args:
        yield node, source(node.args[0])
    for argument in node.args:
        last = argument.attr if isinstance(argument, ast.Attribute) else getattr(argument, "id", "")
        if last.startswith("b_"):
            yield argument, f"0 * {source(argument)}"


def _indices(node: ast.Subscript) -> Iterator[ast.expr]:
    """The numbers in a subscript, which has slices, new axes and strings, too."""
    for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
        for index in (part.lower, part.upper) if isinstance(part, ast.Slice) else (part,):
            is_number = isinstance(index, ast.Constant) and isinstance(index.value, int)
            if is_number or isinstance(index, ast.Name | ast.BinOp | ast.UnaryOp):
                yield index
