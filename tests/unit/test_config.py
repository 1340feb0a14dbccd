"""Layers, origins and refusals of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import field, frozen
from tokenmill.config import Config, command_line_setting, load_config
from tokenmill.errors import ConfigError
from tokenmill.home import home
from tokenmill.settings import Origin, Setting, structure


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def config(**overrides: Any) -> Config:
    return load_config(env={}, overrides=overrides)


def test_defaults_stand_when_nothing_is_said() -> None:
    found = config()
    assert (found.backend.name, found.cache.max_len, found.generation.temperature) == ("auto", None, 0.0)
    assert str(found.origin("cache.max_len")) == "default"


def test_precedence_falls_layer_by_layer(tmp_path: Path) -> None:
    file = write(tmp_path / "run.toml", "[generation]\ntop_k = 3\nseed = 3\nmin_p = 0.3\n")
    env = {"TOKENMILL__GENERATION__TOP_K": "2", "TOKENMILL__GENERATION__SEED": "2"}
    found = load_config(file, env, {"generation.top_k": 1}).with_model(
        {"generation": {"top_k": 4, "seed": 4, "min_p": 0.4, "top_p": 0.4}}, "genai_config.json"
    )
    settings = found.generation
    assert (settings.top_k, settings.seed, settings.min_p, settings.top_p) == (1, 2, 0.3, 0.4)
    assert settings.temperature == 0.0
    assert {
        key: str(found.origin(f"generation.{key}")) for key in ("top_k", "seed", "min_p", "top_p", "temperature")
    } == {
        "top_k": "keyword",
        "seed": "environment variable TOKENMILL__GENERATION__SEED",
        "min_p": str(file),
        "top_p": "genai_config.json",
        "temperature": "default",
    }


def test_a_later_call_overrides_an_earlier_one() -> None:
    found = config(cache={"max_len": 512}).overridden({"cache.max_len": 64})
    assert found.cache.max_len == 64
    assert config(cache={"max_len": 512}).overridden({"generation.top_k": 1}).cache.max_len == 512


def test_nested_tables_and_dotted_keys_mean_the_same() -> None:
    nested = load_config(
        env={}, overrides={"cache": {"max_len": 512}, "backend": {"options": {"cpu": {"isa": "avx2"}}}}
    )
    dotted = load_config(env={}, overrides={"cache.max_len": 512, "backend.options.cpu.isa": "avx2"})
    mixed = load_config(env={}, overrides={"cache.max_len": 512, "backend": {"options.cpu": {"isa": "avx2"}}})
    assert nested == dotted == mixed
    assert nested.backend.options == {"cpu": {"isa": "avx2"}}


def test_option_tables_are_merged_key_by_key(tmp_path: Path) -> None:
    file = write(tmp_path / "run.toml", '[backend.options.my-device]\nisa = "avx2"\npool = 4\n')
    found = load_config(file, {"TOKENMILL__BACKEND__OPTIONS__MY_DEVICE__ISA": "amx"}, {})
    options = found.options("backend", "my-device")
    assert {key: setting.value for key, setting in options.items()} == {"isa": "amx", "pool": 4}
    assert (options["isa"].origin.kind, options["pool"].origin.kind) == ("environment", "file")


def test_every_key_that_was_set_can_be_asked_for() -> None:
    found = load_config(env={"TOKENMILL__GENERATION__TOP_K": "4"}, overrides={"backend.options.cpu.isa": "avx2"})
    assert {key: found.value(key) for key in found.keys_set()} == {
        "backend.options.cpu.isa": "avx2",
        "generation.top_k": 4,
    }
    assert found.value("cache.strategy") == "auto"


def test_a_list_replaces_a_list(tmp_path: Path) -> None:
    file = write(tmp_path / "run.toml", '[generation]\nstop = ["a", "b"]\nlogit_bias = {5 = 1.5}\n')
    assert load_config(file, {}, {}).generation.logit_bias == {5: 1.5}
    assert load_config(file, {}, {"generation": {"stop": ["c"]}}).generation.stop == ("c",)


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("CACHE__MAX_LEN", "512", "cache.max_len", 512),
        ("CACHE__MAX_LEN", "none", "cache.max_len", None),
        ("GENERATION__TEMPERATURE", "0.5", "generation.temperature", 0.5),
        ("GENERATION__IGNORE_EOS", "yes", "generation.ignore_eos", True),
        ("GENERATION__IGNORE_EOS", "0", "generation.ignore_eos", False),
        ("CAPTURE__ENABLED", "false", "capture.enabled", False),
        ("GENERATION__STOP_TOKEN_IDS", "1, 2", "generation.stop_token_ids", (1, 2)),
        ("GENERATION__STOP_TOKEN_IDS", "[1, 2]", "generation.stop_token_ids", (1, 2)),
        ("GENERATION__STOP", '["a,b", "c"]', "generation.stop", ("a,b", "c")),
        ("GENERATION__LOGIT_BIAS", "{7 = -1}", "generation.logit_bias", {7: -1.0}),
        ("PLUGINS__DISABLED", "a,b", "plugins.disabled", ("a", "b")),
        ("PLUGINS__DISABLED", "", "plugins.disabled", ()),
        ("CACHE__DTYPE", "float16", "cache.dtype", "float16"),
        ("MODEL__REF", "123", "model.ref", "123"),
        ("MODEL__IO__KV_INPUTS", '["a", "b"]', "model.io", {"kv_inputs": ["a", "b"]}),
        ("MODEL__IO__TOKEN_INPUT", "ids", "model.io", {"token_input": "ids"}),
    ],
)
def test_a_variable_is_read_as_its_field_asks(name: str, text: str, key: str, value: Any) -> None:
    found = load_config(env={f"TOKENMILL__{name}": text})
    section, field_name = key.split(".")
    assert getattr(getattr(found, section), field_name) == value
    again = load_config(env={}, overrides=dict([command_line_setting(f"{name.lower().replace('__', '.')}={text}")]))
    assert getattr(getattr(again, section), field_name) == value


def test_other_variables_are_none_of_its_business() -> None:
    assert load_config(env={"TOKENMILL_HOME": "/x", "PATH": "/bin", "tokenmill__cache__max_len": "0"}) == config()


def test_numpy_numbers_are_numbers() -> None:
    found = config(generation={"top_k": np.int64(5), "temperature": np.float32(0.5)})
    assert (found.generation.top_k, type(found.generation.top_k)) == (5, int)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"cach": {}}, "keyword: there is no key cach; did you mean cache?"),
        ({"cache": {"maxlen": 1}}, "keyword: there is no key cache.maxlen; did you mean cache.max_len?"),
        ({"cache.max_len.x": 1}, "there is no key cache.max_len.x"),
        ({"cache": 5}, "cache = 5 cannot be used: expected a table"),
        ({"backend.options": 5}, "backend.options = 5 cannot be used: expected a table"),
        ({"backend.options.cpu": "fast"}, "backend.options.cpu = 'fast' cannot be used: expected a table"),
        ({"backend.options.cpu.a.b": 1}, "there is no key backend.options.cpu.a.b"),
        ({"generation.options.x.y": 1}, "there is no key generation.options"),
        ({"cache.max_len": "512"}, "cache.max_len = '512' cannot be used: expected an integer or none"),
        ({"cache.max_len": 5.0}, "expected an integer or none"),
        ({"cache.max_len": True}, "cache.max_len = True cannot be used: expected an integer or none"),
        ({"cache.max_len": 0}, "cache.max_len = 0 cannot be used: 'max_len' must be >= 1"),
        ({"cache.max_len": -1}, "must be >= 1"),
        ({"backend.threads": 0}, "'threads' must be >= 1"),
        ({"backend.name": 5}, "backend.name = 5 cannot be used: expected a text"),
        ({"cache.dtype": "int4"}, "expected one of 'auto', 'float32', 'float16'"),
        ({"capture.enabled": "yes"}, "expected true or false or none"),
        ({"generation.temperature": float("nan")}, "'temperature' must be >= 0"),
        ({"generation.top_p": 0}, "'top_p' must be > 0"),
        ({"generation.ignore_eos": 1}, "expected true or false"),
        ({"generation.stop": [1]}, "expected a list, each a text"),
        ({"generation.stop": 1}, "expected a list, each a text"),
        ({"generation.stop_token_ids": "12"}, "expected a list, each an integer"),
        ({"generation.logit_bias": {"a": 1.0}}, "generation.logit_bias = {'a': 1.0} cannot be used"),
        ({"generation.logit_bias": [1]}, "expected a table of a number"),
        ({"speculative.width": 0}, "'width' must be >= 1"),
        ({"trace.sinks": 5}, "expected a list, each a text"),
        ({"plugins.disabled": {"a": 1}}, "expected a list, each a text"),
    ],
)
def test_a_keyword_that_cannot_be_used_is_refused(overrides: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(env={}, overrides=overrides)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("TOKENMILL__CACHE__MAX_LEN", "many", "cache.max_len = 'many' cannot be used: expected an integer or none"),
        ("TOKENMILL__CACHE__MAX_LEN", "0", "cache.max_len = '0' cannot be used: 'max_len' must be >= 1"),
        ("TOKENMILL__CACHE__MAX_LEN", "", "cache.max_len = '' cannot be used: expected an integer or none"),
        ("TOKENMILL__CACHE__MAX", "1", "there is no key cache.max; did you mean cache.max_len?"),
        ("TOKENMILL__KACHE__MAX_LEN", "1", "there is no key kache; did you mean cache?"),
        ("TOKENMILL__CACHE", "1", "cache = 1 cannot be used: expected a table"),
        ("TOKENMILL__GENERATION__IGNORE_EOS", "maybe", "expected true or false"),
        ("TOKENMILL__GENERATION__STOP_TOKEN_IDS", "1,x", "expected a list, each an integer"),
        ("TOKENMILL__GENERATION__STOP", '["a"', "expected a list, each a text"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(env={name: text})
    assert str(caught.value).startswith(f"environment variable {name}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cache]\nmax_len = 'x'", "run.toml: cache.max_len = 'x' cannot be used"),
        ("[cache]\nlength = 1", "run.toml: there is no key cache.length"),
        ("[cash]\nx = 1", "run.toml: there is no key cash; did you mean cache?"),
        ("[cache", "run.toml is not valid TOML"),
        ("top = 1", "run.toml: there is no key top"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path / "run.toml", text), {})
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read: No such file"):
        load_config(tmp_path / "gone.toml", {})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "binary.toml", {})


def test_a_wrong_value_is_refused_although_a_stronger_layer_covers_its_neighbour() -> None:
    with pytest.raises(ConfigError, match="TOKENMILL__GENERATION__TOP_K"):
        load_config(env={"TOKENMILL__GENERATION__TOP_K": "x"}, overrides={"generation.seed": 1})


def test_the_models_own_metadata_is_checked_and_named() -> None:
    with pytest.raises(ConfigError, match=r"genai_config\.json: generation\.top_p = 7"):
        config().with_model({"generation": {"top_p": 7}}, "genai_config.json")


def test_command_line_settings_need_a_value() -> None:
    with pytest.raises(ConfigError, match=r"write it as section\.key=value"):
        command_line_setting("cache.max_len")


@frozen(kw_only=True)
class Range:
    low: int = 0
    high: int = 1
    path: Path = Path("x")
    name: str = field()

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


def test_rules_over_several_fields_and_required_fields_are_errors_of_the_section() -> None:
    assert structure(Range, {"name": "a", "path": "y"}, "x.options.range") == Range(name="a", path=Path("y"))
    with pytest.raises(ConfigError, match=r"x\.options\.range lacks name; set x\.options\.range\.name"):
        structure(Range, {}, "x.options.range")
    with pytest.raises(ConfigError, match=r"low = 5.* low is above high"):
        structure(
            Range, {"name": "a", "low": Setting("5", Origin("environment", "X"), textual=True)}, "x.options.range"
        )


def test_the_folder_of_caches(tmp_path: Path) -> None:
    assert home({"TOKENMILL_HOME": str(tmp_path), "XDG_CACHE_HOME": "/other"}) == tmp_path
    assert home({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "tokenmill"
    assert home({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "tokenmill"
    assert home({}) == Path.home() / ".cache" / "tokenmill"
