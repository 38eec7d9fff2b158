"""Every way to run a chain of states, by one case."""

import math

import pytest
import torch
from support.chain_recursions import F64, LINKS, ByScans, ChainRecursion, log_sum, matrices_of, weights

from pplseq.kernels import compiled, long_scan, pair_scan, product_steps, restart_scan, scan, step_ops
from pplseq.kernels.chain import call, piece_call
from pplseq.kernels.contexts import call as context_call
from pplseq.kernels.contexts import reference
from pplseq.kernels.parallel import time_scan
from pplseq.kernels.restart_scan import Lattice, expectation, log_prob

needs_numba = pytest.mark.skipif(not compiled.available(), reason="numba is not installed")


@needs_numba
class TestLoopsOverPieces(ByScans):
    @pytest.fixture(autouse=True)
    def pieces(self, monkeypatch):
        monkeypatch.setattr(piece_call, "CELLS", 64)  # pieces of 32 steps: some in logs, some not
        monkeypatch.setattr(piece_call, "TOGETHER", 64)


@needs_numba
class TestLoopsOverLongPieces(ByScans):
    links = tuple(LINKS)


class TestTwins(ByScans):
    @pytest.fixture(autouse=True)
    def operations(self):
        with compiled.twins_only():
            yield


class TestTensorOperations(TestTwins):
    """Of large chains, and of other devices."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(step_ops, "SMALL", 0)


class TestLogSpace(TestTwins):
    differentiable = False

    def answers(self, f):
        matrices, result = matrices_of(f), scan.forward_in_log_space(f.init, matrices_of(f), f.emit, f.valid)
        beta = scan.backward_in_log_space(matrices, f.emit, f.valid)
        return {
            "log_prob": result.log_prob, "steps": result.step_log_prob, "filtered": result.filtered,
            "states": scan.state_posterior(result.filtered, beta, f.valid),
            "pairs": scan.pair_posterior(matrices, f.emit, result, beta, f.valid, weights(f)),
        }  # fmt: skip


class TestInParallel(ChainRecursion):
    links = ("shared", "a matrix a step")

    def log_prob(self, f):
        return time_scan.forward_pass(*f[:5]).log_prob

    def answers(self, f):
        result, (path, best) = time_scan.forward_pass(*f[:5]), time_scan.viterbi_pass(*f[:5])
        found = {"log_prob": result.log_prob, "filtered": result.filtered, "best": best, "path": path}
        return found if bool(result.log_prob.isneginf().any()) else {**found, "steps": result.steps}


@needs_numba
class TestSegments(ChainRecursion):
    """Of long chains, whose emissions are made when their turn comes."""

    links = ("shared",)

    @pytest.fixture(autouse=True)
    def segments(self, monkeypatch):
        monkeypatch.setattr(long_scan, "SEGMENT", 100)
        monkeypatch.setattr(piece_call, "CELLS", 64)

    def given(self, f):
        emit, num_steps = f.emit.flatten(1, -2), len(f.emit)
        lengths = torch.full(emit.shape[1:2], num_steps) if f.valid is None else f.valid.flatten(1).sum(0)
        size, lengths = emit.shape[-1], lengths.numpy()
        chain = long_scan.LongChain(lambda tensors, begin, end: tensors[0][begin:end], num_steps, size, lengths)
        return chain, f.init.expand(f.emit.shape[1:]).flatten(0, -2), f.pair, emit

    def log_prob(self, f):
        return long_scan.LongLogProb.apply(*self.given(f))[0].reshape(f.rows)

    def answers(self, f):
        chain, init, log, emit = self.given(f)
        value, found, steps = long_scan.LongLogProb.apply(chain, init, log, emit)
        path, best = long_scan.viterbi_pass(chain, init, log, [emit])
        return {
            "log_prob": value.reshape(f.rows), "steps": steps.reshape(-1, *f.rows), "path": path.reshape(-1, *f.rows),
            "best": best.to(f.emit.dtype).reshape(f.rows), "last": found.ends[-1].to(f.emit.dtype).reshape(f.emit.shape[1:]),
        }  # fmt: skip


@needs_numba
class TestLoopsOverTables(ChainRecursion):
    """Rows by numbers of their tables; where digits may be lost these loops refuse, and nothing is compared."""

    links = ("shared", "a matrix a step")
    differentiable = False
    whole_types = (F64,)

    def answers(self, f):
        num_steps, num_states = f.emit.shape[0], f.emit.shape[-1]
        num_rows, emit = f.rows.numel(), f.emit.flatten(1, -2)
        logs = emit.transpose(0, 1).reshape(-1, num_states)
        index = torch.arange(num_rows * num_steps).reshape(num_rows, num_steps)
        lengths = torch.full((num_rows,), num_steps) if f.valid is None else f.valid.flatten(1).sum(0)
        moves = None
        if not f.shared:
            moves = torch.zeros(num_rows, num_steps, dtype=torch.long)
            moves[:, 1:] = torch.arange((num_steps - 1) * num_rows).reshape(-1, num_rows).T
        pair = f.pair if f.pair.numel() else f.emit.new_zeros(num_states, num_states)
        tables = call.chain_of(f.init.expand(f.emit.shape[1:]).reshape(num_rows, -1), pair), call.emissions_of(logs)
        if None in tables:
            return {}
        rows = call.Rows(index.numpy(), lengths.numpy(), None if moves is None else moves.numpy())
        value, found = call.log_prob(*tables, rows), call.smooth(*tables, rows)
        if value is None or found is None:
            return {} if value is None else {"log_prob": torch.from_numpy(value).reshape(f.rows)}
        torch.testing.assert_close(value, found.log_prob, rtol=1e-12, atol=1e-12)
        states = torch.from_numpy(found.posterior).transpose(0, 1).reshape(f.emit.shape)
        return {"log_prob": torch.from_numpy(value).reshape(f.rows), "states": states}

    def compare(self, f, tolerance=1e-9):
        found = super().compare(f, tolerance)
        usual = bool((f.pair >= -30).all() and (f.emit >= -30).all() and (f.pair.logsumexp(-1) < 1e-6).all())
        assert found or not usual, "these rows need no log space"
        return found or {"log_prob": ChainRecursion.expected(f)}


class TestPairsOfBlocks(ChainRecursion):
    """The scores of a pair are the logarithms of its matrix. Blocks forbid no single move, and where digits may be lost the
    scan refuses; then nothing is compared."""

    def forward(self, f):
        num_steps, size, emit = len(f.emit), f.emit.shape[-1], f.emit.flatten(1, -2)
        of_steps = num_steps - 1, *f.rows, size, size
        matrices = f.pair.unsqueeze(0) if f.pair.dim() == 2 else f.pair.expand(of_steps).reshape(-1, size, size)
        pair_of = torch.arange((num_steps - 1) * emit.shape[1]).reshape(num_steps - 1, emit.shape[1]) % max(1, len(matrices))
        valid, restart = (None if part is None else part.flatten(1) for part in (f.valid, f.restart))
        used = None
        for there in (valid, None if restart is None else ~restart):
            used = used if there is None else there[1:] if used is None else used & there[1:]
        plan = pair_scan.plan_pairs(torch.arange(len(matrices)), torch.zeros(len(matrices), dtype=torch.long), pair_of, used)
        init = f.init.expand(f.emit.shape[1:]).flatten(0, -2)
        to = None if restart is None else f.restart_to.expand(emit.shape)
        return pair_scan.pair_chain_log_prob(
            matrices, torch.eye(size, dtype=emit.dtype).unsqueeze(0), log_sum(matrices, -1)[pair_of], init, emit, plan,
            valid=valid, restart=restart, restart_to=to,
        )  # fmt: skip

    def log_prob(self, f):
        return self.forward(f).log_prob.reshape(f.rows)

    def answers(self, f):
        found = self.forward(f)
        return {
            "log_prob": found.log_prob.reshape(f.rows), "steps": found.step_log_prob.reshape(f.emit.shape[:-1]),
            "filtered": found.filtered.reshape(f.emit.shape), "last": found.last.reshape(f.emit.shape[1:]),
        }  # fmt: skip

    def chain(self, links, num_steps, rows, num_states, scale=1.0, holes=0.0, **options):
        return super().chain(links, num_steps, rows, num_states, scale, 0.0, **options)

    def compare(self, f, tolerance=1e-9):
        if bool(f.pair.isneginf().any()) or self.forward(f) is None:
            assert not all(bool((part > -30).all()) for part in (f.init, f.pair, f.emit)), "these rows need no log space"
            return {"log_prob": self.expected(f)}
        return super().compare(f, tolerance)


def contexts(size):
    """Successors (Z, M) and last symbols of Z contexts, and whether these are all pairs, as 4 and 9 are; up to 3 are symbols,
    and of others two may end with one symbol."""
    root = math.isqrt(size)
    if size < 4:
        return torch.arange(size).expand(size, size), torch.arange(size), False
    if root**2 == size:
        symbol = torch.arange(root).repeat(root)
        return symbol.unsqueeze(-1) * root + torch.arange(root), symbol, True
    many = -(-size // 2)
    symbol, target = torch.arange(size) % many, torch.arange(many).repeat(size, 1)
    return target + many * ((torch.arange(size).unsqueeze(-1) + target) % 2 * (target + many < size)), symbol, False


def in_rows(f, steps):
    init, valid = f.init.expand(f.emit.shape[1:]).flatten(0, -2), None if f.valid is None else f.valid.flatten(1)
    return init, steps, f.emit.flatten(1, -2), valid


class TestContextsTogether(ChainRecursion):
    """Of second-order chains and of those of variable order; few symbols lead out of each."""

    links = ("shared",)

    @pytest.fixture(autouse=True)
    def operations(self, monkeypatch):
        monkeypatch.setattr(reference, "MAX_MOVES", 50)  # at a time
        with compiled.twins_only():
            yield

    def chain(self, *args, **options):
        f = super().chain(*args, **options)
        log = self.given(f)[1].log
        log = log.where((log > -math.inf).any(-1, keepdim=True), 0.0).log_softmax(-1)
        successor, symbol, _ = contexts(len(f.pair))
        if len(f.pair) > 4 or bool(f.emit.isneginf().any()):  # words that allow few symbols
            few = torch.rand(*f.emit.shape[:-1], len(log[0])) < 0.3 * (torch.arange(len(log[0])) > 0)
            f = f._replace(emit=f.emit.masked_fill(few[..., symbol], -math.inf))
        return f._replace(pair=torch.full_like(f.pair, -math.inf).scatter(1, successor, log))

    def given(self, f):
        successor, symbol, in_order = contexts(f.emit.shape[-1])
        return in_rows(f, reference.ContextSteps(f.pair.gather(1, successor), successor, symbol, in_order))

    def log_prob(self, f):
        return context_call.log_prob(*self.given(f)).log_prob.view(f.rows)

    def answers(self, f):
        init, steps, emit, valid = self.given(f)
        result, weight = context_call.forward_pass(init, steps, emit, valid), weights(f).flatten()
        smoothed = context_call.smooth(result, steps, emit, valid, weight, counts=True, entropy=True)
        paths, best = context_call.k_best_pass(init, steps, emit, valid, 1)
        return {
            "log_prob": result.log_prob.view(f.rows), "best": best.view(f.rows), "path": paths.view(-1, *f.rows),
            "steps": result.step_log_prob.view(-1, *f.rows), "filtered": result.filtered.view(f.emit.shape),
            "states": smoothed.posterior.view(f.emit.shape),
            "pairs": torch.zeros_like(f.pair).scatter(1, steps.successor, smoothed.counts),
            "entropy": (smoothed.entropy * weight).sum(),
        }  # fmt: skip


@needs_numba
class TestContexts(TestContextsTogether):
    @pytest.fixture(autouse=True)
    def operations(self):
        with compiled.always():
            yield


class TestProducts(ChainRecursion):
    """Of states with coordinates that move in turn, by tables that lie in the place of the matrix."""

    links = ("shared",)
    sizes = {4: (2, 2), 6: (2, 3), 8: (2, 2, 2), 9: (3, 3)}

    def tables(self, f):
        size = len(f.pair)
        sizes = self.sizes.get(size, (size,))
        shapes = [(size // n, n, n) for n in reversed(sizes)]
        lengths = [math.prod(shape) for shape in shapes]
        parts = f.pair.flatten().split([*lengths, f.pair.numel() - sum(lengths)])
        return sizes, [part.view(shape) for part, shape in zip(parts, shapes, strict=False)]

    def dense(self, f):
        sizes, tables = self.tables(f)
        states, total = torch.cartesian_prod(*map(torch.arange, sizes)).view(-1, len(sizes)), 0.0
        before, after = torch.broadcast_tensors(states.unsqueeze(1), states)
        for own, table in zip(reversed(range(len(sizes))), tables, strict=True):
            block = torch.zeros(before.shape[:2], dtype=torch.long)  # of coordinates that have yet to move, and that have moved
            for k, size in enumerate(sizes):
                block = block if k == own else block * size + (before if k < own else after)[..., k]
            total = total + table[block, before[..., own], after[..., own]]
        return f._replace(pair=total)

    def given(self, f):
        return in_rows(f, product_steps.ProductSteps(*self.tables(f)))

    def log_prob(self, f):
        return product_steps.product_log_prob(*self.given(f)).log_prob.view(f.rows)

    def answers(self, f):
        init, steps, emit, valid = self.given(f)
        result, weight = product_steps.forward_pass(init, steps, emit, valid), weights(f).flatten()
        states, moves = product_steps.smooth(steps, emit, result, valid, weight)
        paths, best = product_steps.k_best_pass(init, steps, emit, valid, 1)
        entropy, pairs = product_steps.entropy(steps, emit, result, valid), torch.zeros_like(f.pair).flatten()
        counts = torch.cat([part.flatten() for part in moves])
        pairs[: len(counts)] = counts
        return {
            "log_prob": result.log_prob.view(f.rows), "steps": result.step_log_prob.view(-1, *f.rows),
            "filtered": result.filtered.reshape(f.emit.shape), "states": states.reshape(f.emit.shape),
            "pairs": pairs.view_as(f.pair), "best": best.view(f.rows), "path": paths.view(-1, *f.rows),
            "entropy": (entropy * weight).sum(),
        }  # fmt: skip


@needs_numba
class TestParameterSets(ChainRecursion):
    """Of many at once; those of the case are the second of two. Each row has entries of its own, and so counts of its own."""

    links = ("shared", "a matrix a step")
    differentiable = False

    def answers(self, f):
        (num_steps, *_, num_states), num_rows = f.emit.shape, f.rows.numel()
        lengths = torch.full((num_rows,), num_steps) if f.valid is None else f.valid.flatten(1).sum(0)
        found = {f"d {name}": torch.zeros_like(getattr(f, name)) for name in ("init", "pair", "emit")}
        found |= {"log_prob": torch.zeros(f.rows).to(f.emit), "states": torch.zeros_like(f.emit)}
        some = lengths > 0
        if not bool(some.any()):
            return found
        own, steps = torch.arange(int(some.sum())), torch.arange(num_steps)
        of_step = own.unsqueeze(-1) + len(own) * steps
        where = Lattice(lengths[some], own, own.unsqueeze(-1).expand_as(of_step) if f.shared else None, of_step)
        init = f.init.expand(f.emit.shape[1:]).reshape(-1, num_states)[some].T
        if f.shared:
            pair = f.pair.unsqueeze(-1).expand(-1, -1, len(own))
        else:
            pair = torch.cat([f.emit.new_zeros(1, *f.rows, num_states, num_states), f.pair]).flatten(1, -3)[:, some]
            pair = where.pack(pair.transpose(0, 1)).permute(1, 2, 0)
        emit = f.emit.flatten(1, -2)[:, some].flatten(0, 1).T
        tables = [torch.stack([torch.zeros_like(table), table], -1) for table in (init, pair, emit)]
        value, *counts = expectation(*tables, where)
        torch.testing.assert_close(log_prob(*tables, where), value)
        start, pairs, visits = (part[..., 1].movedim(-1, 0) for part in counts)
        weight = weights(f).flatten()[some].unsqueeze(-1)
        found["log_prob"].view(-1)[some] = value[:, 1]
        found["states"].view(num_steps, num_rows, -1)[:, some] = visits.view(num_steps, -1, num_states)
        found["d emit"] = found["states"] * weights(f).unsqueeze(-1)
        every = f.init.new_zeros(num_rows, num_states)
        every[some] = start * weight
        found["d init"] = every.view(f.emit.shape[1:]).sum_to_size(f.init.shape)
        if f.shared:
            found["d pair"] = (pairs * weight.unsqueeze(-1)).sum(0)
        elif num_steps > 1:
            at = where.mask.nonzero()  # step and sorted row of each entry
            row = some.nonzero()[:, 0][where.order[at[:, 1]]]
            into, late = found["d pair"].view(num_steps - 1, num_rows, num_states, num_states), at[:, 0] > 0
            into[at[late, 0] - 1, row[late]] = (pairs * weights(f).flatten()[row].view(-1, 1, 1))[late]
        return found


class TestParameterSetsTogether(TestParameterSets):
    @pytest.fixture(autouse=True)
    def operations(self):
        with compiled.twins_only():
            yield


class TestParameterSetsOfManyEntries(TestParameterSetsTogether):
    links = ("shared",)

    @pytest.fixture(autouse=True)
    def many(self, monkeypatch):
        monkeypatch.setattr(restart_scan, "FEW", 1)
