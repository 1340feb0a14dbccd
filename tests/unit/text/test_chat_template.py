"""Chat templates: what models' templates use, what they may not do, and what is refused."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tokenmill.errors import GenerationError, TemplateError
from tokenmill.generation.chat_template import ChatTemplate, find_chat_template

HI = [{"role": "user", "content": "hi"}]


def test_what_templates_use() -> None:
    source = (
        "{{ bos_token }}{% for message in messages %}\n"
        "    {%- if message['role'] == 'tool' %}{% continue %}{% endif %}\n"
        "    {%- generation %}<{{ message.role }}>{{ message.content | trim }}{% endgeneration %}\n"
        "{%- if loop.last %}{{ loop.length }}{% endif %}\n"
        "{%- endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}{{ extra }}{{ {'é': '<&>'} | tojson }}"
    )
    messages = [{"role": "tool", "content": "x"}, {"role": "user", "content": " hi "}]
    text = ChatTemplate(source).render(messages, {"bos_token": "<s>"}, extra="!")
    assert text == '<s><user>hi2<assistant>!{"é": "<&>"}'


def test_tojson_takes_what_transformers_takes() -> None:
    text = ChatTemplate("{{ messages | tojson(indent=1, sort_keys=true) }}").render([{"role": "b", "a": [1]}])
    assert text == json.dumps([{"role": "b", "a": [1]}], indent=1, sort_keys=True)


def test_the_date() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(HI) in (
        time.strftime("%Y"),
        str(int(time.strftime("%Y")) - 1),
    )


def test_a_refusal_of_the_template_is_told() -> None:
    with pytest.raises(TemplateError, match="refuses the conversation: roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__ }}{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context.environment.call }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ lipsum() }}",
    ],
)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    # An attribute out of reach reads as undefined: nothing when it is written, an error when it is used.
    with suppress(TemplateError):
        assert ChatTemplate(source).render(HI) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999999999) %}{% endfor %}",
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}"
        "{% set ns.s = x %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ 10**10 * 'a' }}",
        "{{ (range(99999) | list) * 1000 }}",
        "{{ 9**(9**9) }}",
        "{{ 'a' | center(10**9) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ ('a' * 9999).replace('a', 'b' * 9999) }}",
        "{{ ('a' * 9999) | replace('a', 'b' * 9999) }}",
        "{{ ('b' * 9999999).join(['a'] * 9999) }}",
        "{{ (['a'] * 9999) | join('b' * 9999999) }}",
        "{% for i in range(999) %}{{ 'a' * 999999 }}{% endfor %}",
    ],
)
def test_a_runaway_template_ends(source: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(HI)
    assert time.perf_counter() - begun < 30  # the sandbox's own limit is 10 s


def test_a_template_works_after_a_failure() -> None:
    template = ChatTemplate("{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}ok")
    with pytest.raises(TemplateError):
        template.render(HI + HI)
    assert template.render(HI) == "ok"


def test_a_long_conversation_is_no_runaway() -> None:
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim ~ '\\n' }}{% endfor %}"
    assert len(ChatTemplate(source).render([{"role": "user", "content": "x" * 500}] * 2000)) > 1_000_000


def test_malformed_names_the_line() -> None:
    with pytest.raises(TemplateError, match="malformed in line 2"):
        ChatTemplate("\n{% if %}")


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ missing.attribute }}", "{{ messages | nothing }}"])
def test_a_failing_template_is_an_error(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(HI)


@pytest.mark.parametrize("messages", [[], ["hi"], [{"content": "hi"}], [{"role": 1, "content": "hi"}]])
def test_messages_that_are_none(messages: list[object]) -> None:
    with pytest.raises(GenerationError):
        ChatTemplate("x").render(messages)  # type: ignore[arg-type]


# --- where templates are found -----------------------------------------------------------------------------------------


def configured(directory: Path, template: object) -> Path:
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return directory


def test_a_file_goes_before_the_configuration(tmp_path: Path) -> None:
    configured(tmp_path, "configured")
    (tmp_path / "chat_template.jinja").write_text("file")
    found = find_chat_template(tmp_path)
    assert found is not None and found.render(HI) == "file"
    (tmp_path / "own.jinja").write_text("own")
    found = find_chat_template(tmp_path, str(tmp_path / "own.jinja"))
    assert found is not None and found.render(HI) == "own"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    found = find_chat_template(configured(tmp_path, named))
    assert found is not None and found.render(HI) == "plain"


def test_none(tmp_path: Path) -> None:
    assert find_chat_template(None) is None
    assert find_chat_template(tmp_path) is None
    assert find_chat_template(configured(tmp_path, None)) is None


@pytest.mark.parametrize(
    "template", [5, [], [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}], "{% if %}"]
)
def test_a_configuration_that_cannot_be_used(tmp_path: Path, template: object) -> None:
    with pytest.raises(TemplateError):
        find_chat_template(configured(tmp_path, template))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"correct model\.chat_template"):
        find_chat_template(tmp_path, str(tmp_path / "gone.jinja"))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TemplateError, match="fetch the file again"):
        find_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(TemplateError):
        find_chat_template(tmp_path)
