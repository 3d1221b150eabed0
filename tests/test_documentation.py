"""What the pages say is true: links lead somewhere, commands exist, recipes load, examples run.

Pages: README.md, CONTRIBUTING.md and docs/. A fenced python block is run when its first line says so:
```` ```python file=NAME ```` is written to that file, ```` ```python run ```` is executed beside the files
of its page, in order. (docs/policies.md has its own test in tests/policies.)
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from gymnasium.utils.env_checker import check_env

from flowrl.cli.app import build
from flowrl.config import find_recipe, load_recipe
from flowrl.scratch.config import recipe_class
from sim import registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^(`{3,}|~{3,})([^\n]*)\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
SHELLS = {"", "bash", "sh", "shell", "console"}
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*(\.[A-Za-z]+)?|\.\.\.|<.*>")
IMAGINED = {"sim/dock_env.py", "tests/sim/test_dock_env.py", "flowrl/algorithms/weighted.py"}
IMAGINED |= {"tests/algorithms/test_weighted.py", "docs/algorithms/weighted.md"}
"""Files that an example asks the reader to write."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: the words after the fence, its text and the line it starts at."""

    info: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    return [
        Block(match[2].strip(), match[3], text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
    ]


def prose(text: str) -> str:
    return FENCE.sub("", text)


# Links


def slug(heading: str) -> str:
    """The anchor that a Markdown viewer gives a heading."""
    plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", lambda match: match[1] or "", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    return {slug(h) for h in re.findall(r"^#{1,6} +(.+)$", prose(page.read_text()), re.MULTILINE)}


def link_faults(page: Path, text: str) -> list[str]:
    faults: list[str] = []
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)", prose(text)) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        where = (page.parent / path).resolve() if path else page
        if not where.exists():
            faults.append(f"{target}: nothing is there")
        elif not where.is_relative_to(ROOT):
            faults.append(f"{target}: leaves the repository")
        elif anchor and where.suffix == ".md" and anchor not in anchors(where):
            faults.append(f"{target}: {where.name} has no such heading")
    return faults


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert link_faults(page, page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    pattern = r"`((?:flowrl|sim|robot_bridge|service|tests|configs|benchmarks|docs|tools|requirements)/[\w/.-]+\.\w+)`"
    named = set(re.findall(pattern, page.read_text()))
    assert [path for path in sorted(named - IMAGINED) if not (ROOT / path).exists()] == []


def test_the_index_lists_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    pages = [page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md"))]
    assert [page for page in pages if page != "README.md" and f"]({page})" not in index] == []


# Commands


@dataclass(frozen=True)
class Command:
    """One ``flowrl`` command of a page: its words after ``flowrl``."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(("flowrl", *self.words))


def commands(text: str) -> Iterator[Command]:
    """The flowrl commands of all shell blocks: continued lines joined, comments and pipes cut off."""
    for block in blocks(text):
        if block.info.split(" ")[0] not in SHELLS:
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            start = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?(?:python -m )?flowrl (.*)", line)
            if start is None:
                continue
            lexer = shlex.shlex(start[1], posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in lexer:
                if set(word) <= set("|&;<>"):
                    break
                words.append(word)
            yield Command(tuple(words))


@cache
def application() -> Any:
    return typer.main.get_command(build())


def parse(command: Command) -> tuple[str, dict[str, Any]]:
    """The full name of a command and its parameters. Raises what the command line itself would raise."""
    found, name, words = application(), "flowrl", list(command.words)
    while hasattr(found, "commands"):
        if words and words[0].startswith("-"):
            found.make_context(name, words)  # raises Exit for --help and --version
        if not words or words[0] not in found.commands:
            raise ValueError(f"{command}: {name} has no command {words[:1]}; it has {sorted(found.commands)}")
        name, found = f"{name} {words[0]}", found.commands[words[0]]
        words = words[1:]
    words = [word for word in words if word != "..."]
    return name, found.make_context(name, words).params


def command_fault(command: Command) -> str | None:
    """Why a command cannot be typed as it stands, or None."""
    try:
        _, parameters = parse(command)
    except typer.Exit:
        return None  # --help or --version
    except Exception as error:  # any refusal of the command line is the finding
        return f"{command}: {getattr(error, 'message', None) or error}"
    recipe = parameters.get("recipe")
    if recipe and not PLACEHOLDER.fullmatch(recipe) and not recipe.endswith(".yaml"):
        try:
            path = find_recipe(recipe)
            load_recipe(recipe_class(path), path, parameters.get("overrides") or [])
        except Exception as error:
            return f"{command}: {error}"
    environment = parameters.get("env")
    if environment and not PLACEHOLDER.fullmatch(environment) and environment not in registry.names():
        return f"{command}: no environment {environment!r}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_their_options_exist(page: Path) -> None:
    faults = [command_fault(command) for command in commands(page.read_text())]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_inside_sentences_exist(page: Path) -> None:
    groups = application().commands
    for words in re.findall(r"`flowrl ([a-z][^`]*)`", prose(page.read_text())):
        first, *rest = words.split()
        assert first in groups, words
        found = groups[first]
        if hasattr(found, "commands") and rest and not PLACEHOLDER.fullmatch(rest[0]):
            assert rest[0] in found.commands, words
            found = found.commands[rest[0]]
        known = {option for parameter in found.params for option in parameter.opts} | {"--help", "-h"}
        assert {word.split("=")[0] for word in rest if word.startswith("--")} <= known, words


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    shell = "\n".join(block.text for block in blocks(text) if block.info.split(" ")[0] in SHELLS)
    named = re.findall(r"^\s*(?:\$ )?make ([a-z-]+)", shell, re.MULTILINE)
    named += re.findall(r"`make ([a-z-]+)[^`]*`", prose(text))
    assert [name for name in named if name not in targets] == []


# Examples


def run_examples(page: Path, where: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Write the files and run the blocks of a page in ``where``; the names its blocks have made."""
    marked = [block for block in blocks(page.read_text()) if block.info.startswith("python ")]
    monkeypatch.chdir(where)
    monkeypatch.syspath_prepend(where)
    names: dict[str, Any] = {"__name__": "example"}
    modules: list[str] = []
    try:
        for block in marked:
            match block.info.split():
                case ["python", "run"]:
                    # Blank lines in front keep the page's line numbers in a traceback.
                    exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
                case ["python", word] if word.startswith("file="):
                    file = word.removeprefix("file=")
                    (where / file).write_text(block.text)
                    modules.append(file.removesuffix(".py"))
                case _:
                    pytest.fail(f"{page}:{block.line}: unknown mark {block.info!r}")
    finally:
        for module in modules:
            sys.modules.pop(module, None)
    return names


def test_the_example_environment_keeps_its_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    names = run_examples(DOCS / "environments.md", tmp_path, monkeypatch)
    assert names["successes"] == 20
    check_env(names["env"], skip_render_check=True)
    assert all(feature.unit and feature.names for feature in names["env"].interface.observation)


def test_the_example_algorithm_learns_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_examples(DOCS / "algorithms" / "README.md", tmp_path, monkeypatch)
    assert set(names["metrics"]) == {"policy/loss", "policy/effective_share", "policy/gradient_norm"}


# The checks themselves: a wrong page is refused.


@pytest.mark.parametrize(
    "line",
    [
        "flowrl fly",
        "flowrl replay fly somewhere",
        "flowrl finetune lift_sqam --polcy policies/lift",
        "flowrl collect no_such_recipe",
        "flowrl show lift_sqam algorithm.kl_budgte=0.3",
        "flowrl check --env no_such_environment",
        "flowrl evaluate runs/demo-1 --episodes many",
        ".venv/bin/flowrl pretrain",
    ],
)
def test_a_wrong_command_is_refused(line: str) -> None:
    (command,) = commands(f"```\n{line}   # comment\n```\n")
    assert command_fault(command)


@pytest.mark.parametrize(
    "line",
    [
        "flowrl --help",
        "flowrl demo --seeds 3 --explain --json demo.json",
        "flowrl show lift_sqam seed=3 > mine.yaml",
        "flowrl show RECIPE",
        "$ OMP_NUM_THREADS=1 .venv/bin/flowrl collect lift_sqam \\\n    --to replays/lift | tee log",
        "python -m flowrl replay verify replays/lift",
        "flowrl finetune --resume RUN",
    ],
)
def test_a_right_command_is_accepted(line: str) -> None:
    (command,) = commands(f"```bash\n{line}\n```\n")
    assert command_fault(command) is None


def test_wrong_links_are_found() -> None:
    text = "[a](nowhere.md) [b](notation.md#no-such-heading) [c](notation.md#flow-time) [d](https://x.org)"
    assert len(link_faults(DOCS / "README.md", text)) == 2
