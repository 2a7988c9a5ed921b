"""Turns plain functions into public ones: checks their arguments, compiles them and registers their backward passes."""
