"""The hyperparameters of Algorithms 8, 9 and 10, validated on construction."""

import dataclasses
from typing import Any

from algorithms.model.distances import Distances
from algorithms.model.positions import Rotary
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER

_DERIVED: Any = None  # the default of a field that __post_init__ derives from the others
_LAYERS = ("L", "L_enc", "L_dec")  # the fields that count layers; an architecture has one or two of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes that the three architectures share.

    Attributes:
        N_V: vocabulary size, including the three special tokens; at least 4.
        l_max: longest sequence, in tokens.
        H: heads of each attention.
        d_e: dimensions of the residual stream.
        d_mlp: hidden units of each MLP.
        d_attn: dimensions of a query and a key; d_e/H by default.
        d_mid: dimensions of a value; d_e/H by default.
        H_kv: heads of keys and values, each shared by H/H_kv heads of queries; H by default.
        variant: what differs from the pseudocode.
        tied: whether W_u = W_eᵀ; the variant's choice by default.
    """

    N_V: int
    l_max: int
    H: int
    d_e: int
    d_mlp: int
    d_attn: int = _DERIVED
    d_mid: int = _DERIVED
    H_kv: int = _DERIVED
    variant: Variant = PAPER
    tied: bool = _DERIVED

    def __post_init__(self) -> None:
        if not isinstance(self.variant, Variant):
            raise TypeError(f"{type(self).__name__}.variant: expected a Variant such as PAPER, got {self.variant!r}")
        self._require_positive("N_V", "l_max", "H", "d_e", "d_mlp")
        if self.N_V < 4:
            raise ValueError(
                f"{type(self).__name__}.N_V: expected at least 4 (an ordinary token besides mask, bos and eos), "
                f"got {self.N_V}"
            )
        self._set_heads()
        self._check_layers()
        if str(self.variant.embedding.positions).startswith("sinusoidal") and self.d_e % 2:
            raise ValueError(
                f"{type(self).__name__}.d_e: expected an even number, a sine and a cosine for each frequency, "
                f"got {self.d_e}"
            )
        self._set_default(tied=self.variant.unembedding.tied)

    def _set_heads(self) -> None:
        derived = [field for field in ("d_attn", "d_mid") if getattr(self, field) is None]
        if derived and self.d_e % self.H:
            raise ValueError(
                f"{type(self).__name__}: d_e = {self.d_e} is not a multiple of H = {self.H}; "
                f"change one of them or give {derived[0]}"
            )
        self._set_default(d_attn=self.d_e // self.H, d_mid=self.d_e // self.H, H_kv=self.H)
        self._require_positive("d_attn", "d_mid", "H_kv")
        if self.H % self.H_kv:
            raise ValueError(
                f"{type(self).__name__}.H_kv: expected a divisor of H = {self.H}, got {self.H_kv}; change one of them"
            )
        for line in self.variant.attentions:
            if isinstance(line.positions, Rotary):
                line.positions.rows(self.d_attn)

    def sizes(self) -> dict[str, int]:
        """The size of each axis of θ, by name; layers that share parameters count once."""
        sizes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        sizes = {name: size for name, size in sizes.items() if isinstance(size, int)}
        sizes |= {name: sizes[name] // self.shared_layers for name in sizes.keys() & set(_LAYERS)}
        positions = self.variant.attentions[0].positions
        if isinstance(positions, Distances):
            sizes["N_buckets"] = positions.buckets
        return {**sizes, "l_max": self.l_max + self.variant.embedding.first_position}

    @property
    def shared_layers(self) -> int:
        """The number of consecutive layers that share parameters."""
        return self.variant.shared_layers

    def _set_default(self, **values: Any) -> None:
        for field, value in values.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)

    def _check_layers(self) -> None:
        fields = [field for field in _LAYERS if hasattr(self, field)]
        self._require_positive(*fields)
        for field in fields:
            if getattr(self, field) % self.shared_layers:
                raise ValueError(
                    f"{type(self).__name__}.{field}: expected a multiple of shared_layers = {self.shared_layers} of "
                    f"the variant, got {getattr(self, field)}; change one of them"
                )

    def _require_positive(self, *fields: str) -> None:
        for field in fields:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{type(self).__name__}.{field}: expected an integer, got {value!r}")
            if value < 1:
                raise ValueError(f"{type(self).__name__}.{field}: expected a positive integer, got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EDTransformerConfig(TransformerConfig):
    """Hyperparameters of Algorithm 8.

    Attributes:
        L_enc: layers of the encoder.
        L_dec: layers of the decoder.
        N_V_z: vocabulary size of the context, if it has its own W_e; None: it has the same W_e.
    """

    L_enc: int
    L_dec: int
    N_V_z: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.N_V_z is not None:
            self._require_positive("N_V_z")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ETransformerConfig(TransformerConfig):
    """Hyperparameters of Algorithm 9.

    Attributes:
        L: layers.
        d_f: rows after the final projection; d_in by default, which a tied unembedding needs.
        d_in: rows of an embedding; d_e by default, which an embedding that is not factored needs.
        N_types: number of token types, 2 in BERT; 0 if tokens have no types.
    """

    L: int
    d_f: int = _DERIVED
    d_in: int = _DERIVED
    N_types: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_default(d_in=self.d_e)
        self._set_default(d_f=self.d_in)
        self._require_positive("d_in", "d_f")
        if self.d_in != self.d_e and not self.variant.embedding.factored:
            raise ValueError(
                f"ETransformerConfig.d_in: expected d_e = {self.d_e}, since variant.embedding.factored is False, "
                f"got {self.d_in}; leave it out"
            )
        if self.N_types:
            self._require_positive("N_types")
        if self.tied and self.d_f != self.d_in:
            rows = "d_in" if self.variant.embedding.factored else "d_e"
            raise ValueError(
                f"ETransformerConfig: a tied unembedding W_u = W_eᵀ needs d_f = {rows} = {self.d_in}, "
                f"got d_f = {self.d_f}; give tied=False"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DTransformerConfig(TransformerConfig):
    """Hyperparameters of Algorithm 10.

    Attributes:
        L: layers.
    """

    L: int
