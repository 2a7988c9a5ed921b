"""Parameters and variants in the programs that ``jax.export`` serializes."""

import contextlib
import json
from typing import Any, TypeVar

import jax
import jax.export

from algorithms.machinery.record import Record

C = TypeVar("C", bound=type)


def serializable(kind: C) -> C:
    """Register a NamedTuple, or a record that is a static node of pytrees, with ``jax.export`` as ``algorithms.NAME``.

    The JSON of a record stands in the serialized program.
    """
    options: Any = {"serialized_name": f"algorithms.{kind.__name__}"}
    with contextlib.suppress(ValueError):  # another copy of this package has registered its class by this name
        if hasattr(kind, "_fields"):
            jax.export.register_namedtuple_serialization(kind, **options)
        else:
            jax.export.register_pytree_node_serialization(
                kind,
                serialize_auxdata=lambda record: json.dumps(record.to_json()).encode(),
                deserialize_auxdata=lambda written: Record.from_json(json.loads(written)),
                **options | {"from_children": lambda record, _: record},
            )
    return kind
