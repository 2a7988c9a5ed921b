"""Cost of an optimized HLO module per step: cycles, bytes, kernels and collectives. Parses text, without jax."""

import itertools
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+\w*|c64|c128)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
INSTRUCTION = re.compile(r"  (ROOT )?%(\S+) = (.+?) ([a-z][a-z\d\-]*)\(([^)]*)\)(.*)", re.DOTALL)
FREE = re.compile(
    "parameter|constant|(get-)?tuple(-element)?|bitcast|iota|after-all|.*-id|opt-barrier|add-dependency|.*-(done|update)"
    "|AllocateBuffer|ConcatBitcast|AssumeGatherIndicesInBound|GatherScatterIndicesBitpacked"
)
SLICES = ("dynamic-slice", "slice", "gather")
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # in-place update → the operand with the new entries
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


class Report(NamedTuple):
    """A step on one device: tables of name → [runs, bytes, cycles]; docs/notes/performance.md says what is left out."""

    sources: dict[str, list[float]]  # all instructions, by compiled function and "file:function" of the source line
    copies: dict[str, list[float]]  # copies and transposes, including fused ones
    custom_calls: dict[str, list[float]]  # kernels of Pallas and of libraries
    collectives: dict[str, list[float]]  # bytes of the result of an all-gather, or of the operand of another kind
    groups: dict[str, list[float]]  # the same, by kind, number of devices, and the span of their IDs
    memory: dict[str, int]  # bytes of "argument", "temp" and "output"


def total(table: dict[str, list[float]]) -> list[float]:
    """Return the sums of a table: runs, bytes and cycles."""
    return [sum(column) for column in zip([0, 0, 0], *table.values(), strict=True)]


class Instruction(NamedTuple):
    """An instruction of the module; ``inside`` is the text between its parentheses, ``rest`` the text after them."""

    root: str | None
    name: str
    shape: str
    op: str
    inside: str
    rest: str
    operands: list[str]

    def find(self, pattern: str) -> str:
        """Return the first group of a pattern in the rest, or ""."""
        match = re.search(pattern, self.rest)
        return match[1] if match else ""

    @property
    def target(self) -> str:
        """The target of a custom call; the operation of any other instruction."""
        return self.find(r'custom_call_target="([^"]*)"') or self.op


Body = dict[str, Instruction]


class Execution(NamedTuple):
    """An instruction that runs."""

    instruction: Instruction
    operands: list[str]  # shapes
    times: int  # number of runs
    bytes: float  # per run
    loops: tuple[str, ...]  # around it


class Module:
    """A parsed module: instructions by computation and name."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Body] = {}
        self.tpu = ":T(" in text  # tiled layouts
        text = re.sub(r"\n(?!  |%|ENTRY|\}?\n|\}?$|\d+ |HloModule|File|Function|StackFrames)", " ", text)  # in strings
        body: Body = {}
        for line in text.split("\n"):
            if header := re.match(r"(ENTRY )?%(\S+) .*\{$", line):
                body = self.computations["ENTRY" if header[1] else header[2]] = {}
            elif match := INSTRUCTION.match(line):
                root, name, shape, op, inside, rest = match.groups()
                body[name] = Instruction(root, name, shape, op, inside, rest, re.findall(r"%([\w.\-]+)", inside))

    def called(self, i: Instruction) -> Body:
        """Return the computation that an instruction calls."""
        return self.computations[i.find(r"(?:to_apply|calls|body)=%?([\w.\-]+)")]

    def size(self, shape: str, *, anywhere: bool = False, padded: bool = True) -> float:
        """Return the bytes of a shape's arrays in device memory (``anywhere``: or on-chip memory), in whole tiles."""
        bytes_ = 0.0
        for dtype, dims, order, layout in ARRAY.findall(shape):
            space = re.search(r"S\((\d+)\)", layout)
            if space and not anywhere and (self.tpu or space[1] == "5"):  # 5: host memory
                continue
            sizes = [int(n) for n in dims.split(",") if n]
            if order and padded and (tile := re.match(r"T\(([\d,]+)\)", layout)):
                sizes = [sizes[int(axis)] for axis in reversed(order.split(","))]
                for k, n in enumerate(reversed(tile[1].split(",")[-len(sizes) :]), 1):
                    sizes[-k] = -(-sizes[-k] // int(n)) * int(n)
            bytes_ += math.prod(sizes) * (1 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0]) / 8)
        return bytes_

    def steps(self, body: Body, times: int = 1, loops: tuple[str, ...] = (), *, branch: Any = max) -> list[Execution]:
        """Return the instructions that run, with the number of runs; of a conditional, the branch with most bytes, or
        with the fewest if `branch` is min.
        """
        found: list[Execution] = []
        for i in body.values():
            if i.op == "while":
                found += self.steps(self.called(i), times * self.turns(i), (*loops, i.name), branch=branch)
            elif i.op == "conditional":
                names = re.findall(r"[\w.\-]+", i.find(r"branch_computations=\{([^}]*)\}"))
                names = names or re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", i.rest)
                branches = [self.steps(self.computations[name], times, loops, branch=branch) for name in names]
                found += branch(branches, key=lambda steps: sum(step.times * step.bytes for step in steps))
            elif i.op in ("call", "async-start"):
                found += self.steps(self.called(i), times, loops, branch=branch)
            elif not FREE.fullmatch(i.target):
                shapes = [body[operand].shape for operand in i.operands]
                found.append(Execution(i, shapes, times, self.traffic(i, shapes), loops))
        return found

    def turns(self, loop: Instruction) -> int:
        """Return a loop's iterations: the compiler's count, else the largest constant in its condition."""
        if known := loop.find(r'"known_trip_count":\{"n":"(\d+)"'):
            return int(known)
        condition = self.computations[loop.find(r"condition=%?([\w.\-]+)")].values()
        return max((int(i.inside) for i in condition if i.op == "constant" and i.inside.isdigit()), default=1)

    def traffic(self, i: Instruction, operands: list[str]) -> float:
        """Return the bytes that an instruction reads and writes in device memory; of a sliced array, only the slice."""
        result = self.size(i.shape)
        if i.op in ("fusion", "fusion-start"):  # the latter returns a tuple of operands, result and context
            body, written = self.called(i), i.shape if i.op == "fusion" else _arrays(i.shape)[len(operands)]
            read = sum(self._read(body, k, self.size(shape)) for k, shape in enumerate(operands))
            return read + self._written(body, _root(body), written)
        if i.op == "slice-start":  # ((source), slice, …): between device and on-chip memory
            return self.size(_arrays(i.shape)[len(operands)], anywhere=True)
        if i.op in SLICES:
            return result + min(self.size(operands[0]), self.size(i.shape, anywhere=True))
        if i.op in UPDATES:
            return 2 * self.size(operands[UPDATES[i.op]])
        if i.op.endswith("-start") and i.op != "all-reduce-start":  # returns a tuple of operand and result
            return result
        return result + sum(map(self.size, operands))

    def _read(self, body: Body, parameter: int | str, full: float) -> float:
        """Return the bytes that a fused computation reads of a parameter: its slices, or all of it."""
        if isinstance(parameter, int):
            parameter = next(i.name for i in body.values() if i.op == "parameter" and i.inside == str(parameter))
        if body[parameter].root:  # returned unchanged
            return full
        read = 0.0
        for user in body.values():
            places = [k for k, operand in enumerate(user.operands) if operand == parameter]
            if not places or (user.op in UPDATES and places == [0]):
                continue
            if user.op in ("bitcast", "reshape"):
                read += self._read(body, user.name, full)
            elif user.op in SLICES and places == [0]:
                read += self.size(user.shape, anywhere=True)
            elif user.op == "fusion":
                read += sum(self._read(self.called(user), k, full) for k in places)
            else:
                return full
        return min(read, full)

    def _written(self, body: Body, i: Instruction, shape: str) -> float:
        """Return the bytes that a fused computation writes to its result: its in-place updates, or all of it."""
        if i.op == "tuple":
            arrays, parts = iter(_arrays(shape)), [body[o] for o in i.operands]  # a part may be a tuple itself
            shapes = [", ".join(itertools.islice(arrays, len(_arrays(part.shape)))) for part in parts]
            return sum(self._written(body, part, s) for part, s in zip(parts, shapes, strict=True))
        if i.op in ("bitcast", "reshape"):
            return self._written(body, body[i.operands[0]], shape)
        if i.op == "fusion":
            return self._written(self.called(i), _root(self.called(i)), shape)
        changed = body[i.operands[UPDATES[i.op]]].shape if i.op in UPDATES else shape
        return min(self.size(shape), self.size(changed, anywhere=True))

    def collectives(self, step: Execution) -> list[tuple[Any, str, float, str]]:
        """Return (identity, kind, bytes, group) of a step's collectives; on TPUs, several fusions may share one."""
        found, i = [], step.instruction
        body = self.called(i) if i.op == "fusion" else {}
        for c in body.values() or [i]:
            kind = c.op.removesuffix("-start")
            if kind in COLLECTIVES:
                operands = [body[operand].shape for operand in c.operands] if body else step.operands
                taken = sum(self.size(shape, anywhere=True, padded=False) for shape in operands)
                made = self.size(c.shape, anywhere=True, padded=False) - (taken if c.op == "all-gather-start" else 0)
                name = "reduce-scatter" if "-scatter" in i.find(r"calls=%?([\w.\-]+)") else kind  # all-reduce and slice
                identity = (c.find(r"channel_id=(\d+)") or c.name, step.loops)
                found.append((identity, name, made if kind == "all-gather" else taken, _group(c)))
        return found


def kernels_in_loop(text: str, *, depth: int) -> tuple[int, int]:
    """Return how many kernels a turn of the largest loop of a module launches, which is in others, `depth` in all: with
    the smaller branches of its conditionals, and with the larger ones.
    """
    module = Module(text)

    def kernels(body: Body, branch: Any = max) -> int:
        return sum(step.times for step in module.steps(body, branch=branch))

    body = module.computations["ENTRY"]
    for _ in range(depth):
        body = max((module.called(i) for i in body.values() if i.op == "while"), key=kernels)
    return kernels(body, min), kernels(body)


def read(text: str) -> Report:
    """Return the report of a module's text."""
    module, frames, report, seen = Module(text), _frames(text), Report({}, {}, {}, {}, {}, {}), set()

    def add(table, name, *costs):
        table[name] = [a + b for a, b in zip(table.get(name, [0, 0, 0]), costs, strict=True)]

    for step in module.steps(module.computations["ENTRY"]):
        i, op_name = step.instruction, step.instruction.find(r'op_name="([^"]*)"')
        costs = step.times, step.times * step.bytes, step.times * int(i.find(r'"estimated_cycles":"(\d+)"') or 0)
        source = re.findall(r"jit\((\w+)\)", op_name)[1:2] + ["backward"] * ("transpose(" in op_name)
        source.append(frames.get(i.find(r"stack_frame_id=(\d+)"), "(the compiler)"))
        add(report.sources, " ".join(source), *costs)
        if i.op == "custom-call":
            kernel = re.search(r"(\w+[^/()]*)\)?/pallas_call", op_name)
            add(report.custom_calls, kernel[1] if kernel else i.target, *costs)
        if i.op in ("copy", "transpose") or (i.op == "fusion" and re.search("copy|transpose", i.name)):
            add(report.copies, i.op, *costs)
        for identity, kind, size, group in module.collectives(step):
            if identity not in seen:
                seen.add(identity)
                add(report.collectives, kind, step.times, step.times * size, costs[2])
                add(report.groups, f"{kind} {group}", step.times, step.times * size, costs[2])
    return report


def of(compiled: Any) -> Report:
    """Return the report, with memory, of a program from ``jax.jit(…).lower(…).compile()``."""
    memory = compiled.memory_analysis()
    sizes = {name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "temp", "output")}
    return read(compiled.as_text())._replace(memory=sizes)


def _group(i: Instruction) -> str:
    """Return the number of devices in a collective and the span of their IDs: "8 8" for neighbors, "4 25" for others.
    The compilers write groups as {{0,1},{2,3}}, as [groups,devices]<=[axes]T(order), or as mesh['x'=4,'y'=2] {'y'},
    where device_ids=([axes]T(order)) may give the order of the mesh's devices.
    """
    if pairs := i.find(r"source_target_pairs=\{(\{.*?\})\}"):
        steps = [abs(int(a) - int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", pairs)]
        return f"2 {max(steps) + 1}"
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^)]*\))\))? \{([^}]*)\}", i.rest):
        sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        order = re.search(r"\[([\d,]+)\]T\(([\d,]+)\)", mesh[2] or "")
        numbers = np.arange(math.prod(sizes.values()))
        if order:
            axes, turned = ([int(n) for n in part.split(",")] for part in order.groups())
            numbers = numbers.reshape(axes).transpose(turned)
        numbers = numbers.reshape(*sizes.values())
        group = numbers[tuple(slice(None) if f"'{name}'" in mesh[3] else 0 for name in sizes)].ravel()
    elif iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", i.rest):
        shape, axes, order = ([int(n) for n in (part or "").split(",") if n] for part in iota.groups())
        numbers = np.arange(math.prod(axes)).reshape(axes).transpose(order or None)
        group = numbers.reshape(shape)[0]
    else:
        group = np.array([int(n) for n in (i.find(r"replica_groups=\{\{([\d,]+)\}") or "0").split(",")])
    return f"{group.size} {group.max() - group.min() + 1}"


def _arrays(shape: str) -> list[str]:
    return [match[0] for match in ARRAY.finditer(shape)]


def _root(body: Body) -> Instruction:
    return next(i for i in body.values() if i.root)


def _frames(text: str) -> dict[str, str]:
    """Return, from the module's tables, the stack frame's ID → "file:function" of its innermost frame outside jax."""

    def table(title, row):
        section = re.search(rf"^{title}\n((?:\d+ .*\n)+)", text, re.MULTILINE)
        return {m[0]: m[1:] for m in re.findall(rf"^(\d+) {row}", section[1] if section else "", re.MULTILINE)}

    files, functions = table("FileNames", '"(.*)"'), table("FunctionNames", '"(.*)"')
    locations = table("FileLocations", r"\{file_name_id=(\d+) function_name_id=(\d+)")
    frames = table("StackFrames", r"\{file_location_id=(\d+) parent_frame_id=(\d+)")

    def label(frame):
        if frame not in frames:
            return "(the compiler)"
        location, parent = frames[frame]
        path, function = files[locations[location][0]][0], functions[locations[location][1]][0]
        if "/jax/" in path:
            return label(str(int(parent) - 1))  # 1 means none
        return "optax" if "/optax/" in path else f"{'/'.join(Path(path).parts[-2:])}:{function.split('.')[0]}"

    return {frame: label(frame) for frame in frames}
