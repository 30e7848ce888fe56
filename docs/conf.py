"""How `make docs` makes a site of these pages, without network; warnings are errors there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import sophon
from sophon import ops

project = "sophon"
author = "the sophon developers"
release = version = sophon.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
root_doc = "index"
exclude_patterns = ["figures/*.py"]
html_theme = "furo"
html_title = f"sophon {release}"
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"font-stack": "system-ui, sans-serif"},  # nothing is fetched from elsewhere
    "footer_icons": [],
}
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "none"  # the signature has them; twice is too much
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# Plain backticks in docstrings are code, as in Markdown.
default_role = "code"
pygments_style = "friendly"

# Pages of the repository's root, which are part of the site under these names.
_PROJECT = {
    "ARCHITECTURE.md": "architecture",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
}
_LINK = re.compile(r"\]\(((?:\.\./|docs/|examples/)[^)#\s]+|[A-Z]+\.md|LICENSE)(#[^)\s]*)?\)")
_DOCS = Path(__file__).parent
_ROOT = _DOCS.parent


def _read(_app: Any, page: str, source: list[str]) -> None:
    """Fill pages whose text lies elsewhere, and point links to where things lie in the site."""
    if page in _MADE:
        source[0] = _MADE[page]()
        return
    folder = (_DOCS / page).parent
    if page.startswith("project/"):
        folder = _ROOT
        (name,) = (name for name, title in _PROJECT.items() if page == f"project/{title}")
        source[0] = (_ROOT / name).read_text(encoding="utf-8")
    source[0] = _LINK.sub(lambda link: f"]({_target(folder / link[1], page)}{link[2] or ''})", source[0])


def _target(there: Path, page: str) -> str:
    """Return the link from a page to a file of the repository."""
    there, up = there.resolve(), "../" * page.count("/")
    if there.parent == _ROOT and there.name in _PROJECT:
        return f"{up}project/{_PROJECT[there.name]}.md"
    if there.is_relative_to(_DOCS):
        return f"{up}{there.relative_to(_DOCS)}"
    return f"{up}index.md" if there.name == "README.md" else f"path:{up}../{there.relative_to(_ROOT)}"


_API_HEAD = (
    "All that `import sophon` offers. The ops, `sophon.ops`, are on [a page of their own](ops.md); `sophon.OPS` and "
    "`sophon.CODECS` are the tables of ops and codecs by name."
)


def _api() -> str:
    """Return the page of all that `import sophon` offers, by what it is."""
    found = {name: getattr(sophon, name) for name in sophon.__all__ if name not in ("__version__", "ops")}
    classes = [name for name, value in found.items() if isinstance(value, type)]
    errors = [name for name in classes if issubclass(found[name], Exception)]
    functions = [name for name, value in found.items() if callable(value) and name not in classes]
    first = ["DataLoader", "RemoteDataset", "Pipeline"]
    parts = [
        ("The essentials", "autoclass", first),
        ("Settings and results", "autoclass", [name for name in classes if name not in (*first, *errors)]),
        ("Functions", "autofunction", functions),
        ("Errors and warnings", "autoexception", errors),
    ]
    text = ["# The Python API", "", _API_HEAD]
    for title, kind, names in parts:
        options = ("   :members:",) if kind == "autoclass" else ()
        lines = [line for name in names for line in (f".. {kind}:: sophon.{name}", *options, "")]
        text += ["", f"## {title}", "", "```{eval-rst}", *lines, "```"]
    return "\n".join(text)


def _ops() -> str:
    """Return the page of all ops, by their family."""
    families: dict[str, list[str]] = {}
    for name in ops.__all__:
        families.setdefault(getattr(ops, name).__module__, []).append(name)
    text = ["# The ops", "", "Each has the parameters of the transform of torchvision or timm that it stands for."]
    for module, names in sorted(families.items()):
        lines = [line for name in names for line in (f".. autoclass:: sophon.ops.{name}", "")]
        text += ["", f"## {module.rpartition('.')[2]}", "", "```{eval-rst}", *lines, "```"]
    return "\n".join(text)


_MADE = {"reference/api": _api, "reference/ops": _ops}


def setup(app: Any) -> dict[str, bool]:
    """Register what this file does itself."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
