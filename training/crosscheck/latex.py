"""Formulas in LaTeX, from their text."""

import re

__all__ = ["latex_of"]

SYMBOLS = {
    "←": r"\leftarrow ", "∀": r"\forall ", "∈": r"\in ", "¬": r"\lnot ", "−": "-", "∞": r"\infty ", "≡": r"\equiv ",
    "≠": r"\ne ", "≤": r"\le ", "∝": r"\propto ", "·": r"\cdot ", "⊙": r"\odot ", "∇": r"\nabla ", "|": r"\mid ",
    "⟦": r"\llbracket ", "⟧": r"\rrbracket ", "⌈": r"\lceil ", "⌉": r"\rceil ", "…": r"\dots ", "Σ": r"\sum",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\varepsilon ", "η": r"\eta ",
    "θ": r"\theta ", "τ": r"\tau ", "ℓ": r"\ell ", "𝓦": r"\mathcal{W}", "ᵀ": r"^\intercal ", "¹": "^1", "²": "^2",
    "ê": r"\hat{e}", "ṽ": r"\tilde{v}", "Ṽ": r"\tilde{V}", "{": r"\{", "}": r"\}", "..": r", 2, \dots, ", ": ": r":\ ",
}  # fmt: skip
ACCENTS = {"\u0302": r"\hat", "\u0303": r"\tilde"}
OPERATORS = ("exp", "log", "min", "tanh")
ITALIC = ("qkv", "kv")
PROSE = "for|do|end|if|then|else|return|while|sample a token|from|or|randomly with probability"

FRACTION = re.compile(r"(?<== )(?:(.+) / (.+)|\(?([\w −]+)\)?/(√\w|√\(.+?\))(?= ⊙))")
TOKEN = re.compile(
    rf"(?P<prose>(?:[,;]? ?\b(?:{PROSE})\b;? ?)+)"
    r"|\|(?P<size>\S[^|]*)\|"
    r"|√(?:\((?P<under>.+?)\)|(?P<root>\w+))"
    r"|(?P<base>[A-Za-z]{2,}(?:_[a-z]{2,})*|\w)(?P<accent>[\u0302\u0303]?)"
    r"(?:_(?P<sub>\{[^}]*\}|[ℓδ]\w*|[A-Za-z0-9]+))?(?:\^(?P<sup>\{[^}]*\}|[a-z]/[a-z]|[A-Za-z0-9]+))?"
    r"|\.\.|(?<! ): |.",
    re.DOTALL,
)


def latex_of(text: str) -> str:
    """A formula in LaTeX: names of several letters upright, roots and fractions, prose with the spaces around it."""
    fraction = FRACTION.search(text)
    if fraction is not None:
        above, below = (latex_of(part) for part in fraction.groups() if part)
        before, after = latex_of(text[: fraction.start()]), latex_of(text[fraction.end() :])
        return rf"{before}\frac{{{above}}}{{{below}}}{after}"
    return TOKEN.sub(_token, text)


def _token(match: re.Match[str]) -> str:
    named = match.groupdict("")
    if named["prose"]:
        return rf"\text{{{named['prose']}}}"
    if named["size"]:
        return f"|{latex_of(named['size'])}|"
    if named["under"] or named["root"]:
        return rf"\sqrt{{{latex_of(named['under'] or named['root'])}}}"
    if not named["base"]:
        return SYMBOLS.get(match.group(), match.group())
    base, sub, sup = _word(named["base"]), named["sub"].strip("{}"), named["sup"].strip("{}")
    if base == r"\sum":
        sub, _, sup = sub.partition("..")
    base = rf"{ACCENTS[named['accent']]}{{{base}}}" if named["accent"] else base
    return base + "".join(f"{mark}{{{_index(index)}}}" for mark, index in (("_", sub), ("^", sup)) if index)


def _word(word: str) -> str:
    if len(word) == 1:
        return SYMBOLS.get(word, word)
    escaped = word.replace("_", r"\_")
    return f"\\{word} " if word in OPERATORS else rf"\text{{{escaped}}}"


def _index(index: str) -> str:
    """A subscript or superscript: a formula, or a word."""
    if index in ITALIC:
        return index
    return rf"\text{{{index}}}" if re.fullmatch(r"[a-z]{2,}\d?|[a-z]/[a-z]", index) else latex_of(index)
