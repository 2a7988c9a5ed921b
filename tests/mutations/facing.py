"""Which tests a wrong edit faces: it follows from the file that it is made in."""

__all__ = ["FACING", "facing"]

FACING = {
    "alg01_embedding": "embedding errors loss",
    "alg03_attention": "attention backward project/crosscheck",
    "alg06_layer_norm": "normalization backward family",
    "alg08_ed_transformer": "transformers family project/crosscheck_variants",
    "alg09_e_transformer": "transformers family project/crosscheck_variants",
    "alg10_d_transformer": "transformers family",
    "alg11_training": "training_algorithms narrow_types",
    "alg14_inference": "inference narrow_types batch_axes",
    "losses": "token_losses loss training_algorithms batch_axes",
    "masks": "masks transformers tiles sharding models",
    "model/attention": "family distances transformers initialization own_lines project/crosscheck_variants",
    "model/distances": "distances family models project/crosscheck_variants",
    "model/embedding": "embedding family transformers project/crosscheck_variants",
    "model/experts": "experts family models project/crosscheck_variants",
    "model/mlp": "transformers family project/crosscheck_variants",
    "model/norm": "normalization initialization family transformers project/crosscheck_variants",
    "model/positions": "embedding family transformers project/crosscheck_variants",
    "ops/activation": "activation attention backward transformers",
    "ops/attention/blockwise": "blockwise attention backward distances family",
    "ops/attention/dispatch": "attention batch_axes tiles distances family models",
    "ops/attention/strips": "backward attention distances family tiles",
    "ops/attention/tiles": "attention tiles backward blockwise distances family sharding models",
    "ops/chunked_log_loss": "loss token_losses sharding",
    "ops/delta_rule": "delta_rule",
    "ops/grouped": "experts family",
    "ops/linear": "linear embedding backward",
    "ops/normalization": "normalization backward",
    "ops/rotation": "family backward",
    "orders": "family transformers project/crosscheck_variants",
}
"""File of algorithms/ → files of tests/, of tests/algorithms/ if no folder is named; the fastest first."""


def facing(file: str) -> tuple[str, ...]:
    """Return the files of tests/ that an edit of a file faces, in order."""
    names = FACING[file.removeprefix("algorithms/").removesuffix(".py")].split()
    paths = (name.rpartition("/") for name in names)
    return tuple(f"{folder or 'algorithms'}/test_{name}.py" for folder, _, name in paths)
