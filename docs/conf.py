"""How `make docs` builds these pages."""

from __future__ import annotations

import importlib.metadata

from sphinx.application import Sphinx

project = "Sordino"
release = importlib.metadata.version("sordino")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Sordino {release}"
html_show_copyright = False
smartquotes = False  # x' is a transpose

myst_heading_anchors = 3  # so that [text](page.md#heading) is checked

# Signatures say names and defaults; what an argument is stands in the docstring.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autoclass_content = "class"
python_maximum_signature_line_length = 90
napoleon_numpy_docstring = False


def setup(app: Sphinx) -> None:
    app.connect("source-read", _link_files)


def _link_files(app: Sphinx, name: str, source: list[str]) -> None:
    """Links out of docs/, to examples and to what benchmarks wrote, are to files and not to pages."""
    source[0] = source[0].replace("](../", "](path:../")
