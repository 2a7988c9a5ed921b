"""General-purpose compressors, to compare a language model's bits per byte with."""

import bz2
import gzip
import lzma


def compressed_bits_per_byte(data: bytes) -> dict[str, float]:
    """Return the bits per byte of `data`, not empty, that gzip -9, bzip2 -9 and xz -9e need, by command.

    Example:
        >>> compressed_bits_per_byte(bytes(1000))["gzip -9"] < 0.5
        True
    """
    if not data:
        raise ValueError("there are no bytes to compress; expected the held-out text")
    sizes = {
        "gzip -9": len(gzip.compress(data, 9, mtime=0)),
        "bzip2 -9": len(bz2.compress(data, 9)),
        "xz -9e": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * size / len(data) for name, size in sizes.items()}
