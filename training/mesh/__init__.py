"""Several devices: how arrays lie on them."""
