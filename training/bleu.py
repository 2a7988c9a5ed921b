"""BLEU of translations."""

from collections.abc import Sequence

import sacrebleu


def bleu(outputs: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """Returns sacrebleu's corpus BLEU and chrF, with its defaults, between 0 and 100.

    Args:
        outputs: the translations.
        targets: one reference for each.
    """
    return {
        "BLEU": sacrebleu.corpus_bleu(list(outputs), [list(targets)]).score,
        "chrF": sacrebleu.corpus_chrf(list(outputs), [list(targets)]).score,
    }
