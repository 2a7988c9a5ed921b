"""The hyperparameters of Algorithms 8, 9 and 10, validated on construction."""

import dataclasses
from typing import Annotated, Any

from algorithms.machinery.record import Range, check_fields
from algorithms.model.attention import Attention
from algorithms.model.theta import sizes_of_stacks
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER

Size = Annotated[int, Range("a positive integer", lambda n: n >= 1)]

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

    N_V: Annotated[int, Range("at least 4 (an ordinary token besides mask, bos and eos)", lambda n: n >= 4)]
    l_max: Size
    H: Size
    d_e: Size
    d_mlp: Size
    d_attn: Size = _DERIVED
    d_mid: Size = _DERIVED
    H_kv: Size = _DERIVED
    variant: Variant = PAPER
    tied: bool = _DERIVED

    def __post_init__(self) -> None:
        check_fields(self)
        if self.d_e % self.H and None in (self.d_attn, self.d_mid):
            field = "d_attn" if self.d_attn is None else "d_mid"
            self._refuse("", f"d_e = {self.d_e} is not a multiple of H = {self.H}; change one of them or give {field}")
        d, tied = self.d_e // self.H, self.variant.unembedding.tied
        self._set_default(d_attn=d, d_mid=d, H_kv=self.H, tied=tied)
        if self.H % self.H_kv:
            self._refuse("H_kv", f"expected a divisor of H = {self.H}, got {self.H_kv}; change one of them")
        n = len(self.variant.first)
        for layers in _LAYERS:
            if getattr(self, layers, n + 1) <= n:
                self._refuse(layers, f"expected more than the {n} layers of variant.first, got {getattr(self, layers)}")
            if getattr(self, layers, 0) % self.shared_layers:
                self._refuse(
                    layers,
                    f"expected a multiple of shared_layers = {self.shared_layers} of the variant, got "
                    f"{getattr(self, layers)}; change one of them",
                )
        if str(self.variant.embedding.positions).startswith("sinusoidal") and self.d_e % 2:
            self._refuse("d_e", f"expected an even number, a sine and a cosine for each frequency, got {self.d_e}")
        for line in (part for mixer in self.variant.attentions for part, _ in mixer.parts()):
            if isinstance(line, Attention):
                self._check_attention(line)
        clashes = self.variant.sizes.keys() & {field.name for field in dataclasses.fields(self)}
        if clashes:
            name = min(clashes)
            self._refuse(
                "", f"{name} is a size of the configuration, and of one of the variant's lines, too; rename it"
            )

    def _check_attention(self, line: Attention) -> None:
        if line.positions is not None and type(line).read is Attention.read:
            line.positions.check(line.d_head or self.d_attn)
        if self.H % (line.n_keys or 1):
            self._refuse("variant", f"expected n_keys that divides H = {self.H}, got {line.n_keys}; change one of them")
        if line.keys_are_values and not line.d_head and self.d_attn != self.d_mid:
            self._refuse("d_mid", f"expected d_attn = {self.d_attn}, as keys are values, got {self.d_mid}; give it")

    def sizes(self) -> dict[str, int]:
        """The size of each axis of θ, by name; layers that share parameters count once."""
        sizes = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        sizes = {name: size for name, size in sizes.items() if isinstance(size, int)}
        for L in sizes.keys() & set(_LAYERS):
            sizes |= sizes_of_stacks(L, self.variant, sizes[L])
        return {**sizes, **self.variant.sizes, "l_max": self.l_max + self.variant.embedding.first_position}

    @property
    def shared_layers(self) -> int:
        """The number of consecutive layers that share parameters."""
        return self.variant.shared_layers

    def _set_default(self, **values: Any) -> None:
        for field, value in values.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)

    def _refuse(self, field: str, message: str) -> None:
        raise ValueError(f"{type(self).__name__}{'.' * bool(field)}{field}: {message}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EDTransformerConfig(TransformerConfig):
    """Hyperparameters of Algorithm 8.

    Attributes:
        L_enc: layers of the encoder.
        L_dec: layers of the decoder.
        N_V_z: vocabulary size of the context, if it has its own W_e; None: it has the same W_e.
    """

    L_enc: Size
    L_dec: Size
    N_V_z: Size | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ETransformerConfig(TransformerConfig):
    """Hyperparameters of Algorithm 9.

    Attributes:
        L: layers.
        d_f: rows after the final projection; d_in by default, which a tied unembedding needs.
        d_in: rows of an embedding; d_e by default, which an embedding that is not factored needs.
        N_types: number of token types, 2 in BERT; 0 if tokens have no types.
    """

    L: Size
    d_f: Size = _DERIVED
    d_in: Size = _DERIVED
    N_types: Annotated[int, Range("a number of types, or 0 for none", lambda n: n >= 0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_default(d_in=self.d_e)
        self._set_default(d_f=self.d_in)
        factored = self.variant.embedding.factored
        if self.d_in != self.d_e and not factored:
            expected = f"expected d_e = {self.d_e}, since variant.embedding.factored is False"
            self._refuse("d_in", f"{expected}, got {self.d_in}; leave it out")
        if self.tied and self.d_f != self.d_in:
            needed = f"a tied unembedding W_u = W_eᵀ needs d_f = {'d_in' if factored else 'd_e'} = {self.d_in}"
            self._refuse("", f"{needed}, got d_f = {self.d_f}; give tied=False")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DTransformerConfig(TransformerConfig):
    """Hyperparameters of Algorithm 10.

    Attributes:
        L: layers.
    """

    L: Size
