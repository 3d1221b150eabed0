"""Configuration: layers, strictness, and messages that name the nearest valid key."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from flowrl.config import (
    BY_KIND,
    configclass,
    describe,
    from_layers,
    load,
    load_recipe,
    parse_override,
    show,
    to_mapping,
    yaml_text,
)
from flowrl.errors import EXIT_USAGE, ConfigError


@configclass
class Sqam:
    kind: Literal["sqam"] = "sqam"
    kl_budget: Annotated[float, Field(gt=0)] = 0.5
    """Path KL that the policy may spend."""
    hidden: tuple[int, ...] = (512, 512)
    """Widths of the hidden layers."""


@configclass
class Cloning:
    kind: Literal["bc"] = "bc"
    lr: float = 1e-3
    """Learning rate."""


@configclass
class Critic:
    heads: int = 10
    """M, critics in the ensemble."""
    tau: float | None = None
    """Polyak rate; null takes the algorithm's."""
    rule: Literal["strict", "padded"] = "strict"
    """What happens at the end of an episode."""

    def __post_init__(self) -> None:
        if self.rule == "padded" and self.heads < 2:
            raise ValueError("rule 'padded' needs at least 2 heads")


@configclass
class Source:
    fraction: float
    """Share of each batch."""


@configclass
class Run:
    name: str
    """Name of the run."""
    algorithm: Annotated[Sqam | Cloning, BY_KIND] = Sqam(kl_budget=0.2)
    """What trains the policy."""
    critic: Critic = Critic(heads=3)
    """The critics."""
    video: Critic | None = None
    mix: dict[str, float] = {"demonstrations": 1.0}  # noqa: RUF012 - configclass copies it
    """Share of each source in a batch."""
    sources: dict[str, Source] = field(default_factory=dict[str, Source])
    named: dict[str, dict[str, float]] = field(default_factory=lambda: {"good": {"a": 0.5, "b": 0.5}})
    several: tuple[Critic, ...] = ()
    where: Path = Path("runs")
    """Where runs lie, described at a length that does not fit beside the value and so goes above it."""
    limit: float = float("inf")
    note: str = "1e-3"


def run(*overrides: str, **values: Any) -> Run:
    values.setdefault("name", "a")
    base = [parse_override(text) for text in overrides]
    return from_layers(Run, [*_file(values), *base])


def _file(values: dict[str, Any]) -> list[Any]:
    from flowrl.config import Layer

    return [Layer(values, "file.yaml")]


def test_a_layer_changes_only_what_it_states() -> None:
    cfg = run(critic={"tau": 0.01})
    assert cfg.critic == Critic(heads=3, tau=0.01), "the field's own default stays under a partial setting"
    assert cfg.algorithm == Sqam(kl_budget=0.2)


def test_a_dotted_override_reaches_a_nested_setting() -> None:
    cfg = run("algorithm.kl_budget=0.3", "critic.heads=7", "video.heads=2")
    assert isinstance(cfg.algorithm, Sqam)
    assert cfg.algorithm.kl_budget == 0.3
    assert (cfg.critic.heads, cfg.video) == (7, Critic(heads=2))


def test_naming_another_kind_drops_the_settings_of_the_former() -> None:
    cfg = run("algorithm.kind=bc", "algorithm.lr=1e-4", algorithm={"kl_budget": 0.7})
    assert cfg.algorithm == Cloning(lr=1e-4)


def test_a_recipe_replaces_a_dictionary_and_an_override_sets_one_key() -> None:
    assert run(mix={"policy": 1}).mix == {"policy": 1.0}
    assert run("mix.policy=0.5").mix == {"demonstrations": 1.0, "policy": 0.5}
    assert run("mix={policy: 0.5}").mix == {"policy": 0.5}
    assert run("named.good.a=0.1").named == {"good": {"a": 0.1, "b": 0.5}}
    assert run("sources.demos.fraction=0.5").sources == {"demos": Source(fraction=0.5)}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"nme": 1}, ["file.yaml", "'nme'", "'name'"]),
        ({"algorithm": {"kl_budgt": 1}}, ["'algorithm.kl_budgt'", "'algorithm.kl_budget'"]),
        ({"kl_budget": 1}, ["'kl_budget'", "'algorithm.kl_budget'"]),
        ({"algorithm": {"kind": "sqm"}}, ["algorithm.kind", "'sqm'", "'sqam'", "bc"]),
        ({"several": [{"hads": 1}]}, ["'several.0.hads'", "'several.0.heads'"]),
        ({"critic": {"heads": "5"}}, ["file.yaml", "critic.heads", "'5'", "integer", "M, critics"]),
        ({"critic": {"heads": 1.5}}, ["critic.heads", "1.5", "integer"]),
        ({"critic": {"heads": True}}, ["critic.heads", "True", "integer"]),
        ({"critic": {"rule": "pad"}}, ["critic.rule", "'pad'", "'strict' or 'padded'"]),
        ({"critic": {"rule": "padded", "heads": 1}}, ["file.yaml", "critic", "at least 2 heads"]),
        ({"critic": None}, ["critic", "None", "heads"]),
        ({"algorithm": "bc"}, ["algorithm", "'bc'", "algorithm.kind", "sqam"]),
        ({"algorithm": {"kl_budget": -1}}, ["algorithm.kl_budget", "-1", "greater than 0"]),
        ({"name": 3}, ["name", "3", "string"]),
        ({"mix": {"policy": "much"}}, ["mix.policy", "'much'", "number"]),
        ({"video": {"tau": "x"}}, ["video.tau", "'x'"]),
        ({"several": [{"heads": "x"}]}, ["several.0.heads", "'x'"]),
        ({"sources": {"demos": {}}}, ["sources.demos.fraction", "missing"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(values: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        run(**values)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert caught.value.exit_code == EXIT_USAGE


def test_an_override_is_named_when_it_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"override 'critic.haeds=3'.*'critic.heads'"):
        run("critic.haeds=3")
    with pytest.raises(ConfigError, match=r"override 'critic.heads=many': critic.heads is 'many'"):
        run("critic.heads=many")
    for text in ("critic.heads", "=3", "critic..heads=3"):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            run(text)


def test_a_required_setting_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"name is missing.*Name of the run"):
        load(Run, {})


def test_shown_configuration_loads_back_equal_and_explains() -> None:
    cfg = run("algorithm.kl_budget=0.3", "video.tau=1e-05", "several=[{heads: 2}]", "sources.a.fraction=1")
    text = show(cfg)
    assert load(Run, yaml_text.parse(text, "shown")) == cfg
    assert "kl_budget: 0.3  # Path KL that the policy may spend. (default 0.2)" in text
    assert "# M, critics in the ensemble." in text
    assert load(Run, to_mapping(cfg)) == cfg


def test_describe_lists_every_setting_once() -> None:
    rows = {row.key: row for row in describe(Run)}
    assert len(rows) == len(describe(Run))
    assert (rows["algorithm.kind"].type, rows["algorithm.kind"].default) == ("sqam | bc", "sqam")
    assert rows["algorithm.kl_budget"].default == "0.2"
    assert rows["algorithm.lr"].only_for == "algorithm.kind=bc"
    assert (rows["critic.heads"].default, rows["critic.heads"].type) == ("3", "int")
    assert rows["critic.rule"].type == "strict | padded"
    assert rows["name"].default == "required"
    assert rows["video"].default == "null"


def test_a_configuration_is_frozen_and_strict_in_python_too() -> None:
    with pytest.raises(FrozenInstanceError):
        Critic().heads = 2  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Critic(heads="2")  # type: ignore[arg-type]
    assert Cloning(lr=1).lr == 1.0
    assert run().mix is not run().mix, "each instance has its own dictionaries"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1e6", 1e6),
        ("1_000", 1000),
        (".inf", float("inf")),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("", None),
        ("null", None),
        ("010", "010"),
        ("-.5", -0.5),
        ("'5'", "5"),
    ],
)
def test_yaml_scalars_read_as_a_person_reads_them(text: str, value: object) -> None:
    read = yaml_text.parse(text, "text")
    assert read == value
    assert type(read) is type(value)
    assert yaml_text.parse(yaml_text.scalar(value), "again") == value


def test_a_key_stated_twice_is_an_error_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"file.yaml, line 2.*'heads' is stated twice"):
        yaml_text.parse("heads: 1\nheads: 2\n", "file.yaml")


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "configs"
    directory.mkdir()
    (directory / "zz_base.yaml").write_text("# The base.\nname: base\ncritic: {heads: 5, tau: 0.1}\n")
    (directory / "zz_child.yaml").write_text("extends: zz_base\nname: child\ncritic: {heads: 6}\n")
    (directory / "zz_loop.yaml").write_text("extends: zz_pool\n")
    (directory / "zz_pool.yaml").write_text("extends: zz_loop\n")
    (directory / "zz_list.yaml").write_text("- 1\n")
    (directory / "zz_bad.yaml").write_text("extends: zz_base\ncritic: {haeds: 6}\n")
    monkeypatch.chdir(tmp_path)
    return directory


def test_a_recipe_is_found_by_name_and_by_path_and_extends_another(recipes: Path) -> None:
    cfg = load_recipe(Run, "zz_child", ["critic.tau=0.2"])
    assert (cfg.name, cfg.critic) == ("child", Critic(heads=6, tau=0.2))
    assert load_recipe(Run, recipes / "zz_child.yaml", ["critic.tau=0.2"]) == cfg


def test_the_order_of_a_kind_and_its_settings_does_not_matter(recipes: Path) -> None:
    cfg = load_recipe(Run, "zz_base", ["algorithm.lr=0.1", "algorithm.kind=bc"])
    assert cfg.algorithm == Cloning(lr=0.1)


def test_a_derived_class_keeps_fields_and_meanings() -> None:
    @configclass
    class Derived(Critic):
        depth: int = 2
        """Hidden layers."""

    assert {row.key: row.meaning for row in describe(Derived)}["heads"] == "M, critics in the ensemble."
    assert load(Derived, {"heads": 2, "depth": 3}) == Derived(heads=2, depth=3)


def test_recipe_mistakes_are_named(recipes: Path) -> None:
    for name, message in {
        "zz_chld": r"unknown recipe 'zz_chld'.*'zz_child'",
        "nowhere.yaml": "'nowhere.yaml' does not exist",
        "zz_loop": r"circle: zz_loop.yaml -> zz_pool.yaml -> zz_loop.yaml",
        "zz_list": r"zz_list.yaml: holds list",
        "zz_bad": r"zz_bad.yaml: unknown key 'critic.haeds'.*'critic.heads'",
    }.items():
        with pytest.raises(ConfigError, match=message):
            load_recipe(Run, name)
