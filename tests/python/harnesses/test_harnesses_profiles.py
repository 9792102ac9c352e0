"""Launch profiles as data, and installing what they launch; no real agent is started here."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import lightning_lab as ll
from lightning_lab.harnesses import PROFILES, HarnessError
from lightning_lab.harnesses.installing import install, installed_version
from lightning_lab.harnesses.profiles import profile_named
from lightning_lab.records import Task

PLACE = {"url": "http://127.0.0.1:9/rollout/r-1", "key": "ll-key", "home": "/home/of/r-1"}

NPM = """#!/bin/sh
echo run >> "$LIGHTNING_LAB_HARNESSES/log"
[ -z "$NPM_FAILS" ] || { echo "E404 no such package" >&2; exit 1; }
for last; do :; done
mkdir -p "$3/node_modules/@openai/codex"
echo "{\\"version\\": \\"${last##*@}\\"}" > "$3/node_modules/@openai/codex/package.json"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an npm that only writes down what it was asked for."""
    programs, cache = tmp_path / "bin", tmp_path / "cache"
    programs.mkdir()
    cache.mkdir()
    for name, text in {"npm": NPM, "node": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LIGHTNING_LAB_HARNESSES", str(cache))
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    return cache


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(HarnessError, match=r"no launch profile 'codeks'; there are mini-swe-agent, codex, claude-code"):
        ll.Harness.profile("codeks")


@pytest.mark.parametrize("name", PROFILES)
def test_what_is_not_installed_says_which_version_is_supported_and_how_to_install_it(name):
    words = rf"{name} is not installed.* {PROFILES[name].version}\..*: lightning-lab harnesses install {name}"
    with pytest.raises(HarnessError, match=words):
        ll.Harness.profile(name)


def test_a_folder_with_another_version_is_not_taken(cache):
    folder = install(profile_named("codex"))
    (folder / "node_modules/@openai/codex/package.json").write_text('{"version": "0.99.0"}')
    with pytest.raises(HarnessError, match=r"codex is in version 0\.99\.0 in .*supports version 0\.171\.0"):
        ll.Harness.profile("codex")


def test_installing_twice_installs_once(cache):
    assert install(profile_named("codex")) == install(profile_named("codex"))
    assert (cache / "log").read_text() == "run\n"
    assert installed_version(profile_named("codex")) == "0.171.0"


def test_what_was_left_half_way_is_installed_anew(cache):
    folder = install(profile_named("codex"))
    (folder / ".complete").unlink()
    (folder / "leftover").touch()
    install(profile_named("codex"))
    assert not (folder / "leftover").exists()


def test_an_installer_that_fails_is_quoted_and_leaves_nothing_installed(monkeypatch):
    monkeypatch.setenv("NPM_FAILS", "1")
    with pytest.raises(HarnessError, match=r"codex could not be installed: .*npm ended with 1.\nE404 no such package"):
        install(profile_named("codex"))
    assert installed_version(profile_named("codex")) is None


def test_without_node_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(HarnessError, match=r"no node and npm on PATH. Install Node 20 or newer"):
        install(profile_named("claude-code"))


def test_a_python_that_is_not_there_is_named():
    with pytest.raises(
        HarnessError, match=r"openhands 1\.16\.0 needs Python 3\.99, and there is no python3\.99 on PATH that runs"
    ):
        install(replace(profile_named("openhands"), python="3.99"))


def test_a_profile_names_the_agent_and_its_version_and_gives_the_task_nothing_but_its_files():
    install(profile_named("codex"))
    codex = ll.Harness.profile("codex")
    assert codex.info.name == "codex"
    assert codex.info.version.startswith("0.171.0+")
    assert codex.kind == "command"
    assert not codex.has_task_file
    assert json.loads(codex.info.source)["version"] == "0.171.0"


def test_everything_that_makes_a_launch_counts_in_the_version():
    install(profile_named("codex"))
    versions = [ll.Harness.profile("codex", timeout_s=seconds).version for seconds in (60, 60, 90)]
    assert versions[0] == versions[1] != versions[2]


def test_a_prompt_is_one_argument_whatever_it_says():
    install(profile_named("codex"))
    prompt = "--help {url} {folder} $(reboot)\n'\""
    assert ll.Harness.profile("codex").arguments(Task(id="t", prompt=prompt))[-2:] == ["--", prompt]


def test_the_configuration_leads_to_the_rollout(cache):
    install(profile_named("codex"))
    codex = ll.Harness.profile("codex")
    config = tomllib.loads(codex.home_files(PLACE)[".codex/config.toml"])
    assert config["model_providers"]["lab"]["base_url"] == "http://127.0.0.1:9/rollout/r-1/v1"
    assert codex.environment(PLACE)["CODEX_HOME"] == "/home/of/r-1/.codex"


def test_every_configuration_is_well_formed():
    for profile in PROFILES.values():
        for path, text in profile.home.items():
            {".toml": tomllib.loads, ".json": json.loads}.get(Path(path).suffix, str)(text)
        assert sum(part.count("{prompt}") for part in profile.argv) == 1


def test_a_command_finds_the_way_to_the_model_where_it_wants_it():
    harness = ll.Harness.command(["true"], env={"BASE": "{url}/v1", "OTHER": "{x}"}, home={".rc": "key={key} {x}"})
    assert harness.environment(PLACE) == {"BASE": "http://127.0.0.1:9/rollout/r-1/v1", "OTHER": "{x}"}
    assert harness.home_files(PLACE) == {".rc": "key=ll-key {x}"}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "."])
def test_files_stay_in_the_home_directory(path):
    with pytest.raises(HarnessError, match="stay in it"):
        ll.Harness.command(["true"], home={path: "x"})


def test_files_in_the_home_directory_count_in_the_version():
    versions = {ll.Harness.command(["true"], home={".rc": text}).version for text in ("a", "b")}
    assert len(versions) == 2
