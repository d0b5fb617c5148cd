"""What both persistent programs of an LSTM layer are made of.

A program owns BU units of BM sequences and does all time steps. The programs of one group of sequences need each other's
results at every step, and exchange them through global memory, with one counter for each group and step:

- A program writes its results, all its threads meet at a barrier, and one of them adds 1 with release order at GPU scope. The
  barrier puts the writes of all threads before that addition, and release order makes them visible to whoever sees it.
- Each thread that will read spins by itself, with acquire order at GPU scope, until it sees the additions of all programs of
  the group, and only then loads. What it saw was made by a chain of atomic additions, so it synchronises with every one of
  them. The loads go to L2 (".cg"), which all processors share; every step has its own addresses, so nothing is written twice.
- Counters start at zero and only grow, one for each step, so a fast program cannot take a slow one's place.

All programs must run at once, or those that wait would keep out those that are waited for: hence the cooperative launch.

The contraction is split over the warps, and each warp keeps its part of the weights in registers. The order of a contraction
is free, so long as both sides agree: it is chosen such that the 8 values (16 bytes) that a thread loads in one go are those
that it has to hold as the right side of the tensor cores' product (m16n8k16, where a thread of lane ``l`` holds the values
``2 * (l % 4) + {0, 1, 8, 9}`` of row ``l // 4``). Within 32 values, place ``(step, half, l % 4, pair)`` of the contraction is
value ``(l % 4, step, half, pair)`` in memory, all but ``l % 4`` counted by twos. So the states go from memory straight to the
tensor cores, eight sequences at a time.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

SIZES = ["first_step", "last_step", "steps", "batch"]
"""Arguments that no kernel is compiled anew for."""


@triton.jit
def peek(counter, INTERPRETED: tl.constexpr):
    if INTERPRETED:
        seen = tl.load(counter, volatile=True)
    else:
        seen = tl.inline_asm_elementwise(
            "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l", [counter], dtype=tl.int32, is_pure=False, pack=1
        )
    return seen


@triton.jit
def wait(counter, arrivals, INTERPRETED: tl.constexpr):
    while peek(counter, INTERPRETED) < arrivals:
        pass


@triton.jit
def arrive(counter):
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def dot(left, right, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    if INTERPRETED:  # which keeps bf16 as bits and would multiply those
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision=PRECISION)


@triton.jit
def rounded(value, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    if INTERPRETED and dtype == tl.bfloat16:  # which cuts bits off where a GPU rounds
        bits = value.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        value = bits.to(tl.float32, bitcast=True)
    return value.to(dtype)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 2.0 * sigmoid(2.0 * x) - 1.0


@triton.jit
def fold(parts):
    left, right = tl.split(parts)
    return left + right


@triton.jit
def fold_all(parts, SPLITS: tl.constexpr):
    """[..., 2, 2, 2] -> [...], as many halvings as SPLITS has."""
    if SPLITS >= 2:
        parts = fold(parts)
    if SPLITS >= 4:
        parts = fold(parts)
    if SPLITS >= 8:
        parts = fold(parts)
    return parts


@triton.jit
def side_by_side(left, right, SPLITS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Two [SPLITS, COLUMNS, ROWS] -> [SPLITS, COLUMNS, 2 * ROWS]."""
    return tl.reshape(tl.permute(tl.join(left, right), (0, 1, 3, 2)), (SPLITS, COLUMNS, 2 * ROWS))


@triton.jit
def gates_of(partial, SPLITS: tl.constexpr, BM: tl.constexpr, BU: tl.constexpr):
    """[SPLITS, 4 * BU, BM] -> four [BU, BM]."""
    if SPLITS == 1:
        parts = tl.permute(tl.reshape(partial, (2, 2, BU, BM)), (2, 3, 0, 1))
    elif SPLITS == 2:
        parts = tl.permute(tl.reshape(partial, (2, 2, 2, BU, BM)), (3, 4, 1, 2, 0))
    elif SPLITS == 4:
        parts = tl.permute(tl.reshape(partial, (2, 2, 2, 2, BU, BM)), (4, 5, 2, 3, 0, 1))
    else:
        parts = tl.permute(tl.reshape(partial, (2, 2, 2, 2, 2, BU, BM)), (5, 6, 3, 4, 0, 1, 2))
    even, odd = tl.split(fold_all(parts, SPLITS))
    in_gate, candidate = tl.split(even)
    forget_gate, out_gate = tl.split(odd)
    return in_gate, forget_gate, candidate, out_gate


@triton.jit
def sum_of_splits(partial, SPLITS: tl.constexpr, BM: tl.constexpr, BU: tl.constexpr):
    """[SPLITS, BU, BM] -> [BU, BM]."""
    if SPLITS == 1:
        parts = tl.reshape(partial, (BU, BM))
    elif SPLITS == 2:
        parts = tl.permute(tl.reshape(partial, (2, BU, BM)), (1, 2, 0))
    elif SPLITS == 4:
        parts = tl.permute(tl.reshape(partial, (2, 2, BU, BM)), (2, 3, 0, 1))
    else:
        parts = tl.permute(tl.reshape(partial, (2, 2, 2, BU, BM)), (3, 4, 0, 1, 2))
    return fold_all(parts, SPLITS)


@triton.jit
def eight_states(hidden, offsets, mask, SPLITS: tl.constexpr, CHUNK: tl.constexpr):
    """Eight rows as the right side of a dot, [SPLITS, CHUNK, 8]."""
    state = tl.load(hidden + offsets, mask=mask, other=0.0, cache_modifier=".cg")
    state = tl.reshape(state, (CHUNK // 32, SPLITS, 8, 4, 2, 2, 2))
    return tl.reshape(tl.permute(state, (1, 0, 4, 5, 3, 6, 2)), (SPLITS, CHUNK, 8))


@triton.jit
def eight_gradients(gradients, offsets, mask, SPLITS: tl.constexpr, CHUNK: tl.constexpr):
    """Eight rows as the right side of a dot, [4 * SPLITS, CHUNK, 8]: a gate's gradients are a contraction of their own."""
    rows = tl.load(gradients + offsets, mask=mask, other=0.0, cache_modifier=".cg")
    rows = tl.reshape(rows, (CHUNK // 32, 4, SPLITS, 8, 4, 2, 2, 2))
    return tl.reshape(tl.permute(rows, (1, 2, 0, 5, 6, 4, 7, 3)), (4 * SPLITS, CHUNK, 8))


@triton.jit
def over_gates(product, SPLITS: tl.constexpr, BU: tl.constexpr):
    """[4 * SPLITS, BU, 8] -> [SPLITS, BU, 8]."""
    return tl.sum(tl.reshape(product, (4, SPLITS, BU, 8)), axis=0)


@triton.jit
def over_groups(
    sums, total, counter, block, groups, H: tl.constexpr, BU: tl.constexpr, GROUPS: tl.constexpr, INTERPRETED: tl.constexpr
):
    """Add up the groups' sums [groups, 4 * H] of a program's units: done by whichever group's program comes last."""
    tl.debug_barrier()
    if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == groups - 1:
        column = tl.arange(0, 4 * BU)[None, :]
        unit = block * BU + column % BU
        place = (column // BU) * H + unit
        group = tl.arange(0, GROUPS)[:, None]
        there = (group < groups) & (unit < H)
        found = tl.sum(tl.load(sums + group * (4 * H) + place, mask=there, other=0.0, cache_modifier=".cg"), axis=0)
        found = tl.reshape(rounded(found, total.dtype.element_ty, INTERPRETED), (1, 4 * BU))
        tl.store(total + place, found, mask=unit < H)
