"""The head for the token after the next in checkpoints, whose tensors transformers does not read."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from algorithms.lines import MTP
from training.interchange.mapping import Entry, Shape, Table, entries_of

WEIGHT = "mtp_loss_scaling_factor"
"""The field of the weight of its loss: Megatron's name, which published files do not have."""
OURS = "mtp.norm_e.* mtp.norm_x.* mtp.W_m mtp.norm.*"


class Head(NamedTuple):
    """How a kind of checkpoint names it; ``@L`` is the number of the model's layers."""

    count: str  # the field with the number of heads
    layer: str  # its layer
    rest: str  # the names of `OURS`
    copies: tuple[str, ...] = ()  # the names of its copies of W_e and W_u

    def read(self, fields: Any, found: dict[str, Any], names: Sequence[str]) -> None:
        """Add the line to what was found if there is one head, and its tensors are there: transformers drops them."""
        matrix = self.rest.split()[2].replace("@L", str(found["L"])).removeprefix("model")
        if any(f".{name}".endswith(matrix) for name in names) and fields.integer(self.count, 1, least=0) == 1:
            found["mtp"] = MTP(weight=fields.number(WEIGHT, MTP().weight))

    def fill(self, state: dict[str, Any], config: Any) -> None:
        """Add its fields to a config.json."""
        state |= {self.count: 1, WEIGHT: config.variant.mtp.weight} if config.variant.mtp else {}

    def entries(self, of_model: list[Entry], table: Table, shapes: Mapping[str, Shape], L: int) -> list[Entry]:
        """Return the tensors of a model with it: besides its own and those of one more layer, copies of W_e and W_u."""
        own = {name.removeprefix("mtp."): shape for name, shape in shapes.items() if name.startswith("mtp.layers.")}
        layer = self.layer.replace("@L", str(L))

        def moved(entry: Entry) -> Entry:
            name, *aliases = (n.replace("model.layers.0", layer, 1) for n in (entry.name, *entry.aliases))
            leaves = tuple(f"mtp.{leaf}" for leaf in entry.leaves)
            return entry._replace(
                name=name, aliases=tuple(aliases), leaves=leaves, heads=entry.heads and f"mtp.{entry.heads}"
            )

        of_layer = entries_of({names: ours for names, ours in table.items() if "#" in names}, own)
        rest = dict(zip(self.rest.replace("@L", str(L)).split(), OURS.split(), strict=True))
        tied = "W_u" not in shapes
        copies: dict[str, tuple[str, ...]] = {}
        for name, leaf in zip(self.copies, ("W_e", "W_e" if tied else "W_u"), strict=False):
            copies[leaf] = (*copies.get(leaf, ()), name.replace("@L", str(L)))
        of_model = [entry._replace(copies=copies.get("".join(entry.leaves), ())) for entry in of_model]
        return [*of_model, *map(moved, of_layer), *entries_of(rest, shapes)]


_LAYER = "model.layers.@L"
DEEPSEEK = Head(
    "num_nextn_predict_layers",
    _LAYER,
    f"{_LAYER}.enorm.* {_LAYER}.hnorm.* {_LAYER}.eh_proj.weight {_LAYER}.shared_head.norm.*",
    (f"{_LAYER}.embed_tokens.weight", f"{_LAYER}.shared_head.head.weight"),
)
QWEN = Head(
    "mtp_num_hidden_layers",
    "mtp.layers.0",
    "mtp.pre_fc_norm_embedding.* mtp.pre_fc_norm_hidden.* mtp.fc.weight mtp.norm.*",
)
