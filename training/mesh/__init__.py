"""Several devices and processes: how arrays are divided among them."""
