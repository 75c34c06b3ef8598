#!/usr/bin/env python3
"""What torch's caching allocator reserves when rows differ in length: the constants varied_* of data/tiers.csv.

    tools/allocator_lengths.py [STEPS [RUNS]]

Replays the large tensors of a checkpointed step (LoRA, bf16 autocast, logits of one row) for rows of log-normal lengths below a cap, against
the best-fit rule of c10/cuda/CUDACachingAllocator.cpp: requests of 10 MiB and more get a segment rounded to 2 MiB, smaller ones a part of 20 MiB;
a free block is split where more than 1 MiB is left, and free neighbours are joined. Prints, by model and cap, reserved / allocated of each run.
"""
import random
import statistics
import sys

MIB = 1 << 20
MODELS = {"vocabulary 151936, 32 x 4096": (151936, 4096, 32, 11008), "vocabulary 36608, 32 x 4096": (36608, 4096, 32, 14336),
          "vocabulary 64000, 60 x 7168": (64000, 7168, 60, 20480), "vocabulary 151936, 24 x 2048": (151936, 2048, 24, 5504)}
CAPS = (512, 1024, 2048, 4096, 8192)
MEAN, SPREAD = 7.7, 0.85          # of the logarithm of the length: a median of 2200 tokens


class Block:
    __slots__ = ("size", "free", "left", "right")

    def __init__(self, size, left=None, right=None):
        self.size, self.free, self.left, self.right = size, True, left, right


class Allocator:
    def __init__(self):
        self.blocks, self.reserved, self.live, self.peak = {}, 0, 0, 0     # free blocks, in the order in which they became free

    def take(self, size):
        size = (size + 511) // 512 * 512
        fitting = [b for b in self.blocks if b.size >= size]
        block = min(fitting, key=lambda b: b.size) if fitting else self.segment(size)
        self.blocks.pop(block, None)
        block.free = False
        if block.size - size > MIB:
            rest = Block(block.size - size, block, block.right)
            if block.right:
                block.right.left = rest
            block.right, block.size = rest, size
            self.blocks[rest] = None
        self.live += block.size
        self.peak = max(self.peak, self.live)
        return block

    def segment(self, size):
        block = Block(20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB))
        self.reserved += block.size
        return block

    def drop(self, *blocks):
        for block in blocks:
            self.live -= block.size
            block.free = True
            if block.right and block.right.free:
                self.join(block, block.right)
            if block.left and block.left.free:
                block = self.join(block.left, block)
            self.blocks[block] = None

    def join(self, left, right):
        self.blocks.pop(left, None)
        self.blocks.pop(right, None)
        left.size += right.size
        left.right = right.right
        if left.right:
            left.right.left = left
        return left


def step(a, tokens, vocab, h, layers, f):
    """Forward, loss and backward of one row; sizes in bytes, names by what they stand for."""
    wide, half, mlp, logits = tokens * h * 4, tokens * h * 2, tokens * f * 2, tokens * vocab * 2
    kept = []
    for _ in range(layers):
        kept.append(a.take(half))
        norm, cast, qkv = a.take(wide), a.take(half), a.take(3 * half)
        a.drop(norm)
        out = a.take(half)
        a.drop(qkv)
        projected = a.take(half)
        a.drop(out, cast)
        gate, up, product = a.take(mlp), a.take(mlp), a.take(mlp)
        a.drop(gate, up, product, projected)
    stream, head, log, nll, outputs = a.take(half), a.take(logits), a.take(logits), a.take(2 * logits), a.take(2 * logits)
    a.drop(head, outputs)
    g = a.take(2 * logits)
    a.drop(nll)
    for size in (logits, logits):
        g, before = a.take(size), g
        a.drop(before)
    a.drop(log)
    gradient = a.take(half)
    a.drop(g, stream)
    for checkpoint in reversed(kept):
        block = [a.take(x) for x in (wide, half, 3 * half, half, wide, half)]
        block += [a.take(mlp) for _ in range(4)]
        temporary, normed = [a.take(mlp), a.take(mlp)], a.take(half)
        a.drop(*temporary, *block[6:])
        qkv, below = a.take(3 * half), a.take(half)
        a.drop(qkv, *block[:6], normed, gradient)
        gradient = below
        a.drop(checkpoint)
    a.drop(gradient)


def run(model, cap, steps, seed):
    random.seed(seed)
    varied, alone = Allocator(), Allocator()
    for _ in range(steps):
        tokens = 0
        while not 60 < tokens <= cap:
            tokens = int(random.lognormvariate(MEAN, SPREAD))
        step(varied, tokens, *model)
    step(alone, cap, *model)
    return varied.reserved / alone.peak


def main(steps=300, runs=4):
    for name, model in MODELS.items():
        for cap in CAPS:
            found = [run(model, cap, steps, seed) for seed in range(runs)]
            print(f"{name:30s} cap {cap:5d}  median {statistics.median(found):.2f}  runs {' '.join(f'{x:.2f}' for x in found)}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
