"""Every status has its exception, and every exception says field and value."""
from __future__ import annotations

import copy
import pickle

import ftmem
import pytest
from ftmem import _core, _errors
from ftmem._core import lib

BUILTINS = {
    "BadArgument": ValueError, "BadStructSize": RuntimeError, "OutOfRange": ValueError, "TooLarge": OverflowError, "Conflict": ValueError,
    "Unsupported": NotImplementedError, "UnknownName": LookupError, "Missing": ValueError, "WrongType": TypeError,
    "BufferTooSmall": BufferError, "BadSyntax": ValueError, "CannotRead": OSError,
}


@pytest.mark.parametrize("status", range(1, lib.FTMEM_STATUS_END))
def test_each_status_has_a_class(status: int) -> None:
    error = _errors.from_status(status, "a sentence.", "job.x", "7")
    assert type(error) is _errors.BY_STATUS[status]
    assert type(error).status == error.status == status
    assert isinstance(error, ftmem.FtmemError) and isinstance(error, BUILTINS[type(error).__name__])
    assert (str(error), error.field, error.value) == ("a sentence.", "job.x", "7")
    assert _core.text(lib.ftmem_status_name(status)) in (type(error).__doc__ or "")


@pytest.mark.parametrize("status", [-1, lib.FTMEM_STATUS_END, 10_000])
def test_unknown_status(status: int) -> None:
    error = _errors.from_status(status, "what")
    assert type(error) is ftmem.UnknownStatus and error.status == status


def test_every_class_is_public() -> None:
    assert all(getattr(ftmem, c.__name__) is c for c in _errors.BY_STATUS.values())


@pytest.mark.parametrize("make", [pickle.loads, None], ids=["pickle", "copy"])
def test_errors_travel(make: object) -> None:
    error = ftmem.OutOfRange("a sentence.", "job.x", "7")
    again = pickle.loads(pickle.dumps(error)) if make else copy.copy(error)
    assert type(again) is ftmem.OutOfRange and (again.field, again.value, str(again)) == ("job.x", "7", "a sentence.")


def test_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="batch_size") as caught:
        ftmem.predict("7B", batchsize=4)
    assert isinstance(caught.value, ftmem.UnknownName)


def test_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(ftmem.UnknownName, match="rtx-4090") as caught:
        ftmem.predict("7B", gpu="rtx-4091")
    assert caught.value.value == "rtx-4091"


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(LookupError, match="Llama-3.1-8B"):
        ftmem.predict("meta-llama/Llama-3.1-8C")


@pytest.mark.parametrize(
    "keywords, error, part",
    [
        ({"batch_size": -3}, ftmem.OutOfRange, "job.micro_batch"),
        ({"batch_size": 0}, ftmem.OutOfRange, "job.micro_batch"),
        ({"batch_size": "0"}, ftmem.OutOfRange, "job.micro_batch"),
        ({"batch_size": "four"}, ftmem.WrongType, "four"),
        ({"batch_size": 1.5}, ftmem.WrongType, "1.5"),
        ({"batch_size": True}, ftmem.WrongType, "True"),
        ({"batch_size": float("nan")}, ftmem.FtmemError, "job.micro_batch"),
        ({"batch_size": 10**30}, ftmem.FtmemError, "job.micro_batch"),
        ({"batch_size": 2, "micro_batch": 3}, ftmem.Conflict, "micro_batch"),
        ({"rank": 8}, ftmem.Missing, "method"),
        ({"method": "full", "rank": 8}, ftmem.Conflict, "adapter"),
        ({"method": "lore"}, ftmem.UnknownName, "qlora"),
        ({"method": "lora", "rank": 0}, ftmem.OutOfRange, "adapter.rank"),
        ({"method": "lora", "lora_dropout": 1.5}, ftmem.OutOfRange, "adapter.dropout"),
        ({"method": "lora", "target_modules": ["q_porj"]}, ftmem.UnknownName, "q_proj"),
        ({"method": "lora", "target_modules": []}, ftmem.Missing, "adapter.targets"),
        ({"method": "lora", "target_modules": "q,,v"}, ftmem.WrongType, "empty"),
        ({"method": "lora", "target_modules": r".*\.q_proj"}, ftmem.Unsupported, "pattern"),
        ({"method": "lora", "target_modules": ["layers.0.self_attn.q_proj"]}, ftmem.Unsupported, "layer"),
        ({"method": "lora", "target_modules": 1.5}, ftmem.WrongType, "adapter.targets"),
        ({"method": "lora", "use_dora": True, "stack": "litgpt"}, ftmem.Unsupported, "use_dora"),
        ({"method": "lora", "modules_to_save": ["norm"]}, ftmem.Unsupported, "norm"),
        ({"precision": "int4"}, ftmem.UnknownName, "amp_bf16"),
        ({"precision": "fp8"}, ftmem.Unsupported, "fp8"),
        ({"precision": "fp16", "grad_scaler": True}, ftmem.Conflict, "grad_scaler"),
        ({"gradient_checkpointing": "maybe"}, ftmem.UnknownName, "reentrant"),
        ({"bf16": "maybe"}, ftmem.WrongType, "bf16"),
        ({"bf16": True, "fp16": True}, ftmem.Conflict, "autocast"),
        ({"optim": "galore_adamw_8bit"}, ftmem.Unsupported, "galore_adamw_8bit"),
        ({"optim": "galore_adamw", "method": "lora"}, ftmem.Unsupported, "galore_adamw"),
        ({"optim": "adamw_torch", "optimizer_rank": 64}, ftmem.Conflict, "optimizer_rank"),
        ({"optim": "adamz"}, ftmem.UnknownName, "adamw"),
        ({"attn_implementation": "flex_attention"}, ftmem.Unsupported, "flex_attention"),
        ({"tokens": 15_360_000}, ftmem.Unsupported, "tokens"),
        ({"deepspeed": "z3.json"}, ftmem.Unsupported, "deepspeed"),
        ({"gpus": 8}, ftmem.Unsupported, "gpus"),
        ({"gpu": 24}, ftmem.WrongType, "gpu"),
        ({"gpu": ""}, ftmem.FtmemError, "GPU"),
        ({"gpu": "4090\0"}, ftmem.WrongType, "zero"),
        ({"gpu": "auto"}, ftmem.Missing, "auto"),
        ({"freeze": "everything"}, ftmem.UnknownName, "embed"),
        ({"torch_version": "2.100"}, ftmem.OutOfRange, "minor"),
        ({"memory_bytes": "24 parsecs"}, ftmem.WrongType, "memory_bytes"),
    ],
)
def test_bad_keywords(config: dict, keywords: dict, error: type[ftmem.FtmemError], part: str) -> None:
    with pytest.raises(error) as caught:
        ftmem.predict(config, **keywords)
    assert isinstance(caught.value, ftmem.FtmemError)
    assert part in str(caught.value)


def test_does_not_fit_is_no_status(config: dict) -> None:
    prediction = ftmem.predict(config)
    error = ftmem.DoesNotFit("too much.", prediction)
    again = pickle.loads(pickle.dumps(error))
    assert again.prediction.memory == prediction.memory and again.status == 0
