"""What a decoder attends to in a text that outgrows l_max: a window that slides by half its length."""


def window_start(t: int, l_max: int) -> int:
    """Return the first of the tokens that token t of a text is predicted from.

    The first window begins with the text, and serves up to token l_max, the last that l_max tokens predict. Then a new
    one begins with the last half of l_max tokens, and so on: every token is predicted from at least l_max/2 of those
    before it, or from all, whether it was given or generated.

    Args:
        t: from 0.
        l_max: the most tokens that are read at once.

    Example:
        >>> [window_start(t, 6) for t in range(15)]
        [0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8]
    """
    stride = l_max + 1 - max(1, l_max // 2)
    return max(0, -(-(t - l_max) // stride)) * stride
