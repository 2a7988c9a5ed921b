"""The cost of training and decoding steps, compiled for a TPU or an H100, in the compilers' environment."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import GPT2, DTransformerConfig, for_platform, init_d_transformer
from training.benchmarks import reference
from training.benchmarks.accelerators import compilers, programs
from training.benchmarks.training_step import loss
from training.generation.decoding import decode, step
from training.generation.layout import unstacked
from training.generation.sampling import SamplingArrays
from training.generation.states import empty_state


class Case(NamedTuple):
    """A step of GPT-2 of these sizes, in bfloat16, on one device."""

    device: str  # "h100", or a TPU topology (its first chip is used)
    B: int  # sequences
    sizes: dict[str, Any]

    def compiled(self, f, arguments, **options):
        """A function of such arrays, compiled where it finds the platform by the mesh."""
        mesh = compilers.h100(1) if self.device == "h100" else compilers.tpu(self.device, 1)
        here = jax.NamedSharding(mesh, jax.P())
        arguments = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here), arguments)
        with jax.set_mesh(mesh):
            platform = "cuda" if self.device == "h100" else "tpu"
            return jax.jit(f, **options).trace(*arguments).lower(lowering_platforms=(platform,)).compile()

    @property
    def config(self):
        return DTransformerConfig(**self.sizes, variant=GPT2)


def training_step(case):
    """The report of an update with AdamW."""
    jax.clear_caches()  # a cached trace keeps the source lines of its first caller
    optimizer = optax.adamw(1e-3)
    theta = jax.eval_shape(lambda key: init_d_transformer(key, case.config), jax.random.key(0))
    x = jax.ShapeDtypeStruct((case.B, case.sizes["l_max"]), jnp.int32)
    update = reference.training_step(loss, optimizer)
    return programs.of(case.compiled(update, (theta, jax.eval_shape(optimizer.init, theta), x), donate_argnums=(0, 1)))


def _begun(case, C):
    """The shapes of the weights and of the state of sequences, in caches of C slots."""
    jax.clear_caches()

    def begin(key):
        theta = jax.tree.map(lambda a: a.astype(jnp.bfloat16), init_d_transformer(key, case.config))
        weights = unstacked(theta)
        return weights, empty_state(weights, B=case.B, C=C, bos=0)

    with for_platform("cuda" if case.device == "h100" else "tpu"):  # a cache is laid out for its platform
        return jax.eval_shape(begin, jax.random.key(0))


def decoding_step(case, C):
    """The report of a token for each sequence, in caches of C slots."""

    def generate(weights, state):
        P, caches = step(weights, None, state)
        tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, P.argmax(0)[:, None], state.slot + 1, axis=1)
        return state._replace(caches=caches, tokens=tokens, slot=state.slot + 1)

    return programs.of(case.compiled(generate, _begun(case, C), donate_argnums=(1,)))


def kernels_of_a_token(case, C):
    """How many kernels the loop of generation launches for a token: greedily, and drawn by top-k and top-p."""
    weights, state = _begun(case, C)
    drawn = jax.eval_shape(lambda: (jax.random.split(jax.random.key(0), case.B), jnp.int32(C - 1)))
    sampling = SamplingArrays.of([{}] * case.B, case.sizes["N_V"])

    def generate(weights, state, keys, stop, sampling):
        return decode(weights, None, state, keys, stop=stop, sampling=sampling)

    compiled = case.compiled(generate, (weights, state, *drawn, sampling), donate_argnums=(1,))
    return programs.kernels_in_loop(compiled.as_text(), depth=2)


def columns(report):
    """Mcycles (TPU), HBM GB, and runs of the attention kernel."""
    _, moved, cycles = programs.total(report.sources)
    kernels = {name: n for name, (n, _, _) in report.custom_calls.items() if "splash" in name or "fmha" in name}
    return [cycles / 1e6, moved / 1e9, sum(kernels.values())]
