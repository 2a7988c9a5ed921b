"""Compile a training step of GPT-2 124M for a TPU ahead of time, on a machine without one, and report its memory.

pip install -e .[tpu]
python scripts/compile_for_tpu.py --topology v5e:2x4
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from algorithms import GPT2, DTransformerConfig, init_d_transformer
from scripts.benchmarks.training_step import training_step


def main() -> None:
    """Parse the command line, compile, and print what the compiler says of the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x4", help="name of the TPU topology (default: v5e:2x4)")
    parser.add_argument("--batch-size", type=int, default=8, help="sequences of 1024 tokens a step (default: 8)")
    arguments = parser.parse_args()
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=arguments.topology)
    except Exception as error:  # libtpu raises errors of its own
        parser.error(f"no compiler for {arguments.topology}: {str(error).splitlines()[0]}; pip install -e .[tpu]")
    devices = np.array(topology.devices)
    if arguments.batch_size % devices.size:
        parser.error(f"--batch-size: expected a multiple of the {devices.size} chips, got {arguments.batch_size}")
    mesh = Mesh(devices, ("data",), axis_types=(AxisType.Auto,))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    config = DTransformerConfig(N_V=50257, l_max=1024, L=12, H=12, d_e=768, d_mlp=3072, variant=GPT2)
    optimizer = optax.adamw(1e-3)
    theta = jax.eval_shape(lambda key: init_d_transformer(key, config), jax.random.key(0))
    x = jax.ShapeDtypeStruct((arguments.batch_size, config.l_max), jnp.int32, sharding=split)
    theta, state = (
        jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=replicated), tree)
        for tree in (theta, jax.eval_shape(optimizer.init, theta))
    )
    start = time.perf_counter()
    step = training_step(optimizer, GPT2, "auto").trace(theta, state, x).lower(lowering_platforms=("tpu",)).compile()
    memory = step.memory_analysis()
    print(f"GPT-2 124M, batch {arguments.batch_size}, on {devices.size} chips of {arguments.topology}:")
    print(f"  compiled in {time.perf_counter() - start:.1f} s")
    print(f"  per chip: {memory.argument_size_in_bytes / 1e6:.0f} MB of arguments, ", end="")
    print(f"{memory.temp_size_in_bytes / 1e6:.0f} MB temporary, {memory.output_size_in_bytes / 1e6:.0f} MB of results")


if __name__ == "__main__":
    main()
