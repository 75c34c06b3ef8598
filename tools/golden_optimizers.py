#!/usr/bin/env python3
"""What optimizers keep for tensors, and what their step needs besides, by torch's own accounting: tests/vectors/optimizers.csv.

    tools/golden_optimizers.py [DIR ...]      DIR: where packages are unpacked that are not installed

Each optimizer's own class steps over tensors on the device "meta", whose storages have a size and no memory. A dispatch mode sees each
storage appear and die, rounded up to 512 bytes as CUDA's allocator counts. Columns: states (kept after the step), first and later (the
highest moment of the first and of a later step above what is there at its end; empty: not comparable). Kernels of bitsandbytes and
torch's fused kernels work in place and are not run; managed memory is stood in for by the CPU's; shared tables of codes are left out.
"""
import csv
import importlib
import importlib.metadata
import pathlib
import sys
import weakref

sys.path += sys.argv[1:]
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors" / "optimizers.csv"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SHAPES = ("4096x1024", "1024x4096", "4096", "1000", "5000", "48x64", "4096x1024 4096x1024", "2048x1024 4096x1024 1024 512x2048", "32000x512 512x512 512x512 512")
LOW_RANK = {"update_proj_gap": 1, "proj_type": "std", "rank": 128}


def up(n):
    return -(-n // 512) * 512


class Count(TorchDispatchMode):
    """Bytes of live storages on "meta", and the most there ever was."""
    def __init__(self):
        super().__init__()
        self.live, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_iter(out):
            if isinstance(t, torch.Tensor) and t.device.type == "meta":
                self.see(t.untyped_storage())
        return out

    def see(self, storage):
        key, n = storage._cdata, up(storage.nbytes())
        if key in self.live or not n:
            return

        def gone(_):
            self.live.pop(key)
            self.now -= n
        self.live[key] = weakref.ref(storage, gone)
        self.now += n
        self.peak = max(self.peak, self.now)


def tensors_of(value):
    """Plain tensors inside a state: of dictionaries, objects (GaLore's projector) and tensor subclasses (torchao)."""
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            return [t for name in value.__tensor_flatten__()[0] for t in tensors_of(getattr(value, name))]
        return [value]
    if isinstance(value, dict):
        return [t for k, v in value.items() if k not in ("qmap1", "qmap2") for t in tensors_of(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_of(v)]
    return tensors_of(vars(value)) if hasattr(value, "__dict__") and not callable(value) else []


def kept(optimizers):
    stores = {}
    for o in optimizers:
        for t in tensors_of(dict(enumerate(o.state.values()))):
            if t.device.type == "meta":
                stores[t.untyped_storage()._cdata] = up(t.untyped_storage().nbytes())
    return sum(stores.values())


def measure(make, shapes, dtype, steps):
    with Count() as c:
        params = [torch.nn.Parameter(torch.empty(s, dtype=dtype, device="meta")) for s in shapes]
        optimizers, over = make(params), []
        for _ in range(steps):
            for p in params:
                p.grad = torch.empty_like(p)
            c.peak = c.now
            for o in optimizers:
                o.step()
            over.append(c.peak - c.now)
            for p in params:
                p.grad = None
        return kept(optimizers), over[0], over[-1]


def stand_ins():
    """Numbers asked of tensors without contents, clocks, and kernels that need a GPU."""
    item, to = torch.Tensor.item, torch.Tensor.to
    torch.Tensor.item = lambda t: 1.0 if t.device.type == "meta" else item(t)
    torch.Tensor.__float__ = lambda t: float(t.item())
    torch.Tensor.__bool__ = lambda t: bool(t.item())
    away = lambda a, k: (a and a[0] == "cpu") or k.get("device") == "cpu"
    torch.Tensor.to = lambda t, *a, **k: torch.empty_like(t, device="cpu") if t.device.type == "meta" and away(a, k) else to(t, *a, **k)
    torch.cuda.synchronize = lambda *a: None
    torch.compile = lambda f, **k: f
    from bitsandbytes import functional
    from bitsandbytes.optim import ademamix, optimizer

    def paged(*shape, dtype, device):
        t = torch.empty(1, dtype=dtype)
        t.is_paged = True
        return t
    optimizer.sync_gpu = lambda *a: None
    for module in (optimizer, ademamix):
        module.F = functional
    functional.get_paged, functional.fill, functional.prefetch_tensor = paged, lambda *a, **k: None, lambda *a: None
    functional.optimizer_update_32bit = functional.optimizer_update_8bit_blockwise = lambda *a, **k: None


def alone(cls, **options):
    def make(params):
        o = cls(params, **options)
        if type(o).__module__.startswith("schedulefree"):
            o.train()
        return [o]
    return make


def split(matrices, others):
    """Matrices to one optimizer or group, the rest to another, which steps first."""
    def make(params):
        m, v = [p for p in params if p.dim() == 2], [p for p in params if p.dim() != 2]
        return ([matrices(m)] if m else []) + ([others(v)] if v else [])
    return make


def grouped(cls, fixed, **options):
    def make(params):
        m, v = [p for p in params if p.dim() == 2], [p for p in params if p.dim() != 2]
        groups = [{"params": v}] * bool(v) + [{"params": m, **LOW_RANK, **options}] * bool(m)
        return [cls(groups, lr=1e-3, **fixed)]
    return make


def torch_rows():
    o = torch.optim
    for name in ("adam", "adagrad", "rmsprop"):
        importlib.import_module("torch.optim." + name)._get_value = lambda x: 2.0 if isinstance(x, torch.Tensor) else x
    yield "adamw", "torch", alone(o.AdamW, foreach=True), {}
    yield "adamw_loop", "torch", alone(o.AdamW, foreach=False), {}
    yield "sgd", "torch", alone(o.SGD, foreach=True), {}
    yield "sgd_momentum", "torch", alone(o.SGD, foreach=True, momentum=0.9), {}
    yield "adagrad", "torch", alone(o.Adagrad, foreach=True), {"first": False}   # its states are made with the optimizer
    yield "rmsprop", "torch", alone(o.RMSprop, foreach=True), {}
    yield "muon", "torch", split(lambda p: o.Muon(p), lambda p: o.AdamW(p, foreach=True)), {"first": False}


def transformers_rows():
    from transformers.optimization import Adafactor
    options = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
    yield "adafactor", "transformers", alone(Adafactor, **options), {}
    yield "adafactor_momentum", "transformers", alone(Adafactor, beta1=0.9, **options), {}


def bitsandbytes_rows():
    from bitsandbytes import optim as o
    classes = {"adamw_8bit": o.AdamW8bit, "paged_adamw_8bit": o.PagedAdamW8bit, "adamw_32bit": o.AdamW32bit, "paged_adamw_32bit": o.PagedAdamW32bit,
               "ademamix": o.AdEMAMix, "ademamix_8bit": o.AdEMAMix8bit, "paged_ademamix_32bit": o.PagedAdEMAMix, "paged_ademamix_8bit": o.PagedAdEMAMix8bit,
               "lion_32bit": o.Lion32bit, "lion_8bit": o.Lion8bit, "paged_lion_32bit": o.PagedLion32bit, "paged_lion_8bit": o.PagedLion8bit,
               "rmsprop_bnb_32bit": o.RMSprop32bit, "rmsprop_bnb_8bit": o.RMSprop8bit, "lamb": o.LAMB32bit, "lamb_8bit": o.LAMB8bit}
    for name, cls in classes.items():
        yield name, "bitsandbytes", alone(cls), {"first": False, "later": False}


def stable_adamw():
    """With its Triton kernels, as it chooses on a GPU; states alone."""
    from optimi import StableAdamW

    class Triton(StableAdamW):
        def step(self):
            for group in self.param_groups:
                group["triton"] = True
                for p in group["params"]:
                    self._init_state(group, self.state[p], p)
    return Triton


def package_rows():
    from anyprecision_optimizer import AnyPrecisionAdamW
    from apollo_torch import APOLLOAdamW, random_projector
    from came_pytorch import CAME
    from galore_torch import GaLoreAdafactor, GaLoreAdamW
    from grokadamw import GrokAdamW
    from lion_pytorch import Lion
    from optimi import AdamW
    from schedulefree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
    from sophia import SophiaG
    from torchao import optim as ao
    random_projector.stable_randn = lambda shape, seed, device=None, dtype=None: torch.randn(shape, device=device, dtype=dtype)
    AnyPrecisionAdamW.verify_bfloat_support = lambda self: (True, True)
    b, quiet = torch.bfloat16, {"no_deprecation_warning": True}
    yield "adamw_anyprecision", "torchdistx 9c1b9f5", alone(AnyPrecisionAdamW, variance_dtype=torch.float32), {}
    yield ("adamw_anyprecision_kahan", "torchdistx 9c1b9f5",
           alone(AnyPrecisionAdamW, momentum_dtype=b, variance_dtype=b, compensation_buffer_dtype=b, use_kahan_summation=True), {"dtypes": ("bf16",)})
    yield "galore_adamw", "galore-torch", grouped(GaLoreAdamW, quiet, scale=0.25), {}
    yield "galore_adafactor", "galore-torch", grouped(GaLoreAdafactor, {"scale_parameter": False, "relative_step": False}, scale=0.25), {}
    yield "apollo_adamw", "apollo-torch", grouped(APOLLOAdamW, quiet, scale=1.0, proj="random", scale_type="channel"), {"first": False}
    yield "came", "came-pytorch", alone(CAME, lr=1e-3), {}
    yield "grokadamw", "grokadamw", alone(GrokAdamW), {}
    yield "lion_pytorch", "lion-pytorch", alone(Lion), {}
    yield "optimi_adamw", "torch-optimi", alone(AdamW, lr=1e-3, foreach=False, triton=False), {}
    yield "stable_adamw", "torch-optimi", alone(stable_adamw(), lr=1e-3), {"first": False, "later": False}
    yield "schedule_free_adamw", "schedulefree", alone(AdamWScheduleFree, foreach=True), {}
    yield "schedule_free_radam", "schedulefree", alone(RAdamScheduleFree, foreach=True), {"first": False}
    yield "schedule_free_sgd", "schedulefree", alone(SGDScheduleFree, foreach=True), {}
    yield "sophia", "Sophia 01af183", alone(SophiaG), {}
    for name, cls, block in (("adamw_torch_8bit", ao.AdamW8bit, 256), ("adamw_torch_4bit", ao.AdamW4bit, 256), ("ao_adamw_4bit", ao.AdamW4bit, 128),
                             ("ao_adamw_fp8", ao.AdamWFp8, 256)):
        yield name, "torchao", alone(cls, block_size=block), {"first": False, "later": False}


def rows():
    for group in (torch_rows, transformers_rows, bitsandbytes_rows, package_rows):
        for name, source, make, what in group():
            package = source.split()[0]
            version = source if " " in source else f"{package} {importlib.metadata.version(package)}"
            for dtype in what.get("dtypes", DTYPES):
                for text in SHAPES:
                    shapes = [tuple(map(int, s.split("x"))) for s in text.split()]
                    states, first, later = measure(make, shapes, DTYPES[dtype], 8)
                    yield [name, dtype, text, states, first if what.get("first", True) else "", later if what.get("later", True) else "", version]


def main():
    stand_ins()
    with OUT.open("w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["optimizer", "dtype", "shapes", "states", "first", "later", "source"])
        out.writerows(rows())


if __name__ == "__main__":
    main()
