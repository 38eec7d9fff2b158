"""Compiled loops over the covariances of a Gaussian chain with small states. Importing this module imports numba.

Covariances are nodes of a graph, as in ``CovariancePath`` and ``SmoothedPath``, which are the readable twins;
:mod:`pplseq.kernels.gaussian.compiled_kalman` calls these loops.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from pplseq.kernels.compiled import jit
from pplseq.kernels.product_loops import add_times, factorize, mirror, set_to, times, turned

NEGLIGIBLE = 1e-24  # as in kalman.py
PATIENCE = 16
CAREFUL = 1e-9  # as in path.py
EPS = 2.220446049250313e-16
ROUNDING = 1e4 * EPS

# What covariances depend on: matrix (1, h, h), noise (h, h); loadings (P, n, h), covariance (P, n, n), seen (P, n) and
# precision (P,) of each kind of observation; nothing: the kind that says nothing, or -1. tol, agree: see kalman.Convergence;
# tol 0: never.
System = namedtuple("System", "matrix noise loadings covariance seen precision nothing tol agree")
# predicted (N, h, h), size, least, age, last (N,): the largest entry, and the record of changes on the way; first (N,): the
# first filtered node behind it. Of filtered nodes: kind, parent, later (predicted nodes before and behind, or -1), sibling
# (the next one of the same parent), step, row (where it was made), and what observations make of it, as in
# kalman.UpdatedByNumbers; moved (N, h, h) A Sigma.
Nodes = namedtuple(
    "Nodes", "predicted size least age last first kind parent later sibling step row filtered gain whitener half_log_det moved"
)
# What they stand in, which costs a call less: squares (3, N, h, h), gains (N, h, n), whiteners (N, n, n), reals (4, N),
# integers (8, N)
Store = namedtuple("Store", "squares gains whiteners reals integers")
# counts (4,) of predicted and filtered nodes, and of fixed ones (numbers: fixed); the first step in the steady state, or -1
PREDICTED, FILTERED, FIXED, STEADY = 0, 1, 2, 3
Room = namedtuple("Room", "spread factor root work other scale most")


def nodes_of(store):
    """Nodes, where they stand."""
    squares, gains, whiteners, reals, integers = store
    return Nodes(
        squares[0], reals[0], reals[1], integers[0], reals[2], integers[1], integers[2], integers[3], integers[4], integers[5],
        integers[6], integers[7], squares[1], gains, whiteners, reals[3], squares[2],
    )  # fmt: skip


nodes_in = jit(nodes_of)


@jit
def begin_with(start, nodes):
    """Predicted nodes of the first step."""
    for r in range(len(start)):
        nodes.size[r], nodes.least[r], nodes.age[r], nodes.last[r], nodes.first[r] = 0.0, np.inf, 0, 0.0, -1
        for i in range(start.shape[1]):
            for j in range(start.shape[1]):
                nodes.predicted[r, i, j] = (start[r, i, j] + start[r, j, i]) / 2
                size = abs(start[r, i, j])
                nodes.size[r] = size if not size <= nodes.size[r] else nodes.size[r]


@jit
def make_room(n, h):
    return Room(
        np.empty((n, h)), np.empty((n, n)), np.empty((n, h)), np.empty((max(h, n), h)), np.empty((max(h, n), max(h, n))),
        np.empty(h), np.empty(h),
    )  # fmt: skip


@jit
def condition(system, nodes, p, kind, node, room, tiles):
    """Filtered node ``node``: what an observation of this kind makes of predicted node p; see kalman.update_by_numbers."""
    n, h = system.loadings.shape[1:]
    loadings, noise, spread, total, root = system.loadings, system.covariance, room.spread, room.factor, room.root
    predicted, gain, whitener, filtered = nodes.predicted, nodes.gain, nodes.whitener, nodes.filtered
    times(loadings, kind, predicted, p, spread, tiles)
    for i in range(n):
        for j in range(i + 1):
            value = 0.0
            for k in range(h):
                value += spread[i, k] * loadings[kind, j, k] + spread[j, k] * loadings[kind, i, k]
            total[i, j] = value / 2 + noise[kind, i, j]
    nodes.half_log_det[node] = factorize(total, whitener, node)
    for i in range(n):
        for j in range(h):
            root[i, j] = 0.0
        for k in range(i + 1):
            a = whitener[node, i, k]
            for j in range(h):
                root[i, j] += a * spread[k, j]
    if tiles is not None:
        set_to(0.0, gain[node])
        add_times(turned(root, 1.0), whitener[node], n, gain[node], False)
    else:
        for j in range(h):
            for i in range(n):
                value = 0.0
                for k in range(i, n):
                    value += root[k, j] * whitener[node, k, i]
                gain[node, j, i] = value
    if nodes.size[p] > 0 and EPS * nodes.size[p] * system.precision[kind] > CAREFUL:
        joseph(system, nodes, p, kind, node, room, tiles)
    elif tiles is not None:
        for i in range(h):
            for j in range(i + 1):
                filtered[node, i, j] = predicted[p, i, j]
        add_times(turned(root, -1.0), root, h, filtered[node], True)
        mirror(filtered[node])
    else:
        for i in range(h):
            for j in range(h):
                filtered[node, i, j] = predicted[p, i, j]
            for k in range(n):
                a = root[k, i]
                for j in range(h):
                    filtered[node, i, j] -= a * root[k, j]
    for i in range(n):
        for j in range(n):
            whitener[node, i, j] *= system.seen[kind, j]


@jit
def joseph(system, nodes, p, kind, node, room, tiles):
    """filtered[node] = (I - K M) P (I - K M)' + K D K': no differences of large numbers."""
    n, h = system.loadings.shape[1:]
    gain, filtered, rest, moved = nodes.gain, nodes.filtered, room.other, room.work
    for i in range(h):
        for j in range(h):
            rest[i, j] = 1.0 if i == j else 0.0
            for k in range(n):
                rest[i, j] -= gain[node, i, k] * system.loadings[kind, k, j]
    if tiles is not None:
        kept, spread, work = rest[:h, :h], np.zeros((h, n)), filtered[node]
        set_to(0.0, moved)
        add_times(kept, nodes.predicted[p], h, moved, False)
        add_times(gain[node], system.covariance[kind], n, spread, False)
        set_to(0.0, work)
        add_times(kept, turned(moved[:h], 1.0), h, work, True)
        add_times(spread, turned(gain[node], 1.0), h, work, True)
        mirror(work)
        return
    for i in range(h):
        for j in range(h):
            moved[i, j] = 0.0
            for k in range(h):
                moved[i, j] += rest[i, k] * nodes.predicted[p, k, j]
    for i in range(h):
        for j in range(i + 1):
            value = 0.0
            for k in range(h):
                value += moved[i, k] * rest[j, k] + moved[j, k] * rest[i, k]
            for k in range(n):
                for m in range(n):
                    both = gain[node, i, k] * gain[node, j, m] + gain[node, j, k] * gain[node, i, m]
                    value += both * system.covariance[kind, k, m]
            filtered[node, i, j] = value / 2
            filtered[node, j, i] = value / 2


@jit
def predict(system, nodes, node, child, room, tiles):
    """predicted[child] = A Sigma A' + Q, from moved[node] = A Sigma."""
    h, matrix, moved, work = system.noise.shape[0], system.matrix, nodes.moved, room.work
    if tiles is not None:
        set_to(0.0, work)
        add_times(matrix[0], turned(moved[node], 1.0), h, work, True)  # of A, zeros are left out
        mirror(work[:h])
    else:
        for i in range(h):
            for j in range(i + 1):
                value = 0.0
                for k in range(h):
                    value += moved[node, i, k] * matrix[0, j, k] + moved[node, j, k] * matrix[0, i, k]
                work[i, j] = value / 2
                work[j, i] = work[i, j]
    most, size = room.most, 0.0  # of columns, which go side by side
    for j in range(h):
        most[j] = 0.0
    for i in range(h):
        for j in range(h):
            value = work[i, j] + system.noise[i, j]
            nodes.predicted[child, i, j] = value
            most[j] = abs(value) if not abs(value) <= most[j] else most[j]
    for j in range(h):
        size = most[j] if not most[j] <= size else size
    nodes.size[child] = size


@jit
def set_scale(predicted, p, scale):
    """One over the standard deviations of a covariance's coordinates; see kalman.scaled_size."""
    most = 0.0
    for i in range(len(scale)):
        most = max(most, predicted[p, i, i])
    for i in range(len(scale)):
        scale[i] = 1 / math.sqrt(max(predicted[p, i, i], most * NEGLIGIBLE))


@jit
def distance(predicted, p, other, scale, most):
    """The largest difference of two covariances, in these units. most: room for that of each column."""
    for j in range(len(scale)):
        most[j] = 0.0
    for i in range(len(scale)):
        for j in range(len(scale)):
            value = abs(predicted[p, i, j] - predicted[other, i, j]) * scale[i] * scale[j]
            most[j] = value if value > most[j] else most[j]
    largest = 0.0
    for j in range(len(scale)):
        largest = max(largest, most[j])
    return largest


@jit
def seen_change(system, nodes, node, p, other, room, tiles):
    """The largest difference of two covariances in units of what a filtered node's observation sees of them."""
    n, h = system.loadings.shape[1:]
    kind, seen, moved, most = nodes.kind[node], room.root, room.spread, 0.0
    for i in range(n):
        for j in range(h):
            seen[i, j], moved[i, j] = 0.0, 0.0
        for k in range(n):
            a = nodes.whitener[node, i, k]
            for j in range(h):
                seen[i, j] += a * system.loadings[kind, k, j]
        if tiles is None:
            for k in range(h):
                a = seen[i, k]
                for j in range(h):
                    moved[i, j] += a * (nodes.predicted[p, k, j] - nodes.predicted[other, k, j])
    if tiles is not None:
        for i in range(h):
            for j in range(h):
                room.other[i, j] = nodes.predicted[p, i, j] - nodes.predicted[other, i, j]
        add_times(seen, room.other[:h], h, moved, False)
    for i in range(n):
        for j in range(n):
            value = 0.0
            for k in range(h):
                value += moved[i, k] * seen[j, k]
            most = max(most, abs(value))
    return most


@jit
def stands_still(before, after, record, change, fresh, tol):
    """See kalman.Convergence.still: whether a relative change is none; sets the new node's record of changes."""
    least, age, last = record
    past_least = np.inf if fresh else least[before]
    past_last = 0.0 if fresh else last[before]
    least[after], age[after], last[after] = past_least, (0 if fresh else age[before]) + 1, change
    if change < past_least or change > 100 * ROUNDING:
        least[after], age[after] = change, 0
    settled = max(least[after], change) <= ROUNDING and age[after] >= PATIENCE
    ahead = change
    if tol > ROUNDING and change > ROUNDING:
        rate = change / past_last if past_last > 0 else 1.0
        ahead = max(change, change * rate / (1 - rate)) if rate < 1 else np.inf
    return ahead <= tol, settled


@jit
def follow(system, nodes, node, counts, fixed, waits, room, tiles):
    """Finds or makes the predicted node behind a filtered one; see CovariancePath._follow."""
    p, child = nodes.parent[node], counts[PREDICTED]
    times(system.matrix, 0, nodes.filtered, node, nodes.moved[node], tiles)
    predict(system, nodes, node, child, room, tiles)
    near = -1
    if system.tol > 0:
        fresh = False
        for i in range(counts[FIXED]):
            fresh = fresh or fixed[i] == p
        set_scale(nodes.predicted, child, room.scale)
        change = distance(nodes.predicted, child, p, room.scale, room.most)
        change = max(change, seen_change(system, nodes, node, child, p, room, tiles))
        none, settled = stands_still(p, child, (nodes.least, nodes.age, nodes.last), change, fresh, system.tol)
        still = none or (waits and settled)
        reach = system.tol
        for _ in range(2):
            for i in range(counts[FIXED]):
                other = fixed[i]
                if near < 0 and other != p and distance(nodes.predicted, child, other, room.scale, room.most) <= reach:
                    near = other
            if near >= 0 or not still:
                break
            reach = system.agree
        if near < 0 and still:
            near = p
            if not fresh:
                fixed[counts[FIXED]] = p
                counts[FIXED] += 1
    if near < 0:
        near, counts[PREDICTED] = child, child + 1
        nodes.first[child] = -1
    nodes.later[node] = near


@jit(entry=True)
def walk(
    begin, start, matrix, noise, loadings, covariance, seen, precision, nothing, tol, agree, which, index, now,
    squares, gains, whiteners, reals, integers, counts, fixed, waits, tiles,
):  # fmt: skip
    """Nodes of all steps and columns: index[t, r], from predicted nodes now (R,) and kinds which (T, 1 | R), -1 behind an end.

    Args:
        start: (1 | R, h, h). matrix ... agree: see System. squares ... integers: see Store. tiles: see product_loops.

    Returns:
        The number of steps, or the step to begin with when there is more room for nodes.
    """
    system = System(matrix, noise, loadings, covariance, seen, precision, nothing, tol, agree)
    nodes = nodes_in(Store(squares, gains, whiteners, reals, integers))
    if begin == 0 and counts[FILTERED] == 0:
        begin_with(start, nodes)
    num_steps, rows = index.shape
    room = make_room(loadings.shape[1], len(matrix[0]))
    several = which.shape[1] > 1
    for t in range(begin, num_steps):
        last = t + 1 == num_steps
        for r in range(rows):
            p, kind = now[r], which[t, r if several else 0]
            if kind < 0:
                index[t, r] = -1
                continue
            node = nodes.first[p]
            while node >= 0 and nodes.kind[node] != kind:
                node = nodes.sibling[node]
            if node < 0:
                node = counts[FILTERED]
                if node == len(nodes.kind) or counts[PREDICTED] == len(nodes.size):
                    return t
                counts[FILTERED] += 1
                nodes.kind[node], nodes.parent[node], nodes.later[node] = kind, p, -1
                nodes.step[node], nodes.row[node] = t, r
                nodes.sibling[node], nodes.first[p] = nodes.first[p], node
                condition(system, nodes, p, kind, node, room, tiles)
                if last:
                    times(system.matrix, 0, nodes.filtered, node, nodes.moved[node], tiles)
            if not last and nodes.later[node] < 0:
                if counts[PREDICTED] == len(nodes.size):
                    return t
                follow(system, nodes, node, counts, fixed, waits, room, tiles)
            index[t, r] = node
        if last:
            break
        still = True
        for r in range(rows):
            if index[t, r] >= 0:
                later = nodes.later[index[t, r]]
                still = still and later == now[r] and nodes.kind[index[t, r]] != nothing
                now[r] = later
        if still and tol > 0 and counts[STEADY] < 0:
            counts[STEADY] = t
    return num_steps


# ---------------------------------------------------------------- covariances given all observations
# information (M, h, h); of: the filtered node, later: the node of the step behind; again: the node before this one where the
# filtered node is the same, or -1; first, sibling: the other nodes before it; least, age, last: the record of changes
Back = namedtuple("Back", "information of later again first sibling least age last")


def back_of(found, reals, integers):
    """Nodes of the way back, where they stand."""
    return Back(found, integers[0], integers[1], integers[2], integers[3], integers[4], reals[0], integers[5], reals[1])


back_in = jit(back_of)


@jit
def look_back(matrix, loadings, kinds, gain, whitener, information, closed, tiles):
    """information (N, h, h) = M' S^-1 M, what a filtered node's observation says beyond the past, and closed = A (1 - K M)."""
    (made, h), n = closed.shape[:2], loadings.shape[1]
    white, moved = np.empty((n, h)), np.empty((h, n))
    for node in range(made):
        kind = kinds[node]
        for i in range(n):
            for j in range(h):
                white[i, j] = 0.0
            for k in range(i + 1):
                a = whitener[node, i, k]
                for j in range(h):
                    white[i, j] += a * loadings[kind, k, j]
        for i in range(h):
            for a in range(n):
                moved[i, a] = 0.0
            for k in range(h):
                value = matrix[i, k]
                for a in range(n):
                    moved[i, a] -= value * gain[node, k, a]
            for j in range(h):
                information[node, i, j], closed[node, i, j] = 0.0, matrix[i, j]
        if tiles is not None:
            add_times(turned(white, 1.0), white, h, information[node], True)
            add_times(moved, loadings[kind], h, closed[node], False)
            mirror(information[node])
            continue
        for a in range(n):
            for i in range(h):
                value = white[a, i]
                for j in range(h):
                    information[node, i, j] += value * white[a, j]
        for i in range(h):
            for a in range(n):
                value = moved[i, a]
                for j in range(h):
                    closed[node, i, j] += value * loadings[kind, a, j]


@jit(entry=True)
def walk_back(
    begin, columns, index, now, matrix, loadings, kinds, gain, whitener, information, loops, steady, settled_on, found, reals,
    integers, counts, tol, agree, waits, tiles,
):  # fmt: skip
    """Nodes of :class:`~pplseq.infer.gaussian.smoothed_path.SmoothedPath` from the last step to the first.

    Args:
        columns: (T, U) filtered nodes, -1 at padded steps. matrix, loadings: see System. kinds, gain, whitener: of filtered
            nodes. information, loops: room (N, h, h) for what look_back gives of them. steady: (N,) whether one follows
            itself. settled_on: (N,) room for the node that stands still over it. found (M, h, h), reals (2, M) and integers
            (6, M): room for nodes, see back_in. tiles: see product_loops.

    Returns:
        -1, or the step to go on with when there is more room.
    """
    back = back_in(found, reals, integers)
    num_columns, h = columns.shape[1], found.shape[1]
    if counts[0] == 0:
        look_back(matrix, loadings, kinds, gain, whitener, information, loops, tiles)
        set_to(0.0, found[0])
        settled_on[:] = -1
        back.of[0], back.later[0], back.again[0], back.first[0], back.sibling[0] = -1, 0, -1, -1, -1
        back.least[0], back.age[0], back.last[0], counts[0] = np.inf, 0, 0.0, 1
    work = np.empty((h, h))
    for t in range(begin, -1, -1):
        for u in range(num_columns):
            node, behind = columns[t, u], now[u]
            if node < 0:
                index[t, u] = 0
                continue
            if back.of[behind] == node and back.again[behind] >= 0:
                index[t, u] = back.again[behind]
                continue
            child = back.first[behind]
            while child >= 0 and back.of[child] != node:
                child = back.sibling[child]
            if child >= 0:
                index[t, u] = child
                continue
            child = counts[0]
            if child == len(back.of):
                return t
            back.again[child] = -1
            if tiles is not None:
                set_to(0.0, work)
                left = turned(loops[node], 1.0)  # whose zeros are left out
                add_times(left, found[behind], h, work, False)
                set_to(0.0, found[child])
                add_times(left, turned(work, 1.0), h, found[child], True)
            else:
                for i in range(h):
                    for j in range(h):
                        work[i, j] = 0.0
                    for k in range(h):
                        a = found[behind, i, k]
                        for j in range(h):
                            work[i, j] += a * loops[node, k, j]
                for i in range(h):
                    for j in range(h):
                        found[child, i, j] = 0.0
                    for k in range(h):
                        a = loops[node, k, i]
                        for j in range(h):
                            found[child, i, j] += a * work[k, j]
                for i in range(h):
                    for j in range(i):
                        found[child, i, j] = (found[child, i, j] + found[child, j, i]) / 2
            size = change = 0.0
            for i in range(h):
                for j in range(i + 1):
                    value = information[node, i, j] + found[child, i, j]
                    found[child, i, j] = value
                    size, change = max(size, abs(value)), max(change, abs(value - found[behind, i, j]))
            mirror(found[child])
            size = size if size != 0.0 else 1.0
            same = -1
            if steady[node] and back.of[behind] == node:
                none, settled = stands_still(behind, child, (back.least, back.age, back.last), change / size, False, tol)
                still, target = none or (waits and settled), settled_on[node]
                if target >= 0:
                    apart = 0.0
                    for i in range(h):
                        for j in range(h):
                            apart = max(apart, abs(found[child, i, j] - found[target, i, j]))
                    if apart <= (agree if still else tol) * size:
                        same = target
                if same < 0 and still:
                    settled_on[node], back.again[child] = child, child
                    back.least[child], back.age[child], back.last[child] = np.inf, 0, 0.0
            else:
                back.least[child], back.age[child], back.last[child] = np.inf, 0, 0.0
            if same < 0:
                counts[0] += 1
                same = child
                back.of[child], back.later[child], back.first[child], back.sibling[child] = node, behind, -1, -1
                if back.of[behind] != node:
                    back.sibling[child], back.first[behind] = back.first[behind], child
            if back.of[behind] == node:
                back.again[behind] = same
            index[t, u] = same
        for u in range(num_columns):
            now[u] = index[t, u]
    return -1
