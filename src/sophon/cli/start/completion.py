"""`sophon completion`: the script with which a shell completes commands, options and paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sophon.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script that completes `sophon` in a shell.

    \b
    bash   sophon completion bash > ~/.local/share/bash-completion/completions/sophon
    zsh    sophon completion zsh > "${fpath[1]}/_sophon"
    fish   sophon completion fish > ~/.config/fish/completions/sophon.fish
    """  # noqa: D301 - click's own mark
    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError(f"this release of click has no completion for {shell}; install click 8.3 or newer")
    script = kind(ctx.find_root().command, {}, "sophon", "_SOPHON_COMPLETE")
    # click's `source` would first run bash to check its version, and complain if bash is missing.
    click.echo(script.source_template % script.source_vars())
