"""`python -m aot`: the builder's verbs."""

import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .build.artifact import Artifact
from .build.cache import Cache
from .build.toolchain import ToolchainError, tool, toolchain
from .builder import BUILD, GENERATED, BuildFailed, build
from .emit import artifact_lock
from .emit import golden as golden_text
from .emit.generate import EmitError
from .emit.verify import verify
from .report import console, report_artifacts, report_failures, report_totals
from .spec.arch import ARCHS
from .spec.gpus import UnknownGpuError
from .spec.kernels import KERNELS
from .spec.variants import variants

if TYPE_CHECKING:
    from gg_runtime.facts import Manifest, ManifestEntry


class Verbs(click.Group):
    """Adds `tune`, which measures a finished wheel, only when it is called for: nothing else imports aot.tuning."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "tune"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return tune_command() if cmd_name == "tune" else super().get_command(ctx, cmd_name)


def tune_command() -> click.Command:
    """The tuner, a guest: where it cannot be imported, a verb that says what it lacks."""
    try:
        from .tuning.tune import tune
    except ImportError as error:
        needs = f"tune needs requirements/tune.txt, torch with CUDA and the wheel: {error}"

        def refuse(arguments: tuple[str, ...]) -> None:
            raise click.ClickException(needs)

        rest = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
        settings = {"ignore_unknown_options": True}
        return click.Command("tune", callback=refuse, params=[rest], help=needs, context_settings=settings)
    return tune


@click.group(cls=Verbs)
def cli() -> None:
    """Compiles the kernels ahead of time, and looks at what came out."""


json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


@cli.command("build")
@click.option(
    "--arch",
    "archs",
    type=click.Choice([str(sm) for sm in ARCHS]),
    multiple=True,
    default=("80", "90"),
    envvar="ARCHS",
    show_default=True,
    show_envvar=True,
    help="Compute capability, 90 for 9.0; repeatable.",
)
@click.option(
    "--kernel",
    "kernels",
    type=click.Choice(sorted(KERNELS)),
    multiple=True,
    envvar="KERNELS",
    show_envvar=True,
    help="A kernel to build; repeatable. Others are left out of the wheel: for work on that kernel.  [default: all]",
)
@click.option("-j", "--jobs", type=click.IntRange(1), help="Compiler processes.  [default: one a core]")
@click.option("--timeout", type=click.FloatRange(1), default=300, show_default=True, help="Seconds for a variant.")
@click.option("-q", "--quiet", is_flag=True, help="Totals only, no table.")
def build_command(
    archs: tuple[str, ...], kernels: tuple[str, ...], jobs: int | None, timeout: float, quiet: bool
) -> None:
    """Compiles what changed and writes build/aot. Exit code 1 when a variant fails: build/aot is then as before."""
    out = console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit that ends the compiler processes
    try:
        jobs = jobs or len(os.sched_getaffinity(0))
        compiled = build(sorted({int(sm) for sm in archs}), jobs, timeout, out, kernels=kernels)
    except BuildFailed as failure:
        report_failures(failure.reasons, out)
        sys.exit(1)
    except (ToolchainError, EmitError, UnknownGpuError) as error:
        raise click.ClickException(str(error)) from error
    manifest = _manifest()
    if not quiet:
        report_artifacts(manifest, out)
    out.print(f"build/aot: {compiled} compiled now, {len(manifest['artifacts']) - compiled} from the cache")
    report_totals(manifest, out)
    if kernels:
        out.print(f"only {', '.join(sorted(kernels))}: the wheel is for work on them, not to be shipped")


@cli.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """Shows every artifact of build/aot."""
    manifest = _manifest()
    if as_json:
        click.echo(json.dumps([{"name": name} | entry for name, entry in manifest["artifacts"].items()], indent=1))
        return
    out = console()
    report_artifacts(manifest, out)
    report_totals(manifest, out)


@cli.command("inspect")
@click.argument("variant")
@click.option("--ptx", "view", flag_value="ptx", help="The PTX.")
@click.option("--sass", "view", flag_value="sass", help="The machine code, by Triton's nvdisasm.")
@json_option
def inspect_command(variant: str, view: str | None, as_json: bool) -> None:
    """Shows what is known of one artifact, by the name that `list --json` gives."""
    if view:
        artifact = _cached(variant)
        click.echo(artifact.ptx[:-1].decode() if view == "ptx" else _sass(artifact))
        return
    entry = _entry(variant)
    if as_json:
        click.echo(json.dumps({"name": variant} | entry, indent=1))
        return
    for name, value in entry.items():
        click.echo(f"{name:16} {value if isinstance(value, str) else json.dumps(value)}")


@cli.command("verify")
@json_option
def verify_command(as_json: bool) -> None:
    """Checks build/aot: hashes, ABI of every cubin, manifest against table. Exit code 1 when anything is wrong."""
    count = len(_manifest()["artifacts"])
    problems = verify(BUILD / GENERATED)
    if as_json:
        click.echo(json.dumps({"artifacts": count, "problems": problems}, indent=1))
    else:
        for problem in problems:
            click.echo(problem)
        click.echo(f"{count} artifacts, {len(problems)} problems")
    sys.exit(1 if problems else 0)


@cli.command("golden")
@click.option("--update/--check", default=False, help="Write the kept text anew, or compare with it.  [default: check]")
def golden_command(update: bool) -> None:
    """Compares the generated sources of made-up artifacts with the text kept in tests/cpu/golden."""
    if update:
        golden_text.update()
    elif difference := golden_text.differences():
        click.echo(difference)
        raise click.ClickException("the emitter writes other text than is kept; if that is meant: golden --update")


@cli.command("lock")
@click.option("--update/--check", default=False, help="Write the hashes anew, or compare with them.  [default: check]")
def lock_command(update: bool) -> None:
    """Compares the images of build/aot with the hashes kept in aot/artifacts.lock."""
    built, names = artifact_lock.of_manifest(_manifest()), artifact_lock.expected()
    lock = artifact_lock.read_lock(artifact_lock.PATH.read_text()) if artifact_lock.PATH.exists() else None
    if update:
        try:
            artifact_lock.PATH.write_text(artifact_lock.lock_text(artifact_lock.updated(lock, built, names)))
        except artifact_lock.LockError as error:
            raise click.ClickException(str(error)) from error
    elif lock is None:
        raise click.ClickException(f"{artifact_lock.PATH} is missing: lock --update writes it")
    elif problems := artifact_lock.differences(lock, built, names):
        click.echo("\n".join(problems))
        raise click.ClickException("the build is not what aot/artifacts.lock has; if that is meant: lock --update")


def _manifest() -> "Manifest":
    try:
        return json.loads((BUILD / GENERATED / "manifest.json").read_text())
    except FileNotFoundError as error:
        raise click.ClickException("nothing is built yet: run `make build` or `python -m aot build`") from error


def _entry(name: str) -> "ManifestEntry":
    artifacts = _manifest()["artifacts"]
    if name not in artifacts:
        near = sorted(
            (known for known in artifacts if name in known), key=lambda known: not known.startswith(f"{name}_sm")
        )
        near = near or difflib.get_close_matches(name, artifacts)
        nearest = ", ".join(near[:3]) or "`python -m aot list --json` gives all names"
        raise click.ClickException(f"no artifact {name} in build/aot; nearest: {nearest}")
    return artifacts[name]


def _cached(name: str) -> Artifact:
    entry = _entry(name)
    variant = next((variant for variant in variants([entry["sm"]]) if variant.name == name), None)
    artifact = variant and Cache(BUILD / "cache", toolchain(BUILD / "toolchain.json")).get(variant)
    if artifact is None:
        raise click.ClickException(f"{name} has changed since build/aot was made: run `python -m aot build`")
    return artifact


def _sass(artifact: Artifact) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(artifact.cubin)
        return subprocess.run([tool("nvdisasm"), "-c", file.name], capture_output=True, text=True, check=True).stdout
