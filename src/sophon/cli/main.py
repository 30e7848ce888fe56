"""The `sophon` command and how it ends.

Exit codes: 0 if all went well, 2 for wrong use, 1 for what failed, 130 for Ctrl-C.
"""

from __future__ import annotations

import sys

import click

from sophon.cli.bench.bench import bench
from sophon.cli.cache import cache
from sophon.cli.demo import demo
from sophon.cli.index import index
from sophon.cli.logs import INTERRUPTED, shown
from sophon.cli.manifest import manifest_command
from sophon.cli.plan import plan
from sophon.cli.probe import probe_command
from sophon.cli.profile import profile_command
from sophon.cli.report import report
from sophon.cli.serve import serve
from sophon.cli.synth import synth
from sophon.errors import AccessError, ConfigError, Error
from sophon.version import __version__

_FAILED, _WRONG_USE = 1, 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sophon")
def cli() -> None:
    """Move preprocessing next to the data, sample by sample, without changing one bit.

    `sophon demo` shows what that wins, in a minute or two. `sophon COMMAND --help` says more of a command.
    """


cli.add_command(serve)
cli.add_command(index)
cli.add_command(manifest_command)
cli.add_command(synth)
cli.add_command(probe_command)
cli.add_command(profile_command)
cli.add_command(plan)
cli.add_command(report)
cli.add_command(cache)
cli.add_command(bench)
cli.add_command(demo)


def main() -> None:
    """Run the command and end with its exit code; an error of ours is one line and no traceback."""
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
        click.echo(f"sophon: {error}", err=True)
        return _WRONG_USE if isinstance(error, ConfigError | AccessError) else _FAILED


if __name__ == "__main__":
    main()
