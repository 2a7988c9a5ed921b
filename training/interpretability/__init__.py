"""Analyze recorded values and parameters: lenses, attribution, circuits, attention scores and patching.

Everything here is a function of what ``algorithms.inside`` records, or of the parameters alone. ``docs/inside.md``
answers each question with an example.
"""
