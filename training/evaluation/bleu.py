"""BLEU and chrF of translations."""

from collections.abc import Sequence

import sacrebleu


def bleu(outputs: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """Return sacrebleu's corpus BLEU (of references with four words or more) and chrF, between 0 and 100."""
    scores = {"chrF": sacrebleu.corpus_chrf(list(outputs), [list(targets)]).score}
    if any(len(target.split()) >= 4 for target in targets):
        scores = {"BLEU": sacrebleu.corpus_bleu(list(outputs), [list(targets)]).score} | scores
    return scores
