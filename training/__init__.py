"""Everything needed to use the algorithms: data, objectives over batches, optimizers, checkpoints, generation."""
