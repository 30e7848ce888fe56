"""The package's version, and how its optional parts are installed."""

__version__ = "0.2.0"

PACKAGE = "sophon-loader"


def install_command(extra: str) -> str:
    """Return the command that adds an optional extra to this installation.

    pip records the folder or wheel that a package was installed from; the command names it, so that it works even if no
    package index has sophon.
    """
    import json  # messages only: `import sophon` stays light
    from importlib import metadata
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    source = PACKAGE
    try:
        origin = json.loads(metadata.distribution(PACKAGE).read_text("direct_url.json") or "{}")
        url = urlsplit(str(origin.get("url", "")))
        path = unquote(url.path)
        if url.scheme == "file" and Path(path).exists():
            source = path
    except (metadata.PackageNotFoundError, OSError, ValueError, AttributeError):
        pass  # not installed by pip, or by a version that records something else
    return f'pip install "{source}[{extra}]"'
