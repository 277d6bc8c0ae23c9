"""Sordino as an app of Flower's: both sides are in the package."""
