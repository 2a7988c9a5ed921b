"""Description of a kind of checkpoint by two tables that serve in both directions: the fields of its config.json and
its tensors.

Fields are read with checks and defaults. What a kind cannot express of a model is found by the same tables: it is what
differs when the fields are read back.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from algorithms import Variant
from algorithms.lines import Attention
from algorithms.machinery.record import Record
from algorithms.model.theta import places
from training.disk import parse_json, read_text, reason
from training.interchange.containers import Tensors
from training.interchange.errors import InterchangeError
from training.interchange.mapping import Entry, Table, entries_of
from training.interchange.mtp import Head
from training.runs.named_arrays import flatten
from training.tasks import TASKS
from training.tasks.models import model_shapes

ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu_squared",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Our name for each name of a nonlinearity elsewhere."""
KINDS_DIFFER = "window", "positions"
"""In which of these, or without, the attentions of a model's kinds of layers differ."""
CYCLE = "layers_in_turn"
"""Our own field, for models whose layers take turns in a longer cycle than the kinds of their layers show."""
LARGEST = 1 << 31
MOST_LAYERS = 1 << 16
"""Lists over layers are only built for fewer layers than this."""


class Model(NamedTuple):
    """A model without its parameters."""

    task: str  # a key of `training.tasks.TASKS`
    config: Any  # sizes and variant
    labels: tuple[str, ...] = ()  # the names of the classes, in order


class Fields:
    """The fields of a config.json, or of the GGUF file at `path`; `needs` has the unsupported features found so far."""

    def __init__(self, path: Path, state: dict[str, Any], needs: list[str] | None = None) -> None:
        self.path, self._state = path, state
        self.needs = [] if needs is None else needs

    def inner(self, state: dict[str, Any]) -> "Fields":
        """Return the fields of an object in the config.json; what they need is noted here."""
        return Fields(self.path, state, self.needs)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or the default if it is missing or null; a name may have dots, for a field of an object."""
        outer, _, inner = name.partition(".")
        value = self.inner(self.table(outer)).get(inner) if inner else self._state.get(name)
        return default if value is None else value

    def has(self, name: str) -> bool:
        """Return whether a field is present, even as null."""
        return name in self._state

    def integer(self, name: str, default: int | None = None, *, least: int = 1, limit: int = LARGEST) -> int:
        """Return an integer of at least `least` and less than `limit`, a power of two."""
        value = self.get(name, default)
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value < limit
        power = limit.bit_length() - 1
        return self._checked(name, value, fits, f"an integer of at least {least} and less than 2^{power}")

    def _checked(self, name: str, value: Any, fits: bool, expected: str) -> Any:
        if not fits:
            raise InterchangeError(f"{self.path}: {name}: expected {expected}, got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a nonnegative number."""
        value = self.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = is_number and 0 <= value <= sys.float_info.max
        return float(self._checked(name, value, fits, "a number of at least 0"))

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean field."""
        value = self.get(name, default)
        return self._checked(name, value, isinstance(value, bool), "true or false")

    def items(self, name: str, default: Any) -> Any:
        """Return a list, or the default if it is missing."""
        value = self.get(name, default)
        return self._checked(name, value, value is default or isinstance(value, list), "a list")

    def first(self, name: str) -> str:
        """Return the first of a list of strings; "" if the list is empty or missing."""
        value = self.get(name, [])
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return next(iter(self._checked(name, value, fits, "a list of strings")), "")

    def named(self, *known: str) -> str:
        """Return the name of the model's class, the first of those known if it is missing; another is noted."""
        name = self.first("architectures") or known[0]
        if name not in known:
            self.needs.append(f"the head of {name}")
        return name

    def table(self, name: str) -> dict[str, Any]:
        """Return an object; empty if missing."""
        value = self.get(name, {})
        return self._checked(name, value, isinstance(value, dict), "an object")

    def activation(self, name: str, default: str) -> Any:
        """Return our name of a nonlinearity; None, noted in `needs`, if it is unsupported."""
        value = self.get(name, default)
        found = ACTIVATIONS.get(str(value))
        if found is None:
            self.needs.append(f"the activation {value!r}")
        return found

    def require(self, name: str, expected: Any, what: str) -> None:
        """Note an unsupported feature if a field is present with a value other than the expected one."""
        if self.get(name, expected) != expected:
            self.needs.append(f"{what} ({name} = {self.get(name)!r})")

    def check(self) -> None:
        """Raise InterchangeError with the list of unsupported features, if there are any."""
        if self.needs:
            model = self.path if self.path.suffix == ".gguf" else self.path.parent
            raise InterchangeError(f"{model} needs what this library does not have: {', '.join(self.needs)}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises InterchangeError if it cannot be read, or holds something else."""
    try:
        state = parse_json(read_text(path))
    except OSError as error:
        raise InterchangeError(f"cannot read {path}: {reason(error)}") from None
    except ValueError as error:
        raise InterchangeError(f"{path}: expected a JSON object, got something else: {error}") from None
    if not isinstance(state, dict):
        raise InterchangeError(f"{path}: expected a JSON object, got {type(state).__name__}")
    return state


def theirs(activation: str, default: Any = None) -> str:
    """Return the name that other libraries have for one of our nonlinearities: the default if that is one."""
    names = [name for name, ours in ACTIVATIONS.items() if ours == activation]
    return default if default in names else next(iter(names), activation)


def differences(variant: Record, expected: Record, path: str = "") -> list[str]:
    """Return the fields of a variant, or of its line at this path, that differ from what a checkpoint expresses."""
    if type(variant) is not type(expected):
        return [f"{path or 'variant'} = {variant!r}"]
    found = []
    for field in dataclasses.fields(variant):
        ours, theirs = getattr(variant, field.name), getattr(expected, field.name)
        name = f"{path}.{field.name}" if path else field.name
        if isinstance(ours, Record) and isinstance(theirs, Record):
            found += differences(ours, theirs, name)
        elif ours != theirs:
            found.append(f"{name} = {ours!r}")
    return found


def unlike(what: Any, expected: Any, message: str) -> list[str]:
    """Return the message, in a list, if a value is not the expected one."""
    return [] if what == expected else [message]


def in_turn(lines: Sequence[Any], n: int | None = None) -> tuple[Any, ...]:
    """Return the shortest sequence of lines that, repeated, gives those of all layers; or if it does so, of n lines."""
    sizes = [n, *range(1, len(lines) + 1)] if n else range(1, len(lines) + 1)
    return tuple(lines[: next(n for n in sizes if all(line == lines[l % n] for l, line in enumerate(lines)))])


class Field(NamedTuple):
    """A field of config.json, and what it says of a model."""

    names: str  # its name; of alternatives, separated by |, the first is written; "-": none
    # a size, or the dotted path of a line in the variant or in one of the architecture's `lines`; of several, separated
    # by spaces, the first is written; "": nothing, so it is not read
    ours: str = ""
    # the value if it is missing, or a function of all that was read before; None: it is required. If it is not read,
    # what to write, or a function of the configuration
    default: Any = None
    values: tuple[Any, Any] | None = None  # ours for false and for true; None: the same as theirs
    power: float = 1.0  # ours is theirs to this power
    optional: type | None = None  # the type of a value that may also be null, which is None here

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add our value to those `found` in the fields before it."""
        if not self.ours:
            return
        names = self.names.split("|")
        default: Any = self.default(found) if callable(self.default) else self.default
        name = next((name for name in names if fields.get(name) is not None), names[0])
        default = None if self.optional and fields.has(name) else default
        read: Any = {bool: fields.flag, float: fields.number}.get(self.optional or type(default), fields.integer)
        read = fields.activation if self.ours.endswith("activation") else read
        is_null = self.optional and fields.get(name, default) is None
        value: Any = None if is_null else read(name, default)
        value = value and value**self.power if self.power != 1 else value
        found |= dict.fromkeys(self.ours.split(), self.values[value] if self.values else value)

    def or_that_of(self, variant: Variant, lines: Mapping[Any, Any]) -> "Field":
        """Return a line's field that has no default with that of a variant, or of one of its `lines`."""
        if self.default is not None or "." not in self.ours:
            return self
        attention = next((line for line in variant.attentions if isinstance(line, Attention)), variant.attentions[0])
        return self._replace(default=self.write(variant, {"attention": attention, **lines}))

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the field to a config.json."""
        if self.names != "-":
            state[self.names.partition("|")[0]] = self.write(config, lines)

    def write(self, config: Any, lines: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Return the value in config.json; where that has none for ours, another, which differs when it is read."""
        if not self.ours:
            return self.default(config) if callable(self.default) else self.default
        value = value_at(config, self.ours.split()[0], lines)
        if self.values:
            return bool(self.values.index(value)) if value in self.values else self.default
        if self.ours.endswith("activation"):
            return theirs(value, self.default)
        if self.power != 1 and value:
            exact = value ** (1 / self.power)
            rounded = type(self.default)(float(f"{exact:.15g}"))  # theirs, as it was written
            return rounded if rounded**self.power == value else exact
        return value is True if isinstance(self.default, bool) else value


class Need(NamedTuple):
    """A field that asks for a feature that is not supported, unless it has one value; it is not written."""

    name: str
    value: Any  # or a tuple of several, or a function of all that was read before
    what: str  # the feature

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Note the feature if the field asks for it."""
        value = self.value(found) if callable(self.value) else self.value
        values = value if isinstance(value, tuple) else (value,)
        fields.require(self.name, next((v for v in values if v == fields.get(self.name)), values[0]), self.what)

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add nothing."""


class Gate(NamedTuple):
    """A field that says whether there is something at all, at a path as in `Field`."""

    name: str
    ours: str
    default: bool

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Leave it out unless the field says that there is one."""
        found |= {} if fields.flag(self.name, self.default) else {self.ours: None}

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the field to a config.json."""
        state[self.name] = value_at(config, self.ours, lines) is not None


class Layers(NamedTuple):
    """The field of config.json with the kind of each layer, of a model with several `lines`."""

    default: Callable[[Fields, int], list[str]]  # the kinds of L layers if it is missing
    names: str = "layer_types"  # of it; of alternatives, separated by |, the first is written; "-": none
    others: Mapping[str, str] = MappingProxyType({})  # other names of kinds
    cyclic: bool = False  # whether it may have those of fewer layers, which take turns
    none_if_empty: bool = False  # whether an empty list is as none

    def of(self, fields: Fields, L: int, kinds: Sequence[Any]) -> list[Any]:
        """Return the kind of each layer. Raises InterchangeError if they are not those of L layers."""
        names = self.names.split("|")
        said: Any = next((fields.get(name) for name in names if fields.has(name)), None)
        is_none = said is None or (self.none_if_empty and not said)
        said = self.default(fields, L) if is_none else said
        is_list = isinstance(said, list) and all(isinstance(kind, str | int) for kind in said)
        types = [self.others.get(kind, kind) for kind in said] if is_list else []
        types = [types[l % len(types)] for l in range(L)] if types and self.cyclic else types
        if len(types) != L or not set(types) <= set(kinds):
            known = " or ".join(map(str, kinds))
            raise InterchangeError(
                f"{fields.path}: {names[0]}: expected {known} for each of {L} layers, got {str(said)[:60]}"
            )
        return types


def every(n: int, name: str, kinds: tuple[Any, Any]) -> Callable[[Fields, int], list[Any]]:
    """Return a default of `Layers`: every n-th layer is of the second of two kinds, unless a field says another n."""
    return lambda fields, L: [kinds[(l + 1) % fields.integer(name, n) == 0] for l in range(L)]


def fields_of(ours: str, names: str, *defaults: Any) -> list[Field]:
    """Return fields by our names, theirs, and their defaults; without any, the fields are required."""
    of_each = defaults or [None] * len(ours.split())
    return [Field(*row) for row in zip(names.split(), ours.split(), of_each, strict=True)]


def written(**values: Any) -> list[Field]:
    """Return fields that are only written: of each the value, or a function of the configuration."""
    return [Field(name, default=value) for name, value in values.items()]


def only(name: str, value: Any, what: str) -> list[Field | Need]:
    """Return a field that has one value, which is written; another asks for a feature that is not supported."""
    return [Need(name, value, what), *written(**{name: value})]


def _nothing(*_: Any) -> list[str]:
    return []


class Architecture(NamedTuple):
    """Another library's description and storage of one kind of model."""

    task: str
    kind: str  # the `model_type`, the last argument of the functions below
    variant: Variant  # the lines that no field decides
    fields: Sequence[Any]  # of Field, Need, and others with the same two methods
    tensors: Table | Callable[[Model, dict[str, Any], str], Table]  # or that of a model and its config.json
    # (fields, what was found in them, the names of the tensors): adds what depends on several fields, or on tensors
    read: Callable[[Fields, dict[str, Any], Sequence[str], str], Any] = _nothing
    # (the model, its config.json): adds the same there, and returns what else it cannot express, after which an empty
    # config.json is not read back
    write: Callable[[Model, dict[str, Any], str], list[str]] = _nothing
    prefix: str = ""  # an optional prefix of the tensors' names
    ignored: tuple[str, ...] = ()  # patterns of tensors that are not parameters
    conv1d: bool = False  # whether the layers' matrices are transposed
    in_turn: bool = False  # whether layers may have different MLPs and orders, in turn
    rearrange: Callable[[Tensors, Model], Any] = _nothing  # makes a file's tensors those of the table
    lines: Mapping[Any, Any] = MappingProxyType({})  # the mixers of its kinds of layers, if there are several
    layers: Layers | None = None  # the field that has the kinds of layers
    head: Head | None = None  # its names of the head for the token after the next

    @property
    def counts_mlps(self) -> bool:
        """Whether files count MLPs as layers."""
        return not callable(self.tensors) and any("#+" in name for name in self.tensors)

    @property
    def names(self) -> dict[str, str]:
        """The names of the fields by what they say of a model."""
        fields = [field for field in self.fields if isinstance(field, Field) and field.ours and field.names != "-"]
        return {f.ours.split()[0] if "." in f.ours else f.ours: f.names.partition("|")[0] for f in fields}

    def read_config(self, fields: Fields, names: Sequence[str]) -> Model:
        """Return the model that a config.json describes; `names` are those of the tensors."""
        found: dict[str, Any] = {}
        for field in self.fields:
            field.read(fields, found)
        self.read(fields, found, names, self.kind)
        if self.head:
            self.head.read(fields, found, names)
        of_all = {path: found.pop(path) for path in [*found] if self.lines and path.startswith("attention.")}
        lines = {}
        for kind, line in self.lines.items():
            shared = _built(line, dict(of_all), "attention.") if isinstance(line, Attention) else line
            lines[kind] = _built(shared, found, f"{kind}.")
        if self.layers:
            of_layers = [lines[kind] for kind in self.layers.of(fields, found["L"], [*lines])]
            found["attention"] = in_turn(of_layers, fields.integer(CYCLE, 0, least=0))
        labels, config = found.pop("labels", ()), TASKS[self.task].config
        own = {field.name: found.pop(field.name) for field in dataclasses.fields(config) if field.name in found}
        config = config(**own, variant=_built(self.variant, found, ""))
        return Model("classify" if labels else self.task, config, labels)

    def write_config(self, model: Model) -> tuple[dict[str, Any], list[str]]:
        """Return the fields of a model's config.json, and what they cannot express of it."""
        c, known = model.config, (Attention, *map(type, (*self.variant.attentions, *self.lines.values())))
        others = [a for a in c.variant.attentions if not isinstance(a, known)]
        if others:
            return {}, [f"attention = {others[0]!r}"]
        if None in c.variant.mlps and None not in self.variant.mlps:
            return {}, ["layers without MLPs"]
        several = [name for name in ("mlp", "order") if isinstance(getattr(c.variant, name), tuple)]
        if several and not self.in_turn:
            return {}, [f"several lines of {name} in turn" for name in several]
        state: dict[str, Any] = {}
        lines, types = self._lines_of(c)
        if self.layers:
            needed = {kind for kind, line in self.lines.items() if type(line) is not Attention}
            if needed - {*types} or None in types:
                names = " and ".join(type(line).__name__ for line in self.lines.values())
                return {}, [f"layers other than {names}"]
            state |= {} if self.layers.names == "-" else {self.layers.names.partition("|")[0]: types}
            cycle = len(c.variant.attentions)
            state |= {CYCLE: cycle} if len(in_turn(types)) < cycle < len(types) else {}
        for field in self.fields:
            field.fill(state, c, lines)
        if self.head:
            self.head.fill(state, c)
        lacks = self.write(model, state, self.kind)
        if not state:
            return state, lacks
        return state, self._lost(model, state) + self._heads(c) + lacks

    def _lines_of(self, config: Any) -> tuple[dict[str, Any], list[Any]]:
        """Return the first mixer of each kind, and the first attention, by their paths; and the kind of each layer."""
        mixers = [config.variant.attention_of(l) for l in range(config.L)] if self.lines else []
        types = [self._kind_of(mixer) for mixer in mixers]
        first = [("attention", mixer) for mixer in mixers if isinstance(mixer, Attention)]
        return dict([*zip(map(str, types), mixers, strict=True), *first][::-1]), types

    def _kind_of(self, mixer: Any) -> Any:
        """Return the kind of a mixer: of those of its class, the one that is most like it; None if there is none."""

        def alike(kind: Any) -> list[bool]:
            ours = self.lines[kind]
            return [(getattr(ours, name, 0) is None) == (getattr(mixer, name, 0) is None) for name in KINDS_DIFFER]

        return max((kind for kind, line in self.lines.items() if type(line) is type(mixer)), key=alike, default=None)

    def entries(self, model: Model, state: dict[str, Any]) -> list[Entry]:
        """Return the tensors of a model with this config.json."""
        table = self.tensors(model, state, self.kind) if callable(self.tensors) else self.tensors
        return entries_in(table, model, conv1d=self.conv1d, head=self.head)

    def _said(self) -> set[str]:
        return {field.ours.partition(" ")[0] for field in self.fields if isinstance(field, Field)}

    def _lost(self, model: Model, state: dict[str, Any]) -> list[str]:
        """Return what differs from a model when its config.json is read back."""
        fields, config = Fields(Path("config.json"), state), model.config
        entries = self.entries(model, state)
        try:  # transformers does not read a lm_head.bias
            names = [entry.name for entry in entries if entry.leaves and entry.name != "lm_head.bias"]
            found = self.read_config(fields, names).config
        except ValueError as error:
            return [f"valid config.json for it: {error}"]
        rows = unlike(config.d_mlp, found.d_mlp, f"MLP of {config.d_mlp} hidden units, only of {found.d_mlp}")
        needs = fields.needs if self.task == "d" else []
        of_layers, explicit = self.of_layers, self._explicit(model, found.variant)
        return differences(of_layers(explicit, config), of_layers(found.variant, config)) + needs + rows

    def of_layers(self, variant: Variant, config: Any) -> Variant:
        """Return a variant with the lines of this many layers: others, in longer cycles, have no effect."""
        after_first = variant.but(first=())
        lines = [after_first.lines(l) for l in range(getattr(config, "L", variant.cycle))]
        attention, mlp, order = (in_turn([line[i] for line in lines]) for i in range(3))
        return variant.but(attention=attention, mlp=mlp, order=order if len(order) > 1 else next(iter(order)))

    def _explicit(self, model: Model, other: Variant) -> Variant:
        """Return a model's variant with every choice explicit, and with what has no effect as in another variant."""
        config, variant, said = model.config, model.config.variant, self._said()
        if model.task == "classify":  # `write` checks them
            variant = variant.but(head=other.head, pooler=other.pooler)
        tied = config.tied if variant.head else other.unembedding.tied
        unembedding = variant.unembedding.but(tied=tied)
        if not tied and self.variant.unembedding.scaled:
            unembedding = unembedding.but(scaled=other.unembedding.scaled)
        if self.task == "ed" and "order" in said and variant.order == "norm_last":
            variant = variant.but(order=None)
        own = value_at(config, "mlp.activation")
        if "mlp.activation" in said and getattr(variant.mlp, "__dict__", {}).get("activation", own) is None:
            variant = _changed(variant, "mlp.activation", own)
        return variant.but(unembedding=unembedding)

    def _heads(self, config: Any) -> list[str]:
        """Return what the fields cannot express of the sizes of heads."""
        c, said = config, self._said()
        lacks = []
        if "d_attn" not in said:
            lacks += unlike((c.d_attn * c.H, c.d_mid * c.H), (c.d_e, c.d_e), "heads of a different size than d_e/H")
        elif "d_mid" not in said:
            lacks += unlike(c.d_mid, c.d_attn, f"values of a different size than keys (d_mid = {c.d_mid})")
        return lacks + ([] if "H_kv" in said else unlike(c.H_kv, c.H, f"keys shared by heads (H_kv = {c.H_kv})"))


def entries_in(table: Table, model: Model, *, conv1d: bool = False, head: Head | None = None) -> list[Entry]:
    """Return the tensors in a table that a model has."""
    leaves, c = flatten(model_shapes(model.task, model.config, N_C=len(model.labels))), model.config
    of_layers = places(c.variant, c.L) if hasattr(c, "L") else ()
    shapes = {name: leaf.shape for name, leaf in leaves.items()}
    found = entries_of(table, shapes, conv1d=conv1d, places=of_layers)
    return head.entries(found, table, shapes, c.L) if head and c.variant.mtp else found


def value_at(config: Any, path: str, lines: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return a size, or a line at a path in one of `lines` or the variant; for an activation, its algorithm's own in
    place of None.
    """
    if path == "unembedding.tied" and hasattr(config, "tied"):
        return config.tied
    first, _, rest = path.partition(".")
    value, names = (lines[first], rest) if first in lines else (getattr(config, "variant", config), path)
    value = config if hasattr(config, path) else value
    for name in names.split("."):
        value = getattr(value[0] if isinstance(value, tuple) else value, name, None)
    own = "relu" if isinstance(config, TASKS["ed"].config) else "gelu"
    return own if value is None and path == "mlp.activation" else value


def _built(record: Any, found: dict[str, Any], prefix: str) -> Any:
    """Return a record with the values found at its paths, after a prefix; these are found no more."""
    own = {path.removeprefix(prefix): found.pop(path) for path in [*found] if path.startswith(prefix)}
    record = record.but(**{path: value for path, value in own.items() if "." not in path})
    for path, value in own.items():
        record = _changed(record, path, value) if "." in path else record
    return record


def _changed(record: Any, path: str, value: Any) -> Any:
    """Return a record with another value at a dotted path, unless it has no record there."""
    name, _, rest = path.partition(".")
    if rest and not isinstance(getattr(record, name, None), Record):
        return record
    return record.but(**{name: _changed(getattr(record, name), rest, value) if rest else value})
