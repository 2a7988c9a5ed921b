"""What is read off recorded values and parameters: lenses, attribution, circuits, scores of heads, and patching.

Everything here is a function of what ``algorithms.inside`` recorded, or of the parameters alone. ``docs/inside.md`` has
a line for each question.
"""
