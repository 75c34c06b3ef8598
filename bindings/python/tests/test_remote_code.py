"""Models whose code is not in transformers: counts by hand arithmetic, written out beside each.

h hidden, f MLP width, V vocabulary, L blocks; a gated MLP has 3 h f, four square projections 4 h^2, a block two norms.
"""
from __future__ import annotations

from typing import Any

import ftmem
import pytest

QWEN = dict(model_type="qwen", hidden_size=2048, intermediate_size=11008, num_hidden_layers=24, num_attention_heads=16, kv_channels=128,
            vocab_size=151936, no_bias=True, tie_word_embeddings=False)
BAICHUAN = dict(model_type="baichuan", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
                vocab_size=125696, max_position_embeddings=4096, tie_word_embeddings=False)
CHATGLM = dict(model_type="chatglm", hidden_size=4096, ffn_hidden_size=13696, num_layers=28, num_attention_heads=32, kv_channels=128,
               multi_query_attention=True, multi_query_group_num=2, padded_vocab_size=65024, add_qkv_bias=True, tie_word_embeddings=False)
INTERNLM = dict(model_type="internlm", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, bias=True,
                vocab_size=103168, tie_word_embeddings=False)
INTERNLM2 = dict(model_type="internlm2", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                 num_key_value_heads=8, bias=False, vocab_size=92544, tie_word_embeddings=False)
ORION = dict(model_type="orion", hidden_size=5120, intermediate_size=15360, num_hidden_layers=40, num_attention_heads=40,
             num_key_value_heads=40, vocab_size=84608, tie_word_embeddings=False)
MINICPM = dict(model_type="minicpm", hidden_size=2304, intermediate_size=5760, num_hidden_layers=40, num_attention_heads=36,
               num_key_value_heads=36, vocab_size=122753, tie_word_embeddings=True)
PHI_MSFT = dict(model_type="phi-msft", n_embd=2048, n_inner=None, n_layer=24, n_head=32, n_head_kv=None, n_positions=2048, rotary_dim=32,
                activation_function="gelu_new", vocab_size=51200, tie_word_embeddings=False)

MIMO = dict(model_type="mimo", hidden_size=4096, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
            vocab_size=151680, num_nextn_predict_layers=1, tie_word_embeddings=False)

PHI3_V = dict(model_type="phi3_v", hidden_size=3072, intermediate_size=8192, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
              vocab_size=32064, max_position_embeddings=131072, tie_word_embeddings=False,
              img_processor={"name": "clip_vision_model", "image_dim_out": 1024, "num_img_tokens": 144})

NAS = dict(model_type="nemotron-nas", hidden_size=4096, num_hidden_layers=4, num_attention_heads=32, vocab_size=32000, tie_word_embeddings=False,
           block_configs=[{"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 5.25}},
                          {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 1.0}},
                          {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 2.625}},
                          {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 5.25}}])

CASES = [
    # biases of q, k, v; f = 11008 / 2
    pytest.param(QWEN, 2 * 151936 * 2048 + 24 * (4 * 2048**2 + 3 * 2048 + 3 * 2048 * 5504 + 2 * 2048) + 2048, id="qwen"),
    pytest.param(BAICHUAN, 2 * 125696 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096, id="baichuan"),
    # q, k, v: 4096 + 2 groups x 128 x 2 = 4608 wide, with bias
    pytest.param(CHATGLM, 2 * 65024 * 4096 + 28 * (4608 * 4097 + 4096**2 + 3 * 4096 * 13696 + 2 * 4096) + 4096, id="chatglm"),
    pytest.param(INTERNLM, 2 * 103168 * 4096 + 32 * (4 * 4096 * 4097 + 3 * 4096 * 11008 + 2 * 4096) + 4096, id="internlm"),
    pytest.param(INTERNLM2, 2 * 92544 * 4096 + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 4096, id="internlm2"),
    # LayerNorm has a bias
    pytest.param(ORION, 2 * 84608 * 5120 + 40 * (4 * 5120**2 + 3 * 5120 * 15360 + 4 * 5120) + 2 * 5120, id="orion"),
    pytest.param(MINICPM, 122753 * 2304 + 40 * (4 * 2304**2 + 3 * 2304 * 5760 + 2 * 2304) + 2304, id="minicpm"),
    # eight MLPs and a gate instead of one MLP
    pytest.param(MINICPM | {"num_experts": 8, "num_experts_per_tok": 2},
                 122753 * 2304 + 40 * (4 * 2304**2 + 8 * (3 * 2304 * 5760 + 2304) + 2 * 2304) + 2304, id="minicpm-moe"),
    # biases of q, k, v; one block more for multi-token prediction, with three norms and a linear of 2 h x h: the checkpoint's 7 833 409 536
    pytest.param(MIMO, 2 * 151680 * 4096 + 37 * (2 * 4096**2 + 2 * 4096 * 1024 + 4096 + 2 * 1024 + 3 * 4096 * 11008 + 2 * 4096) + 3 * 4096 + 2 * 4096**2
                 + 4096, id="mimo"),
    # widths: two thirds of mult x h, up to a multiple of 256: 14336, 2816, 7168, 14336; two blocks have attention, with 4 key heads, and its norm
    pytest.param(NAS, 2 * 32000 * 4096 + 2 * (2 * 4096**2 + 2 * 4096 * 512 + 4096) + 3 * 4096 * (14336 + 2816 + 7168 + 14336) + 4 * 4096 + 4096,
                 id="nemotron-nas"),
    # Phi-3-mini's 3 821 079 552, CLIP-L/14-336's 303 507 456, two separators, two linears: the published 4 146 621 440
    pytest.param(PHI3_V, 3821079552 + 303507456 + 2 * 4096 + (4096 + 1) * 3072 + (3072 + 1) * 3072, id="phi3_v"),
    # every linear has a bias, the head too; one LayerNorm a block
    pytest.param(PHI_MSFT, 2 * 51200 * 2048 + 51200 + 24 * (4 * 2048 * 2049 + 8192 * 2049 + 2048 * 8193 + 2 * 2048) + 2 * 2048, id="phi-msft"),
]


@pytest.mark.parametrize("config, count", CASES)
def test_parameters(config: dict[str, Any], count: int) -> None:
    assert ftmem.predict(config).parameters == count


def test_idle_blocks_have_weights_alone() -> None:
    """Multi-token prediction of MiMo is not run: full fine-tuning has no gradients or states for it, LoRA no more than A and B."""
    plain, idle = (ftmem.predict(MIMO | {"num_nextn_predict_layers": n}, seq_len=128) for n in (None, 1))
    count = idle.parameters - plain.parameters
    assert idle.memory.resident - plain.memory.resident == 2 * count
    assert idle.memory.phases["optimizer2"].allocated - plain.memory.phases["optimizer2"].allocated == 2 * count
    with pytest.raises(ftmem.Unsupported, match="layers_first"):
        ftmem.predict(MIMO, **{"method": "lora", "adapter.layers_first": 2})


@pytest.mark.parametrize("config", [QWEN, CHATGLM, BAICHUAN])
def test_says_that_the_code_is_elsewhere(config: dict[str, Any]) -> None:
    assert any("not part of transformers" in str(note) for note in ftmem.predict(config).notes)


@pytest.mark.parametrize("change, key", [
    (QWEN | {"no_bias": False}, "no_bias"),
    (CHATGLM | {"multi_query_attention": False}, "multi_query_attention"),
    ({k: v for k, v in BAICHUAN.items() if k != "max_position_embeddings"}, "max_position_embeddings"),
    (ORION | {"num_experts": 8}, "num_experts"),
])
def test_refused_by_name(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ftmem.Unsupported, match=key):
        ftmem.predict(change)


def test_gate_of_minicpm_moe_is_a_linear() -> None:
    """all-linear: q, k, v, o, the gate, and gate, up and down of each of eight experts."""
    h, f, r = 2304, 5760, 8
    p = ftmem.predict(MINICPM | {"num_experts": 8, "num_experts_per_tok": 2}, method="lora", target_modules="all-linear", rank=r, seq_len=128)
    assert p.trainable == 40 * r * (4 * 2 * h + (h + 8) + 8 * 3 * (h + f))


def test_all_linear_of_phi3_v() -> None:
    """Four linears of each text block, six of each block of the tower, two of the projector."""
    p = ftmem.predict(PHI3_V, method="lora", target_modules="all-linear", rank=8, seq_len=128)
    text = 32 * (3072 + 9216 + 2 * 3072 + 3072 + 16384 + 8192 + 3072)
    tower = 24 * (4 * 2 * 1024 + 2 * (1024 + 4096))
    assert p.trainable == 8 * (text + tower + 4096 + 3072 + 2 * 3072)


def test_images_of_phi3_v_are_refused() -> None:
    with pytest.raises(ftmem.Unsupported, match="images"):
        ftmem.predict(PHI3_V, seq_len=128, images=1)


@pytest.mark.parametrize("settings, phases", [
    (dict(batch_size=2, seq_len=512), dict(forward=2289277952, loss=2551439872, backward=3276146688, optimizer=8143807488, forward2=5548497920)),
    (dict(batch_size=2, seq_len=512, gradient_checkpointing=True), dict(forward=1766802432, loss=2028964352, optimizer=8143807488, forward2=5026022400)),
])
def test_blocks_of_different_widths(settings: dict[str, Any], phases: dict[str, int]) -> None:
    """Torch 2.13's accounting of transformers 5.24's LlamaModel whose MLPs have NAS's widths, and whose second and fourth block have no attention."""
    found = ftmem.predict(NAS, loss="dropped", **settings).to_dict()["memory"]["phases"]
    assert {name: found[name]["allocated"] for name in phases} == phases


def test_a_linear_in_place_of_attention_is_refused() -> None:
    blocks = [dict(b, attention=dict(b["attention"], replace_with_linear=True)) for b in NAS["block_configs"]]
    with pytest.raises(ftmem.Unsupported, match="replace_with_linear"):
        ftmem.predict(NAS | {"block_configs": blocks}, seq_len=128)
