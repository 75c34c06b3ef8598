"""What compiled blocks keep, against the partitioner of torch 2.13 itself: saved tensors of the second of three blocks under
torch.compile(backend="aot_eager_decomp_partition"), transformers 5.24, peft 0.21.2, bf16, sdpa, 2 x 64 tokens (2026-12-01)."""
from typing import Any

import ftmem
import pytest

SIZES = {"hidden_size": 128, "intermediate_size": 448, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 1000}
SEEDS = 1024  # flash attention on CUDA also keeps a seed and an offset, 512 bytes each; the CPU's has none
COMMON = {"dtype": "bf16", "micro_batch": 2, "sequence": 64, "sm_arch": 80, "repeat_kv": False, "compile": ["blocks"]}
LORA = {"method": "lora", "rank": 8, "adapter_dtype": "bf16"}


@pytest.mark.parametrize("family, more, keywords, kept", [
    ("llama", {}, {}, 576512),
    ("qwen2", {}, {}, 576512),
    ("qwen3", {"head_dim": 32}, {}, 628736),
    ("olmo2", {}, {}, 626688),
    ("mistral", {}, {}, 576512),
    ("granite", {}, {}, 576512),
    ("llama", {}, {**LORA, "targets": ["q", "v"]}, 433152),
    ("llama", {}, {**LORA, "targets": "all-linear"}, 590848),
])
def test_kept_by_a_compiled_block(family: str, more: dict[str, Any], keywords: dict[str, Any], kept: int) -> None:
    prediction = ftmem.predict({"model_type": family, **SIZES, **more}, **COMMON, **keywords)
    assert prediction.memory.kept_layer == kept + SEEDS


@pytest.mark.parametrize("family, keywords", [
    ("gpt2", {}), ("phi3", {}), ("gemma2", {}),                         # other norms, MLPs
    ("llama", {"autocast": "bf16", "dtype": "fp32"}), ("llama", {"attention": "eager"}),
    ("llama", {**LORA, "adapter_dtype": "fp32"}),                       # casts of several adapters become one
    ("llama", {"compile": ["loss"]}),                                   # torchtune's alone
])
def test_not_modelled(family: str, keywords: dict[str, Any]) -> None:
    with pytest.raises(ftmem.Unsupported, match="compile"):
        ftmem.predict({"model_type": family}, **{**COMMON, **keywords})
