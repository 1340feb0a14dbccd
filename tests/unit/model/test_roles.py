"""What each port means: from configuration, from inference_metadata.yaml, and by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from onnx import TensorProto, helper
from tokenmill.errors import ConfigError, ModelFileError, PortError
from tokenmill.model.beside import BesideFiles
from tokenmill.model.graph import OnnxGraph
from tokenmill.model.loading import decoder_of, load_decoder, open_graph
from tokenmill.model.requirements import check_target
from tokenmill.model.resolving import resolve_roles
from tokenmill.model.roles import IoSpec, PortPair, SharedKvGroup

Shape = Sequence[int | str | None]

INTEGER_INPUTS = ("ids", "mask", "position", "cache_branch", "length")


def graph(inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> OnnxGraph:
    """Ports without arithmetic: each output is a constant. Roles are told by ports alone."""
    nodes = [helper.make_node("Constant", [], [name], value_float=0.0) for name in outputs]

    def kind(name: str) -> int:
        return TensorProto.INT64 if any(word in name.lower() for word in INTEGER_INPUTS) else TensorProto.FLOAT

    made = helper.make_graph(
        nodes,
        "ports",
        [helper.make_tensor_value_info(name, kind(name), shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
    )
    return open_graph(helper.make_model(made, ir_version=8))


IDS: Shape = ("batch", "sequence")
LOGITS: Shape = ("batch", "sequence", 50)
PAST: Shape = ("batch", 2, "past_sequence", 8)
PRESENT: Shape = ("batch", 2, "total_sequence", 8)
CONV: Shape = ("batch", 16, 3)


def decoder_graph(layers: int = 1, **more: Shape) -> OnnxGraph:
    """A usual decoder; `more` are further inputs."""
    keys = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    inputs = {"input_ids": IDS, "attention_mask": IDS, **{f"past_key_values.{key}": PAST for key in keys}, **more}
    return graph(inputs, {"logits": LOGITS, **{f"present.{key}": PRESENT for key in keys}})


def beside(io: object = None, **files: Any) -> BesideFiles:
    inference = {} if io is None else {"model": {"io": io}}
    return BesideFiles(inference=inference, model_filename="model.onnx", **files)


# --- detection by name -----------------------------------------------------------------------------------------------


def test_usual_names_are_detected() -> None:
    io = resolve_roles(decoder_graph(2, position_ids=IDS))
    assert (io.token_input, io.attention_mask_input, io.position_ids_input, io.logits_output) == (
        "input_ids",
        "attention_mask",
        "position_ids",
        "logits",
    )
    assert io.kv_pairs == tuple(
        PortPair(f"past_key_values.{layer}.{part}", f"present.{layer}.{part}")
        for layer in (0, 1)
        for part in ("key", "value")
    )
    assert io.state_pairs == ()
    assert set(io.sources.values()) == {"detected by name"}


def test_names_match_by_suffix_and_without_regard_to_case() -> None:
    found = graph(
        {"model.Decoder_Input_IDs": IDS, "Step.ATTENTION_MASK": IDS, "PAST.0.Key": PAST},
        {"head.Logits": LOGITS, "Present.0.KEY": PRESENT},
    )
    io = resolve_roles(found)
    assert (io.token_input, io.attention_mask_input, io.logits_output) == (
        "model.Decoder_Input_IDs",
        "Step.ATTENTION_MASK",
        "head.Logits",
    )
    assert io.kv_pairs == (PortPair("PAST.0.Key", "Present.0.KEY"),)


def test_a_name_that_merely_contains_a_usual_one_is_routed() -> None:
    found = decoder_graph(1, encoder_attention_mask=IDS, my_position_ids=IDS)
    io = resolve_roles(found)
    assert io.attention_mask_input == "attention_mask"
    assert io.position_ids_input is None


def test_an_exact_name_comes_before_a_suffix() -> None:
    found = graph(
        {"encoder.input_ids": IDS, "input_ids": IDS, "past.0": PAST}, {"logits": LOGITS, "present.0": PRESENT}
    )
    assert resolve_roles(found).token_input == "input_ids"


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.0.key", "present_key_values.0.key"),
        ("past.0.key", "present.0.key"),
        ("past_0", "present_0"),
        ("past_key_0", "present_key_0"),
        ("past_key_values_0_key", "present_0_key"),
        ("past_key_values.0.decoder.key", "present.0.decoder.key"),
        ("model/past.3.value", "model/present.3.value"),
        ("past_key_values", "present_key_values"),
    ],
)
def test_past_and_present_match_by_the_rest_of_their_names(past: str, present: str) -> None:
    io = resolve_roles(graph({"input_ids": IDS, past: PAST}, {"logits": LOGITS, present: PRESENT}))
    assert io.kv_pairs == (PortPair(past, present),)


@pytest.mark.parametrize(
    ("past", "present", "shape"),
    [
        ("past_conv.0", "present_conv.0", CONV),
        ("past.0.conv", "present.0.conv", CONV),
        ("past_key_values.0.conv_state", "present.0.conv_state", CONV),
        ("past_key_values.0.recurrent_state", "present.0.recurrent_state", ("batch", 4, 8, 8)),
        ("past_state.7", "present_state.7", ("batch", 16, 4)),
        ("past_ssm_0", "present_ssm_0", (1, 16, 4)),
        ("past_hidden.0", "present_hidden.0", ("batch", 64)),
    ],
)
def test_a_static_penultimate_axis_makes_a_recurrent_state(past: str, present: str, shape: Shape) -> None:
    found = graph(
        {"input_ids": IDS, "past.9.key": PAST, past: shape},
        {"logits": LOGITS, "present.9.key": PRESENT, present: shape},
    )
    io = resolve_roles(found)
    assert io.state_pairs == (PortPair(past, present, fixed=True),)
    assert io.kv_pairs == (PortPair("past.9.key", "present.9.key"),)
    assert io.sources["state_pairs"] == "detected by name"


def test_a_transposed_key_cache_grows_although_its_penultimate_axis_is_static() -> None:
    past, present = ("batch", 2, 8, "past_sequence"), ("batch", 2, 8, "total_sequence")
    io = resolve_roles(graph({"input_ids": IDS, "past.0.key": past}, {"logits": LOGITS, "present.0.key": present}))
    assert io.kv_pairs == (PortPair("past.0.key", "present.0.key"),)


def test_a_merged_decoder_keeps_its_branch_and_encoder_ports_routed() -> None:
    inputs = {"input_ids": IDS, "use_cache_branch": (1,), "past_sequence_length": (1,)}
    outputs = {"logits": LOGITS}
    for part in ("decoder.key", "decoder.value", "encoder.key", "encoder.value"):
        inputs[f"past_key_values.0.{part}"] = PAST
        outputs[f"present.0.{part}"] = PRESENT
    io = resolve_roles(graph(inputs, outputs))
    assert io.kv_pairs == (
        PortPair("past_key_values.0.decoder.key", "present.0.decoder.key"),
        PortPair("past_key_values.0.decoder.value", "present.0.decoder.value"),
    )
    roles = {io.token_input, io.attention_mask_input, io.position_ids_input, *(pair.past for pair in io.pairs)}
    assert not roles & {"use_cache_branch", "past_sequence_length", "past_key_values.0.encoder.key"}


def test_only_a_proposers_projected_state_is_detected() -> None:
    found = graph({"input_ids": IDS}, {"logits": LOGITS, "projected_state": LOGITS})
    assert resolve_roles(found, role="proposer").hidden_output == "projected_state"
    assert resolve_roles(found, role="target").hidden_output is None
    declared = resolve_roles(found, explicit={"hidden_output": "projected_state"})
    assert declared.hidden_output == "projected_state"


# --- declared --------------------------------------------------------------------------------------------------------


def test_sources_rank_configuration_then_yaml_then_names() -> None:
    found = graph(
        {"input_ids": IDS, "tokens_a_ids": IDS, "tokens_b_ids": IDS, "where_ids": IDS, "past.0": PAST},
        {"logits": LOGITS, "scores": LOGITS, "present.0": PRESENT},
    )
    stated = beside(
        {
            "token_input": "tokens_a_ids",
            "logits_output": "scores",
            "kv_inputs": ["past.0"],
            "kv_outputs": ["present.0"],
        }
    )
    io = resolve_roles(found, stated, explicit={"token_input": "tokens_b_ids", "position_ids_input": "where_ids"})
    assert (io.token_input, io.logits_output, io.position_ids_input) == ("tokens_b_ids", "scores", "where_ids")
    assert io.sources == {
        "token_input": "configuration",
        "position_ids_input": "configuration",
        "logits_output": "inference_metadata.yaml",
        "kv_pairs": "inference_metadata.yaml",
    }


def test_declared_lists_pair_by_position_whatever_the_names() -> None:
    found = graph({"input_ids": IDS, "a": PAST, "b": PAST}, {"logits": LOGITS, "x": PRESENT, "y": PRESENT})
    io = resolve_roles(found, explicit={"kv_inputs": ["a", "b"], "kv_outputs": ["y", "x"]})
    assert io.kv_pairs == (PortPair("a", "y"), PortPair("b", "x"))


def test_a_recurrent_state_listed_as_kv_is_kept_as_a_state() -> None:
    found = graph({"input_ids": IDS, "a": PAST, "c": CONV}, {"logits": LOGITS, "x": PRESENT, "z": CONV})
    io = resolve_roles(found, explicit={"kv_inputs": ["c", "a"], "kv_outputs": ["z", "x"]})
    assert io.kv_pairs == (PortPair("a", "x"),)
    assert io.state_pairs == (PortPair("c", "z", fixed=True),)


def test_declared_state_pairs_join_detected_kv() -> None:
    found = graph(
        {"input_ids": IDS, "past.0.key": PAST, "memory": CONV},
        {"logits": LOGITS, "present.0.key": PRESENT, "next": CONV},
    )
    io = resolve_roles(found, explicit={"state_pairs": [{"input": "memory", "output": "next"}]})
    assert io.pairs == (PortPair("past.0.key", "present.0.key"), PortPair("memory", "next", fixed=True))
    assert io.sources["state_pairs"] == "configuration"


def test_embeddings_as_sequence_source_leave_undeclared_token_ids_routed() -> None:
    found = decoder_graph(1, inputs_embeds=("batch", "sequence", 16))
    tokens = resolve_roles(found)
    assert (tokens.sequence_source, tokens.sequence_input, tokens.inputs_embeds_input) == (
        "token_ids",
        "input_ids",
        None,
    )
    embeds = resolve_roles(found, explicit={"sequence_source": "inputs_embeds"})
    assert (embeds.sequence_input, embeds.token_input) == ("inputs_embeds", None)
    both = resolve_roles(found, explicit={"sequence_source": "inputs_embeds", "token_input": "input_ids"})
    assert (both.sequence_input, both.token_input) == ("inputs_embeds", "input_ids")


def test_a_graph_with_embeddings_alone_is_fed_embeddings() -> None:
    found = graph(
        {"inputs_embeds": ("batch", "sequence", 16), "past.0": PAST}, {"logits": LOGITS, "present.0": PRESENT}
    )
    io = resolve_roles(found)
    assert (io.sequence_source, io.sequence_input) == ("inputs_embeds", "inputs_embeds")


def test_a_whole_spec_without_lists_names_no_pairs() -> None:
    stated = beside({"token_input": "input_ids", "logits_output": "logits"})
    assert resolve_roles(decoder_graph(), stated).pairs == ()
    assert resolve_roles(decoder_graph(), stated, role="proposer").pairs == ()
    with pytest.raises(PortError, match="no past/present pairs"):
        decoder_of(decoder_graph(), beside=stated)
    proposer = decoder_of(decoder_graph(), beside=stated, role="proposer")
    assert proposer.io.logits_output == "logits"


def test_one_overridden_role_of_a_target_leaves_its_pairs_detected() -> None:
    found = decoder_graph()
    assert len(resolve_roles(found, explicit={"logits_output": "logits"}).kv_pairs) == 2
    assert resolve_roles(found, explicit={"logits_output": "logits"}, role="proposer").kv_pairs == ()
    assert len(resolve_roles(found, role="proposer").kv_pairs) == 2


SHARED = {
    "kv_ownership": "shared",
    "shared_kv": [
        {
            "name": "full",
            "target_key_input": "target.past.0.key",
            "target_value_input": "target.past.0.value",
            "key_input": "past_key_values.0.key",
            "value_input": "past_key_values.0.value",
        }
    ],
}


def test_a_borrowing_proposer_has_groups_and_no_pairs() -> None:
    io = decoder_of(decoder_graph(), io=SHARED, role="proposer").io
    assert (io.kv_ownership, io.pairs) == ("shared", ())
    assert io.shared_kv == (
        SharedKvGroup(
            "full",
            "target.past.0.key",
            "target.past.0.value",
            "past_key_values.0.key",
            "past_key_values.0.value",
        ),
    )


def test_a_group_may_lack_fields_until_it_is_lent() -> None:
    io = resolve_roles(
        decoder_graph(), explicit={"kv_ownership": "shared", "shared_kv": [{"name": "g"}]}, role="proposer"
    )
    assert io.shared_kv == (SharedKvGroup("g"),)


# --- refusals --------------------------------------------------------------------------------------------------------

WRONG_PORTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown input": ({"token_input": "tokens"}, r"io\.token_input names the input 'tokens', which the graph lacks"),
    "unknown output": ({"logits_output": "scores"}, r"io\.logits_output names the output 'scores'"),
    "an output as input": ({"attention_mask_input": "logits"}, "names the input 'logits'"),
    "an input as output": ({"hidden_output": "input_ids"}, "names the output 'input_ids'"),
    "unknown past": ({"kv_inputs": ["p"], "kv_outputs": ["present.0.key"]}, r"io\.kv_inputs names the input 'p'"),
    "unknown present": ({"kv_inputs": ["past_key_values.0.key"], "kv_outputs": ["p"]}, "names the output 'p'"),
    "unknown state": ({"state_pairs": [{"input": "s", "output": "logits"}]}, r"io\.state_pairs names the input 's'"),
    "names differ in case": ({"token_input": "INPUT_IDS"}, "names the input 'INPUT_IDS'"),
}


@pytest.mark.parametrize("case", WRONG_PORTS)
def test_a_declared_port_that_the_graph_lacks_is_refused_with_the_graphs_ports(case: str) -> None:
    declared, expected = WRONG_PORTS[case]
    for given in ({"explicit": declared}, {"beside": beside(declared)}):
        with pytest.raises(PortError, match=expected) as refused:
            resolve_roles(decoder_graph(), **given)  # type: ignore[arg-type]
        assert "input_ids: int64[batch, sequence]" in str(refused.value)
        assert "present.0.value: float[batch, 2, total_sequence, 8]" in str(refused.value)


WRONG_LISTS: dict[str, tuple[dict[str, Any], str]] = {
    "unequal": (
        {"kv_inputs": ["past_key_values.0.key", "past_key_values.0.value"], "kv_outputs": ["present.0.key"]},
        r"kv_inputs has 2 entries, io\.kv_outputs 1 entries.*'past_key_values.0.value'.*\['present.0.key'\]",
    ),
    "inputs alone": ({"kv_inputs": ["past_key_values.0.key"]}, r"1 entries, io\.kv_outputs no list"),
    "outputs alone": ({"kv_outputs": ["present.0.key"]}, "kv_inputs has no list"),
    "one past twice": (
        {"kv_inputs": ["past_key_values.0.key"] * 2, "kv_outputs": ["present.0.key", "present.0.value"]},
        "'past_key_values.0.key' has two roles",
    ),
    "one present twice": (
        {
            "kv_inputs": ["past_key_values.0.key", "past_key_values.0.value"],
            "kv_outputs": ["present.0.key", "present.0.key"],
        },
        "'present.0.key' has two roles",
    ),
    "sequence input as KV": (
        {"kv_inputs": ["input_ids"], "kv_outputs": ["present.0.key"]},
        "'input_ids' is listed as KV, but it is the sequence input: it carries the token ids",
    ),
    "mask as KV": (
        {"kv_inputs": ["attention_mask"], "kv_outputs": ["present.0.key"]},
        "'attention_mask' has two roles: attention_mask_input and past of present.0.key",
    ),
    "logits as present": (
        {"kv_inputs": ["past_key_values.0.key"], "kv_outputs": ["logits"]},
        "'logits' has two roles: logits_output and present of past_key_values.0.key",
    ),
    "mask as positions": ({"position_ids_input": "attention_mask"}, "'attention_mask' has two roles"),
    "logits as hidden": ({"hidden_output": "logits"}, "'logits' has two roles: logits_output and hidden_output"),
}


@pytest.mark.parametrize("case", WRONG_LISTS)
def test_lists_that_do_not_pair_and_ports_of_two_roles_are_refused(case: str) -> None:
    declared, expected = WRONG_LISTS[case]
    with pytest.raises(PortError, match=expected):
        resolve_roles(decoder_graph(), explicit=declared)


WRONG_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"kv_input": ["a"]}, r"model\.io\.kv_input' is no role.*did you mean 'kv_inputs'"),
    "a list for a name": ({"token_input": ["input_ids"]}, r"model\.io\.token_input' is \['input_ids'\]"),
    "empty name": ({"token_input": ""}, r"token_input' is '': it must be a non-empty text"),
    "a name for a list": ({"kv_inputs": "past", "kv_outputs": "present"}, r"kv_inputs' is 'past': .* list of names"),
    "a number in a list": ({"kv_inputs": [1], "kv_outputs": ["p"]}, "list of names"),
    "unknown source": ({"sequence_source": "audio"}, "'audio': it must be 'token_ids' or 'inputs_embeds'"),
    "unknown ownership": ({"kv_ownership": "rented"}, "'rented': it must be 'owned' or 'shared'"),
    "half a state pair": ({"state_pairs": [{"input": "a"}]}, r"state_pairs\[0\]' is .*'input' and 'output'"),
    "states not a list": ({"state_pairs": {"input": "a", "output": "b"}}, "state_pairs' is .* list of mappings"),
    "a nameless group": ({"shared_kv": [{"key_input": "a"}]}, r"shared_kv\[0\]' is .* a 'name'"),
    "an unknown group field": ({"shared_kv": [{"name": "g", "keys": "a"}]}, r"shared_kv\[0\]\.keys'"),
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_a_declaration_of_the_wrong_type_names_its_key(case: str) -> None:
    declared, expected = WRONG_VALUES[case]
    with pytest.raises(ConfigError, match=expected):
        resolve_roles(decoder_graph(), explicit=declared)
    with pytest.raises(ModelFileError, match=r"inference_metadata\.yaml: .*" + expected):
        resolve_roles(decoder_graph(), beside(declared))


def test_an_unrelated_key_of_the_yaml_is_passed_over_and_one_of_the_configuration_refused() -> None:
    with pytest.raises(ConfigError, match="no role"):
        resolve_roles(decoder_graph(), explicit={"vision_tower": "x"})
    resolve_roles(decoder_graph(), beside({"vision_tower": "x"}))


UNMATCHED: dict[str, tuple[dict[str, Shape], dict[str, Shape], str]] = {
    "present without past": (
        {},
        {"present.0.key": PRESENT},
        r"no counterpart is found for \['present\.0\.key'\]: past inputs: \[\], present outputs: \['present\.0\.key'\]",
    ),
    "past without present": ({"past.0.key": PAST}, {}, r"for \['past\.0\.key'\]"),
    "other layers": ({"past.0.key": PAST}, {"present.1.key": PRESENT}, r"\['past\.0\.key', 'present\.1\.key'\]"),
    "incomplete": (
        {"past.0.key": PAST, "past.0.value": PAST},
        {"present.0.key": PRESENT},
        r"no counterpart is found for \['past\.0\.value'\]",
    ),
    "ambiguous": (
        {"past.0.key": PAST, "past_key_values.0.key": PAST},
        {"present.0.key": PRESENT},
        "both look like the past",
    ),
}


@pytest.mark.parametrize("case", UNMATCHED)
def test_detected_pasts_and_presents_must_match(case: str) -> None:
    pasts, presents, expected = UNMATCHED[case]
    with pytest.raises(PortError, match=expected):
        resolve_roles(graph({"input_ids": IDS, **pasts}, {"logits": LOGITS, **presents}))


def test_a_graph_without_a_sequence_input_is_refused() -> None:
    found = graph({"tokens": IDS, "past.0": PAST}, {"logits": LOGITS, "present.0": PRESENT})
    with pytest.raises(PortError, match=r"no input_ids: .*tokens: float\[batch, sequence\].*declare io\.token_input"):
        resolve_roles(found)
    with pytest.raises(PortError, match="no inputs_embeds"):
        resolve_roles(decoder_graph(), explicit={"sequence_source": "inputs_embeds"})


def test_a_target_must_own_its_kv() -> None:
    with pytest.raises(PortError, match=r"declares kv_ownership 'shared': a target owns its KV.*inputs .*input_ids"):
        decoder_of(decoder_graph(), io={"kv_ownership": "shared"})


def test_a_target_needs_pairs_and_logits() -> None:
    with pytest.raises(PortError, match=r"no past/present pairs.*export a decoder with past"):
        decoder_of(graph({"input_ids": IDS}, {"logits": LOGITS}))
    with pytest.raises(PortError, match="has no logits"):
        decoder_of(graph({"input_ids": IDS, "past.0": PAST}, {"scores": LOGITS, "present.0": PRESENT}))
    with pytest.raises(PortError, match="no past/present pairs"):
        check_target(IoSpec(logits_output="logits", token_input="input_ids"))


def test_a_target_may_have_states_alone() -> None:
    found = graph({"input_ids": IDS, "past_conv.0": CONV}, {"logits": LOGITS, "present_conv.0": CONV})
    assert decoder_of(found).io.pairs == (PortPair("past_conv.0", "present_conv.0", fixed=True),)


def test_a_proposer_needs_logits_or_a_projected_state() -> None:
    assert decoder_of(graph({"input_ids": IDS}, {"projected_state": LOGITS}), role="proposer").io.logits_output is None
    with pytest.raises(PortError, match="neither logits nor a projected state"):
        decoder_of(graph({"input_ids": IDS}, {"scores": LOGITS}), role="proposer")


def test_a_borrower_gives_no_present() -> None:
    declared = {**SHARED, "kv_outputs": ["present.0.key"]}
    with pytest.raises(PortError, match=r"kv_outputs names .*present.0.key.* but io.kv_ownership is 'shared'"):
        resolve_roles(decoder_graph(), explicit=declared, role="proposer")


def test_a_group_names_ports_of_its_own_graph() -> None:
    with pytest.raises(PortError, match="shared_kv 'g' key_input names the input 'gone'"):
        resolve_roles(
            decoder_graph(),
            explicit={"kv_ownership": "shared", "shared_kv": [{"name": "g", "key_input": "gone"}]},
            role="proposer",
        )
    with pytest.raises(PortError, match="shared_kv 'g' target_value_input names the input 'gone'"):
        resolve_roles(decoder_graph(), explicit={"shared_kv": [{"name": "g", "target_value_input": "gone"}]})


# --- from a directory ------------------------------------------------------------------------------------------------


def test_a_yaml_beside_the_model_is_read(tmp_path: Path) -> None:
    import onnx_ir

    found = graph({"words_ids": IDS, "a": PAST}, {"scores": LOGITS, "b": PRESENT})
    onnx_ir.save(found.model, tmp_path / "model.onnx")
    roles = {"token_input": "words_ids", "logits_output": "scores", "kv_inputs": ["a"], "kv_outputs": ["b"]}
    (tmp_path / "inference_metadata.yaml").write_text(yaml.safe_dump({"model": {"io": roles, "context_length": 64}}))
    for path in (tmp_path, tmp_path / "model.onnx"):
        decoder = load_decoder(path)
        assert decoder.io.kv_pairs == (PortPair("a", "b"),)
        assert decoder.metadata.context_length == 64
        assert decoder.directory == tmp_path
    (tmp_path / "inference_metadata.yaml").write_text("model: [unclosed")
    with pytest.raises(ModelFileError, match=r"inference_metadata\.yaml' is not valid YAML: .*line 1"):
        load_decoder(tmp_path)
