"""The window that a decoder attends to in a text that outgrows l_max; it slides by half its length."""


def window_start(t: int, l_max: int) -> int:
    """Return the index of the first token that token t of a text, counted from 0, is predicted from.

    The first window begins with the text and predicts its tokens up to token l_max. Each new window begins with the
    last half of the one before. So every token, given or generated, is predicted from at least l_max/2 tokens before
    it, or from all of them; l_max is the most tokens that the model reads at once.

    Example:
        >>> [window_start(t, 6) for t in range(15)]
        [0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8]
    """
    stride = l_max + 1 - max(1, l_max // 2)
    return max(0, -(-(t - l_max) // stride)) * stride
