"""The `sophon` command and its exit codes.

Exit codes: 0 for success, 2 for wrong use, 1 for a failure, 130 for Ctrl-C.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, ClassVar

import click

from sophon.cli.logs import INTERRUPTED, say, shown
from sophon.errors import AccessError, ConfigError, Error
from sophon.process.arenas import use_malloc
from sophon.version import __version__

_FAILED, _WRONG_USE = 1, 2
_WELCOME = """\
sophon moves preprocessing next to the data, sample by sample, without changing one bit.

  See what it gains      sophon demo
  Try your own images    sophon demo --data DIR
  Check your setup       sophon doctor [URL|PATH]
  Serve a data set       sophon serve PATH
  Train from there       sophon.DataLoader("grpc://HOST:7077/NAME", transform, batch_size=256)

All commands: sophon --help
"""


class Commands(click.Group):
    """Commands that are imported when used: `sophon doctor` must run even where other commands cannot be imported."""

    _PLACES: ClassVar = {
        "bench": "sophon.cli.bench.bench:bench",
        "cache": "sophon.cli.cache:cache",
        "completion": "sophon.cli.start.completion:completion",
        "demo": "sophon.cli.start.demo:demo",
        "doctor": "sophon.cli.start.doctor:doctor",
        "index": "sophon.cli.index:index",
        "manifest": "sophon.cli.manifest:manifest_command",
        "nodes": "sophon.cli.cluster.nodes:nodes",
        "plan": "sophon.cli.plan:plan",
        "probe": "sophon.cli.probe:probe_command",
        "profile": "sophon.cli.profile:profile_command",
        "ray": "sophon.cli.cluster.ray:ray_command",
        "registry": "sophon.cli.cluster.registry:registry",
        "report": "sophon.cli.report:report",
        "serve": "sophon.cli.serve:serve",
        "relay": "sophon.cli.relay:relay",
        "synth": "sophon.cli.synth:synth",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return sorted({*self._PLACES, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Return a command; import it if necessary."""
        if cmd_name not in self.commands and cmd_name in self._PLACES:
            module, _, name = self._PLACES[cmd_name].partition(":")
            found: Any = getattr(importlib.import_module(module), name)
            self.commands[cmd_name] = found
        return self.commands.get(cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, prog_name="sophon")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Move preprocessing next to the data, sample by sample, without changing one bit.

    `sophon demo` shows what that gains, in a minute or two. See `sophon COMMAND --help` for details of a command.
    """
    if ctx.invoked_subcommand is None:
        click.echo(_WELCOME, nl=False)


def main() -> None:
    """Run the command and exit with its code; our own errors are shown as one line without a traceback."""
    use_malloc()
    with shown():
        sys.exit(_run())


def _run() -> int:
    try:
        return int(cli(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("sophon: interrupted", err=True)
        return INTERRUPTED
    except Error as error:
        say(f"sophon: {error}", err=True)
        return _WRONG_USE if isinstance(error, ConfigError | AccessError) else _FAILED
    except ImportError as error:
        say(f"sophon: {error}; run `sophon doctor` to see what this installation lacks", err=True)
        return _FAILED


if __name__ == "__main__":
    main()
