"""Inputs standardised under the budget: each feature's offset and deviation are released once, before the first step,
and become part of the model that comes out."""
