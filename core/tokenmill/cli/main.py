"""The command `tokenmill`: finds a subcommand, imports only that one, and turns errors into messages and exit codes.

0: done. 1: an error of tokenmill. 2: wrong usage. 130: interrupted. 141: nobody reads the output any more.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import click
from attrs import frozen

from tokenmill.cli.invocation import Invocation
from tokenmill.errors import TokenmillError


@frozen
class Subcommand:
    """Where a subcommand is, and its line in the help: `--help` imports none of them."""

    module: str
    summary: str


SUBCOMMANDS = {
    "generate": Subcommand("tokenmill.cli.generate", "Write a continuation of a prompt."),
    "chat": Subcommand("tokenmill.cli.chat", "Talk with a model."),
    "inspect": Subcommand("tokenmill.cli.inspect", "Ports, roles, operators and memory of a model."),
    "plugins": Subcommand("tokenmill.cli.plugins", "Installed plugins, what they contribute, and what failed."),
    "explain": Subcommand("tokenmill.cli.explain", "What would be chosen for a model, and why."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in SUBCOMMANDS:
            return None
        module = importlib.import_module(SUBCOMMANDS[name].module)
        return next(item for item in vars(module).values() if isinstance(item, click.Command) and item.name == name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in SUBCOMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The interpreter flushes stdout once more at exit, which would fail, too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(141) from None


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tokenmill", prog_name="tokenmill")
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file (TOML).")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def tokenmill(ctx: click.Context, config: Path | None, debug: bool) -> None:
    """Run ONNX language models, on any backend that is installed."""
    invocation = ctx.ensure_object(Invocation)
    invocation.config, invocation.debug = config, debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script.

    :returns: the exit code.
    """
    invocation = Invocation()
    try:
        result = tokenmill.main(
            args=None if arguments is None else list(arguments),
            prog_name="tokenmill",
            standalone_mode=False,
            obj=invocation,
        )
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except TokenmillError as error:
        if invocation.debug:
            traceback.print_exc()
        click.echo(f"error: {error}", err=True)
        return 1
    except Exception as error:
        if invocation.debug:
            traceback.print_exc()
        click.echo(f"internal error: {type(error).__name__}: {error}", err=True)
        if not invocation.debug:
            click.echo("run `tokenmill --debug ...` for the traceback", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
