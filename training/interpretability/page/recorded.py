"""Show recorded values in a notebook: the page with only its attention."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from training.interpretability.page.look import Attended, Look, PageError, attending
from training.interpretability.page.words import readable


def show(seen: Mapping[str, Array], tokens: Sequence[object] | None = None, *, name: str = "What was recorded") -> Look:
    """Show all attention weights among recorded values; hover over, focus or tap a token of the page to inspect it.

    Args:
        seen: values that `algorithms.inside.record` recorded for one sequence: ``A``, ``A/16`` and the like, with all
            layers and heads.
        tokens: the tokens as strings or IDs; None: show positions. For an encoder-decoder, those of one of its texts.
        name: the title.

    Raises:
        PageError: there is no attention, it is not that of one sequence, or the number of tokens differs.
    """
    found = {of: np.asarray(A, np.float32) for of, A in seen.items() if of.partition("/")[0].partition("@")[0] == "A"}
    if not found:
        raise PageError(f"seen: expected some A, got {', '.join(seen) or 'nothing'}; record A, or A/16 and the like")
    texts: dict[str, list[str]] = {}
    blocks = []
    for of, A in found.items():
        if A.ndim != 4:
            raise PageError(
                f"seen: expected {of} with all layers and heads, for one sequence, [layers, H, l_z, l_x], got "
                f"{list(A.shape)}"
            )
        l_z, l_x = A.shape[2:]
        texts |= {_text(l): _named(tokens, l) for l in (l_z, l_x)}
        blocks.append(Attended(of, _text(l_x), _text(l_z), attending(jnp.asarray(A))))
    if tokens is not None and _text(len(tokens)) not in texts:
        lengths = " or ".join(text.removeprefix("sequence of ") for text in texts)
        raise PageError(f"tokens: expected {lengths}, as in the attention, got {len(tokens)}")
    facts = [f"{of}: {A.shape[0]} layers of {A.shape[1]} heads" for of, A in found.items()]
    return Look(name, facts, texts, {}, blocks, None, None, None, None)


def _text(l: int) -> str:
    return f"sequence of {l}"


def _named(tokens: Sequence[object] | None, l: int) -> list[str]:
    if tokens is None or len(tokens) != l:
        return [f"·{t}" for t in range(l)]
    return [readable(str(token)) for token in tokens]
