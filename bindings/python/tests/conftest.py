"""Settings of the tests, and what several of them need."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

try:
    from hypothesis import settings

    settings.register_profile("ci", derandomize=True, deadline=None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
except ImportError:
    pass

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}


@pytest.fixture
def config() -> dict[str, Any]:
    return dict(LLAMA)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in a process of its own."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_"))}
        return subprocess.run(
            [sys.executable, "-m", "ftmem", *arguments], capture_output=True, text=True, encoding="utf-8", cwd=tmp_path,
            env={**clean, "HF_HOME": str(tmp_path / "hf"), "PYTHONIOENCODING": "utf-8", **environment}, timeout=120,
        )

    return run
