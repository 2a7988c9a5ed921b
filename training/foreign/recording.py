"""Recording what foreign code computes, with nothing named: PyTorch, JAX, NumPy, and files of any other language."""

import collections
import functools
import importlib
import json
import pathlib
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .match import Observed

__all__ = [
    "GlueError",
    "Recording",
    "is_foreign",
    "record_arrays",
    "record_files",
    "record_jax",
    "record_numpy",
    "record_torch",
    "record_torch_parts",
]

MOST = 2_000_000  # larger tensors are not kept

COARSE = ("bfloat16", "float16", "float32", "float64")
RAW = {".f32": "<f4", ".f64": "<f8", ".f16": "<f2"}
STDLIB = tuple({sysconfig.get_paths()["stdlib"], str(pathlib.Path(sysconfig.get_paths()["stdlib"]).resolve())})
LIBRARIES = re.compile(r"(site|dist)-packages[/\\](torch|jax|numpy|flax|equinox|haiku|scipy|einops)")
HERE = str(pathlib.Path(__file__).resolve().parent)
RANDOM = (
    "two runs give different numbers, first in {}: switch dropout off (model.eval(), or its probability), fix the seed"
)


class GlueError(ValueError):
    """The glue between a case and foreign code does something that no check can be made of."""


class Recording:
    """The tensors that foreign code computed. `dtype`: see `judge`; it determines the tolerance."""

    def __init__(self) -> None:
        self.tensors: list[Observed] = []
        self.parameters: dict[str, np.ndarray] = {}
        self.gradients: dict[str, np.ndarray] = {}
        self.updated: dict[str, np.ndarray] = {}  # parameters after one step
        self.outputs: list[np.ndarray] = []
        self.sampled: list[int] | None = None  # tokens drawn with the case's numbers
        self.loss: float | None = None
        self.dtype = "float32"
        self.dtypes: dict[str, str] = {}  # each dtype, and the first operation of it
        self.count: collections.Counter[str] = collections.Counter()  # of tensors, by dtype
        self.notes: list[str] = []

    def add(self, operation: str, value: Any, dtype: str, source: tuple[str, int] | None = None) -> None:
        """Keep a tensor."""
        tensor = Observed(operation, np.array(value, np.float64), len(self.tensors), source)
        if len(np.unique(tensor.value)) > 2:  # a mask's dtype says nothing
            self.dtypes.setdefault(dtype, tensor.name)
            self.count[dtype] += 1
        if 0 < np.size(value) <= MOST:
            self.tensors.append(tensor)

    def judge(self, *dtypes: str) -> None:
        """Set the dtype: the coarsest of parameters and outputs, or a narrow one in which much is computed.

        Logits are often cast to float32, and under autocast parameters are in float32.
        """
        narrow = [d for d in COARSE[:2] if self.count[d] > self.count.total() / 4]
        self.dtype = _coarsest([*dtypes, *narrow])

    def returned(self, results: Iterable[Any]) -> None:
        """Keep what a function returned: outputs, and perhaps the loss, a single number.

        Raises:
            GlueError: if it returned several numbers.
        """
        arrays = [np.asarray(a, np.float64) for a in results]
        numbers = [a for a in arrays if a.ndim == 0]
        if len(numbers) > 1:
            raise GlueError(f"observe: expected logits, or logits and a loss, got {len(numbers)} numbers; return one")
        self.outputs = [a for a in arrays if a.ndim]
        self.loss = float(numbers[0]) if numbers else None

    def compare(self, again: "Recording") -> None:
        """Note what differs from another recording of the same code: something random was left on.

        Raises:
            GlueError: if it begins in a random operation, such as dropout.
        """
        for one, other in zip(self.tensors, again.tensors, strict=False):
            if "empty" in one.operation:
                continue  # memory that nothing has been written to
            if one.value.shape != other.value.shape or not np.array_equal(one.value, other.value, equal_nan=True):
                text = RANDOM.format(one.name)
                if re.search("dropout|bernoulli|^rand|^normal|multinomial", one.operation):
                    raise GlueError(f"observe: {text}")
                self.notes.append(text)
                return


def is_foreign(file: str) -> bool:
    """Whether a file is neither this package's nor Python's nor of a library that computes."""
    if LIBRARIES.search(file) or file.startswith((HERE, "<")):
        return False
    return "-packages" in file or not file.startswith(STDLIB)


def _place() -> tuple[str, int] | None:
    """File and line of the innermost frame that is the foreign code's."""
    frame = sys._getframe(1)
    while frame is not None and not is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (str(pathlib.Path(frame.f_code.co_filename).resolve()), frame.f_lineno)


def _coarsest(dtypes: Iterable[str]) -> str:
    known = [dtype for dtype in dtypes if dtype in COARSE]
    return min(known, key=COARSE.index, default="float32")


def record_torch(call: Callable[[], Any], model: Any = None, *, optimizer: Any = None) -> Recording:
    """Run `call()`, which returns an output, or an output and a loss, and record every operator, and gradients.

    With a second head, the output is a tuple: the logits of both.

    `model`: whose parameters and gradients are kept; `optimizer`: makes one step with the gradients.
    """
    recording = _torch_pass(call)
    recording.compare(_torch_pass(call))
    named = dict(model.named_parameters()) if model is not None else {}
    _keep_parameters(recording, named)
    if recording.graph is not None and recording.graph.requires_grad:
        recording.graph.backward()
        recording.gradients = {name: _from_torch(p.grad) for name, p in named.items() if p.grad is not None}
        if optimizer is not None:
            optimizer.step()
            recording.updated = {name: _from_torch(p) for name, p in named.items()}
    return recording


def record_torch_parts(
    step: Callable[[int, int], Any], parts: Sequence[tuple[int, int]], model: Any = None
) -> Recording:
    """Run code with a cache on one part of the tokens after another, and record its operators as if on all at once.

    `step(start, stop)` computes the logits of the tokens from `start` to `stop`, and `parts` are these numbers: (0, 1),
    (1, 2) … is token by token, (0, 4), (4, 7) in two parts.
    """
    passes = [_torch_pass(functools.partial(step, start, stop)) for start, stop in parts]
    recording, counted = passes[-1], [_counted(part.tensors) for part in passes]
    recording.tensors = []
    for key, last in counted[-1].items():
        for a in _joined([of[key].value for of in counted], parts) if all(key in of for of in counted) else ():
            recording.add(last.operation, a, recording.dtype, last.source)
    recording.outputs = list(_joined([part.outputs[0] for part in passes], parts))
    _keep_parameters(recording, dict(model.named_parameters()) if model is not None else {})
    return recording


def _keep_parameters(recording: Recording, named: Mapping[str, Any]) -> None:
    recording.parameters = {name: _from_torch(p) for name, p in named.items()}
    recording.judge(recording.dtype, *(str(p.dtype).removeprefix("torch.") for p in named.values()))


def _counted(tensors: Sequence[Observed]) -> dict[Any, Observed]:
    """Tensors by what computed them, and how often that had computed one before."""
    found, times = {}, collections.Counter()
    for tensor in tensors:
        of = tensor.operation, tensor.source
        found[*of, times[of]] = tensor
        times[of] += 1
    return found


def _joined(arrays: Sequence[np.ndarray], parts: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
    """The arrays of all parts as one: along an axis of each part's tokens, and filled up along one of all until then.

    What later keys have is 0 as a weight, and a large negative number as a score.
    """
    if len({a.ndim for a in arrays}) > 1:
        return
    sizes, l = list(zip(*(a.shape for a in arrays), strict=True)), parts[-1][1]
    axes = [i for i, of in enumerate(sizes) if of == tuple(stop - start for start, stop in parts)]
    grown = [i for i, of in enumerate(sizes) if of == tuple(stop for _, stop in parts) and i not in axes]
    if any(len(set(of)) > 1 and i not in (*axes, *grown) for i, of in enumerate(sizes)):
        return
    if not axes:
        yield arrays[-1]
        return
    for fill in (0.0, -1e30) if grown else (0.0,):
        wide = [np.pad(a, [(0, l - a.shape[i] if i in grown else 0) for i in range(a.ndim)], constant_values=fill)
                for a in arrays]  # fmt: skip
        yield np.concatenate(wide, axis=axes[-1])


def _from_torch(tensor: Any) -> np.ndarray:
    torch: Any = importlib.import_module("torch")

    return tensor.detach().to(torch.float64).cpu().numpy().copy()


def _torch_pass(call: Callable[[], Any]) -> Any:
    torch: Any = importlib.import_module("torch")
    TorchDispatchMode: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    recording: Any = Recording()

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            name, source = str(function).replace("aten.", "").split(".")[0], _place()
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    recording.add(name, _from_torch(tensor), str(tensor.dtype).removeprefix("torch."), source)
            return result

    with Mode():
        result: Any = call()
    given: tuple[Any, Any] = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    output, recording.graph = given
    got = sorted(output) if isinstance(output, dict) else type(output).__name__
    outputs: tuple[Any, ...] = output if isinstance(output, tuple) and output is not result else (output,)
    if not all(isinstance(of, torch.Tensor) for of in outputs):
        raise GlueError(f"record_torch: expected call() to return logits, or logits and a loss, as tensors; got {got}")
    if isinstance(recording.graph, torch.Tensor) and recording.graph.numel() != 1:
        shape = list(recording.graph.shape)
        raise GlueError(f"record_torch: expected a loss that is one number, got the shape {shape}; return its sum")
    recording.outputs = list(map(_from_torch, outputs))
    recording.dtype = str(outputs[0].dtype).removeprefix("torch.")
    recording.loss = None if recording.graph is None else float(recording.graph.detach())
    return recording


def record_jax(
    function: Callable[..., Any], *args: Any, parameters: Any = None, loss: Callable[..., Any] | None = None
) -> Recording:
    """Record every equation of function(*args), also within jit, scan and custom rules, and a loss that it returns.

    `parameters`: the tree of arrays in args; `loss`: a function of it, for the loss and its gradients.
    """
    import jax

    recording, closed = Recording(), jax.make_jaxpr(function)(*args)
    outputs = _Equations(recording).run(closed.jaxpr, closed.consts, jax.tree.leaves(args))
    recording.returned(outputs)
    named = jax.tree_util.tree_flatten_with_path(parameters)[0]
    recording.judge(str(outputs[0].dtype), *(str(a.dtype) for _, a in named))
    recording.parameters = {jax.tree_util.keystr(path): np.asarray(a, np.float64) for path, a in named}
    if loss is not None:
        value, gradients = jax.value_and_grad(loss)(parameters)
        recording.loss = float(value)
        leaves = jax.tree_util.tree_flatten_with_path(gradients)[0]
        recording.gradients = {jax.tree_util.keystr(path): np.asarray(a, np.float64) for path, a in leaves}
    return recording


class _Equations:
    """Runs a program of JAX equation by equation."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = {}

        def read(v: Any) -> Any:
            return v.val if hasattr(v, "val") else values[v]

        values.update(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        for equation in jaxpr.eqns:
            outputs = self._equation(equation, [read(v) for v in equation.invars])
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, equation: Any, arguments: list[Any]) -> list[Any]:
        name, p = equation.primitive.name, equation.params
        if name == "scan":
            return self._scan(equation, arguments)
        if name == "cond":
            index, *arguments = arguments
            branch = p["branches"][int(np.clip(int(index), 0, len(p["branches"]) - 1))]
            return self.run(branch.jaxpr, branch.consts, arguments)
        inner = next((p[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in p), None)
        if inner is not None and name not in ("while", "pallas_call"):
            body, constants = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, [])
            return self.run(body, constants, arguments[len(arguments) - len(body.invars) :])
        outputs = equation.primitive.bind(*arguments, **p)
        outputs = outputs if equation.primitive.multiple_results else [outputs]
        for value in outputs:
            if str(getattr(value, "dtype", "")) in COARSE:
                self.recording.add(name, np.asarray(value, np.float64), str(value.dtype), _of_equation(equation))
        return list(outputs)

    def _scan(self, equation: Any, arguments: list[Any]) -> list[Any]:
        p, body, n = equation.params, equation.params["jaxpr"], equation.params["length"]
        k = len(equation.outvars) - _sliced(equation.outvars, body.jaxpr.outvars)
        m = len(arguments) - _sliced(equation.invars, body.jaxpr.invars)
        constants, carry, xs = arguments[: m - k], arguments[m - k : m], arguments[m:]
        ys: dict[int, list[Any]] = {}
        for i in reversed(range(n)) if p["reverse"] else range(n):
            out = self.run(body.jaxpr, body.consts, [*constants, *carry, *(x[i] for x in xs)])
            carry, ys[i] = out[:k], out[k:]
        return [*carry, *(np.stack([np.asarray(ys[i][j]) for i in range(n)]) for j in range(len(ys[0]) if ys else 0))]


def _sliced(around: Any, inside: Any) -> int:
    """Number of a loop's arguments, or results, that are sliced; their parameters' names vary between JAX versions."""
    return sum(outer.aval.ndim > inner.aval.ndim for outer, inner in zip(around, inside, strict=True))


def _of_equation(equation: Any) -> tuple[str, int] | None:
    trace = equation.source_info.traceback
    for frame in trace.frames if trace is not None else ():
        if is_foreign(frame.file_name):
            return str(pathlib.Path(frame.file_name).resolve()), frame.line_num
    return None


def record_numpy(function: Callable[..., Any], parameters: Any, *inputs: Any) -> Recording:
    """Record every function of NumPy in function(parameters, *inputs), which returns an output, or an output and a loss.

    `parameters`: a tree of dicts, lists and arrays.
    """
    recording = _numpy_pass(function, parameters, inputs)
    recording.compare(_numpy_pass(function, parameters, inputs))
    return recording


def _plain(a: Any) -> Any:
    """Arguments without the class that watches them."""
    if isinstance(a, np.ndarray):
        return a.view(np.ndarray)
    if isinstance(a, dict):
        return {k: _plain(v) for k, v in a.items()}
    return type(a)(map(_plain, a)) if isinstance(a, (list, tuple)) else a


def _numpy_pass(function: Callable[..., Any], parameters: Any, inputs: Sequence[Any]) -> Recording:
    recording = Recording()

    class Watched(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, out: Any = None, **kwargs: Any) -> Any:
            kwargs |= {} if out is None else {"out": _plain(out)}
            return wrapped(getattr(ufunc, method)(*_plain(args), **_plain(kwargs)), ufunc.__name__)

        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            return wrapped(func(*_plain(args), **_plain(kwargs)), func.__name__)

        def __getitem__(self, index: Any) -> Any:  # rows by number, as of an embedding, are computed; slices are views
            found = super().__getitem__(index)
            is_new = isinstance(found, np.ndarray) and not np.may_share_memory(found, self)
            return wrapped(found.view(np.ndarray), "getitem") if is_new else found

    def wrapped(a: Any, name: str) -> Any:
        if isinstance(a, (list, tuple)):
            return type(a)(wrapped(x, name) for x in a)
        if isinstance(a, (np.ndarray, np.generic)) and str(a.dtype) in COARSE:
            recording.add(name, a, str(a.dtype), _place())
            return np.asarray(a).view(Watched)
        return a

    def watched(tree: Any, path: str = "") -> Any:
        if isinstance(tree, Mapping):
            return {k: watched(v, f"{path}/{k}") for k, v in tree.items()}
        if isinstance(tree, list):
            return [watched(v, f"{path}/{i}") for i, v in enumerate(tree)]
        array = np.asarray(tree)
        recording.parameters[path.strip("/")] = array.astype(np.float64)
        recording.dtypes.setdefault(str(array.dtype), path)
        return array.view(Watched)

    results = function(watched(parameters), *inputs)
    results = results if isinstance(results, tuple) else (results,)
    recording.returned(results)
    recording.dtype = _coarsest((*recording.dtypes, str(np.asarray(results[0]).dtype)))
    return recording


def record_files(files: Sequence[pathlib.Path], dtype: str | None = None) -> Recording:
    """Tensors that any language wrote: .safetensors, .npz, .npy, .json, or raw numbers as "NAME.2x7x12.f32".

    A name that begins with "parameter:", "gradient:", "updated:", "output:", "loss:" or "sampled:" says what it is; all
    others are anything. `dtype`: of the numbers (None: the coarsest that the files have).

    Raises:
        ValueError: if there are no such files, or a raw file does not tell its shape.
    """
    arrays = {name: array for path in files for name, array in _read(path).items()}
    if not arrays:
        got = ", ".join(path.name for path in files) or "no files"
        raise ValueError(f"expected .safetensors, .npz, .npy, .json or raw files such as x.7x12.f32, got {got}")
    return record_arrays(arrays, dtype)


def record_arrays(arrays: Mapping[str, Any], dtype: str | None = None) -> Recording:
    """Arrays that code has handed over, by any names, as from a framework that nothing else here records.

    Names and `dtype` as in `record_files`.
    """
    recording = Recording()
    kept = {"parameter": recording.parameters, "gradient": recording.gradients, "updated": recording.updated}
    for name, array in {name: np.asarray(a) for name, a in arrays.items()}.items():
        kind, _, rest = name.partition(":")
        if kind in kept:
            kept[kind][rest] = array.astype(np.float64)
        elif kind == "loss":
            recording.loss = float(array.reshape(-1)[0])
        elif kind == "sampled":
            recording.sampled = array.reshape(-1).astype(int).tolist()
        else:
            recording.outputs += [array.astype(np.float64)] if kind == "output" else []
            recording.add(name, array.astype(np.float64), str(array.dtype))
    recording.dtype = dtype or _coarsest(recording.dtypes)
    return recording


def _read(path: pathlib.Path) -> Mapping[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    if path.suffix == ".npz":
        return dict(np.load(path))
    if path.suffix == ".npy":
        return {path.stem: np.load(path)}
    if path.suffix == ".json":
        return json.loads(path.read_text("utf-8"))
    if path.suffix in RAW:
        name, _, shape = path.stem.rpartition(".")
        sizes = [int(n) for n in shape.split("x") if n.isdecimal()]
        numbers = np.fromfile(path, RAW[path.suffix])
        if not name or not sizes or numbers.size != np.prod(sizes):
            such = f"NAME.SHAPE{path.suffix} such as x.7x12{path.suffix}"
            raise ValueError(f"{path}: expected {such}, with as many numbers")
        return {name: numbers.reshape(sizes)}
    return {}
