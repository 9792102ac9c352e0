"""``lightning-lab quickstart | doctor | run | serve | harnesses | engines | tokenizers``."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import resources
from pathlib import Path

import lightning_lab

_INSTALLERS = 4
"""Programs that are installed at one time."""
_MARKS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    status: int = options.command(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lightning-lab", description=lightning_lab.__doc__)
    parser.add_argument("--version", action="version", version=f"lightning-lab {lightning_lab.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    quickstart = commands.add_parser("quickstart", help="copy the quickstart notebook")
    quickstart.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="DIR")
    quickstart.add_argument("--force", action="store_true", help="replace a notebook of that name")
    quickstart.set_defaults(command=_quickstart)

    doctor = commands.add_parser("doctor", help="check the installation and say what to do")
    doctor.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are to be stored")
    doctor.add_argument("--recipe", type=Path, metavar="FILE", help="also check what this recipe needs")
    doctor.add_argument("--host", help="where the gateway is to listen for agents in pods; default: the recipe's")
    doctor.add_argument("--port", type=int, default=0, help="its port, with --host")
    doctor.add_argument("--cluster", metavar="ADDRESS", help="as for lab.connect; default: the recipe's")
    doctor.set_defaults(command=_doctor)

    run = commands.add_parser("run", help="train what a recipe says, to its end")
    run.add_argument("recipe", type=Path, metavar="RECIPE")
    run.add_argument("--runs", type=Path, default=Path("runs"), help="where the run is stored")
    run.set_defaults(command=_run)

    serve = commands.add_parser("serve", help="the gateway without a notebook, for one rollout by hand")
    serve.add_argument("--policy", default="quickstart", help="quickstart, smollm2 or a model directory")
    serve.add_argument("--port", type=int, default=0, help="default: any free one")
    serve.add_argument("--runs", type=Path, default=Path("runs"), help="where the calls are stored")
    serve.add_argument(
        "--agl", nargs="?", type=int, const=0, metavar="PORT", help="also serve Agent Lightning v1.0's routes"
    )
    serve.set_defaults(command=_serve)

    harnesses = commands.add_parser("harnesses", help="the released agents that the lab knows, and installing them")
    harnesses.set_defaults(command=_list_harnesses)
    action = harnesses.add_subparsers(metavar="install")
    install = action.add_parser("install", help="install agents in the versions that the lab supports")
    install.add_argument("names", nargs="*", metavar="NAME", help="default: all of them")
    install.set_defaults(command=_install_harnesses)

    engines = commands.add_parser("engines", help="programs that sample, each in an environment of its own")
    engines.set_defaults(command=_list_engines)
    engine_action = engines.add_subparsers(metavar="install")
    install_engine = engine_action.add_parser("install", help="install an engine in the version that the lab supports")
    install_engine.add_argument("names", nargs="+", metavar="NAME", help="vllm")
    install_engine.set_defaults(command=_install_engines)

    tokenizers = commands.add_parser("tokenizers", help="fetch real tokenizers, without weights, into your cache")
    tokenizers.add_argument("names", nargs="*", metavar="NAME", help="default: all that are known")
    tokenizers.set_defaults(command=_tokenizers)
    return parser


def _quickstart(options: argparse.Namespace) -> int:
    target: Path = options.folder / "quickstart.ipynb"
    notebook = _notebook()
    if notebook is None:
        return _fail("The notebook is missing from this installation. Reinstall: pip install -U lightning-lab")
    try:
        if target.exists() and target.read_bytes() != notebook and not options.force:
            return _fail(f"{target} exists and was changed; nothing was written. Use --force to replace it.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(notebook)
    except OSError as error:
        return _fail(f"Cannot write {target}: {error.strerror}. Choose another folder.")
    print(f"{target}\nOpen it with: jupyter lab {target}")
    print('It needs: pip install "lightning-lab[quickstart]"   (lightning-lab doctor checks what is there)')
    return 0


def _notebook() -> bytes | None:
    """The packaged notebook, or the repository's own in an editable installation."""
    package = resources.files("lightning_lab")
    for place in (package / "_shipped" / "quickstart.ipynb", package / ".." / "notebooks" / "quickstart.ipynb"):
        if place.is_file():
            return place.read_bytes()
    return None


def _doctor(options: argparse.Namespace) -> int:
    from lightning_lab.notebook.doctor import Network, examine
    from lightning_lab.notebook.recipes import RecipeError, load_recipe

    try:
        recipe = load_recipe(options.recipe) if options.recipe else None
    except RecipeError as error:
        return _fail(str(error))
    network = Network.of(recipe) if recipe else Network()
    if options.host:
        network = replace(network, host=options.host, port=options.port, elsewhere=True)
    if options.cluster:
        network = replace(network, cluster=options.cluster)
    problems = 0
    for finding in examine(options.runs, recipe, network):
        problems += finding.level == "problem"
        print(f"{_MARKS[finding.level]}  {finding.name}: {finding.said}", flush=True)
        if finding.action:
            print(f"         → {finding.action}")
    print("Everything that is needed is there." if not problems else f"{problems} to fix.")
    return 1 if problems else 0


def _run(options: argparse.Namespace) -> int:
    from lightning_lab.notebook.recipes import run_recipe

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        return run_recipe(options.recipe, options.runs, ended)
    except (RuntimeError, ValueError, ImportError, TypeError) as error:
        return _fail(str(error))


def _serve(options: argparse.Namespace) -> int:
    from lightning_lab.gateway import GatewayError
    from lightning_lab.notebook.errors import MissingExtraError
    from lightning_lab.notebook.serving import ServedRollout
    from lightning_lab.policy.base import PolicyError
    from lightning_lab.store import StoreError

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        served = ServedRollout(options.policy, runs=options.runs, port=options.port, agl_port=options.agl)
    except (GatewayError, MissingExtraError, PolicyError, StoreError) as error:
        return _fail(str(error))
    try:
        print(served.instructions, flush=True)
        ended.wait()
    finally:
        served.close()
    print(f"Stopped. {served.calls} calls are recorded in {served.path}.")
    return 0


def _list_harnesses(options: argparse.Namespace) -> int:
    from lightning_lab.harnesses import PROFILES
    from lightning_lab.harnesses.installing import harness_cache, installed_version

    for profile in PROFILES.values():
        found = installed_version(profile)
        print(f"{profile.name:<16}{profile.version:<10}{'installed' if found == profile.version else '-'}")
    print(f"Installed in {harness_cache()}: lightning-lab harnesses install NAME…")
    return 0


def _install_harnesses(options: argparse.Namespace) -> int:
    from lightning_lab.harnesses import PROFILES, HarnessError
    from lightning_lab.harnesses.installing import install
    from lightning_lab.harnesses.profiles import profile_named

    def attempt(name: str) -> str | HarnessError:
        try:
            profile = profile_named(name)
            return f"{profile.name} {profile.version}: {install(profile)}"
        except HarnessError as error:
            return error

    return _installed(attempt, options.names or tuple(PROFILES))


def _installed(attempt: Callable[[str], str | Exception], names: Sequence[str]) -> int:
    """What each attempt said → the exit status."""
    failed = 0
    with ThreadPoolExecutor(_INSTALLERS) as pool:  # they mostly wait for the network
        for said in pool.map(attempt, names):
            if isinstance(said, Exception):
                failed |= _fail(str(said))
            else:
                print(said, flush=True)
    return failed


def _list_engines(options: argparse.Namespace) -> int:
    from lightning_lab.policy.base import PolicyError
    from lightning_lab.policy.engines.installing import ENGINES, engine_folder, located
    from lightning_lab.policy.engines.versions import SUPPORTED

    for name in ENGINES:
        try:
            found = located(name).version
        except PolicyError:
            found = "-"
        print(f"{name:<8}supported {SUPPORTED[name]!s:<16}installed {found:<10}{engine_folder(name)}")
    return 0


def _install_engines(options: argparse.Namespace) -> int:
    """All at one time: each is in an environment of its own."""
    from lightning_lab.policy.base import PolicyError
    from lightning_lab.policy.engines.installing import install

    def attempt(name: str) -> str | PolicyError:
        began = time.monotonic()
        try:
            environment = install(name)
        except PolicyError as error:
            return error
        kind, took = "CPU" if environment.cpu else "CUDA", time.monotonic() - began
        return f"{name} {environment.version} ({kind}): {environment.python}, there in {took:.0f} s"

    return _installed(attempt, options.names)


def _tokenizers(options: argparse.Namespace) -> int:
    try:
        from lightning_lab.tokens import TOKENIZERS, TokenizerError, fetch_tokenizer
    except ModuleNotFoundError as error:
        return _fail(f'{error}. Install what tokenizes: pip install "lightning-lab[train]"')
    for name in options.names or TOKENIZERS:
        try:
            print(f"{name}: {fetch_tokenizer(name)}", flush=True)
        except TokenizerError as error:
            return _fail(str(error))
    return 0


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
