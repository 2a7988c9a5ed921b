"""The sizes of the inputs and parameters that the algorithms are run with."""

import dataclasses

__all__ = ["Sizes", "sizes_from"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes by the paper's names. No two axes that meet have the same, so that none can be taken for another."""

    N_V: int = 13
    l_max: int = 11
    l_x: int = 5
    l_z: int = 7
    T: int = 4
    L: int = 3
    L_enc: int = 2
    L_dec: int = 3
    H: int = 2
    d_e: int = 6
    d_x: int = 3
    d_z: int = 8
    d_in: int = 9
    d_attn: int = 4
    d_mid: int = 3
    d_out: int = 10
    d_mlp: int = 7
    d_f: int = 9
    N_data: int = 2
    N_epochs: int = 2
    l_gen: int = 4
    B: int = 3

    def __post_init__(self) -> None:
        for name, size in dataclasses.asdict(self).items():
            if size < 1:
                raise ValueError(f"{name}: expected a size of at least 1, got {size}")
        for name, at_least in (("N_V", 5), ("d_e", 2), ("d_f", 2)):
            if getattr(self, name) < at_least:
                raise ValueError(f"{name}: expected at least {at_least}, got {getattr(self, name)}")
        longest = max(self.l_x + self.l_gen, self.l_z)
        if self.l_max < longest:
            raise ValueError(
                f"l_max: expected at least max(l_x + l_gen, l_z) = {longest}, so that all inputs fit, got {self.l_max}"
            )


SMALL = {"N_V": 7, "l_max": 8, "l_x": 4, "l_z": 3, "L": 1, "L_enc": 1, "L_dec": 1, "d_e": 4, "d_attn": 3, "d_mid": 2,
         "d_mlp": 3, "d_f": 5, "l_gen": 4}  # fmt: skip
"""For Algorithms 11-13: the oracle evaluates a loss once for every parameter."""


def sizes_from(given: dict[str, int]) -> tuple[Sizes, Sizes]:
    """The sizes for all algorithms but 11-13, and those for 11-13.

    `given`: the sizes that differ from the default; they hold for both.

    Raises:
        ValueError: for an unknown name, or sizes that do not fit together.
    """
    names = [field.name for field in dataclasses.fields(Sizes)]
    for name in given:
        if name not in names:
            raise ValueError(f"--sizes: expected one of {', '.join(names)}, got {name!r}")
    return Sizes(**given), Sizes(**{**SMALL, **given})
