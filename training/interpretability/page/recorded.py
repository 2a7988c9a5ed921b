"""What was recorded, as it shows itself in a notebook: the page with its attention alone."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from training.interpretability.page.look import Attended, Look, PageError, attending
from training.interpretability.page.words import readable


def show(seen: Mapping[str, Array], tokens: Sequence[object] | None = None, *, name: str = "What was recorded") -> Look:
    """Every attention among recorded values, to be looked at: hover over, focus or tap a token.

    Args:
        seen: what `algorithms.inside.record` recorded of one sequence; ``A``, or ``A/16`` and its like, of all layers
            and heads.
        tokens: their texts, or their numbers; without, their positions. Of an encoder-decoder, those of one of its
            texts.
        name: the title.

    Raises:
        PageError: if there is no attention, or not of one sequence, or of other tokens.
    """
    found = {of: np.asarray(A, np.float32) for of, A in seen.items() if of.partition("/")[0].partition("@")[0] == "A"}
    if not found:
        raise PageError(f"seen: expected some A, got {', '.join(seen) or 'nothing'}; record A, or A/16 and its like")
    texts: dict[str, list[str]] = {}
    blocks = []
    for of, A in found.items():
        if A.ndim != 4:
            raise PageError(
                f"seen: expected {of} of all layers and heads and one sequence, [layers, H, l_z, l_x], got "
                f"{list(A.shape)}"
            )
        l_z, l_x = A.shape[2:]
        texts |= {_text(l): _named(tokens, l) for l in (l_z, l_x)}
        blocks.append(Attended(of, _text(l_x), _text(l_z), attending(jnp.asarray(A))))
    if tokens is not None and _text(len(tokens)) not in texts:
        lengths = " or ".join(text.removeprefix("sequence of ") for text in texts)
        raise PageError(f"tokens: expected {lengths}, as many as attend, got {len(tokens)}")
    facts = [f"{of}: {A.shape[0]} layers of {A.shape[1]} heads" for of, A in found.items()]
    return Look(name, facts, texts, {}, blocks, None, None, None, None)


def _text(l: int) -> str:
    return f"sequence of {l}"


def _named(tokens: Sequence[object] | None, l: int) -> list[str]:
    if tokens is None or len(tokens) != l:
        return [f"·{t}" for t in range(l)]
    return [readable(str(token)) for token in tokens]
