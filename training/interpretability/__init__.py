"""Analyze recorded values and parameters: lenses, attribution, circuits, attention scores, patching and steering.

Everything here is a function of what ``algorithms.inside`` records, or of the parameters alone. ``docs/inside.md``
answers each question with an example.
"""
