"""Kernels for GPUs against their twins, values and gradients: in Triton's interpreter, and on a GPU with ``-m gpu``."""

import json
import math
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from pplseq.kernels import path_scan, product_steps, scan
from pplseq.kernels.triton import chain, launch, pair_chain, pairs, paths, shared
from pplseq.models import VLHMM

pytest.importorskip("triton")
F64 = torch.float64
close = torch.testing.assert_close


GPU = pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")])


@pytest.fixture(params=["interpreted", GPU])
def kernels(request):
    """Where kernels run: inside of this context; on a GPU all that a test makes is there."""
    if request.param == "interpreted":
        yield launch.interpreted
        return
    torch.set_default_device("cuda")
    yield nullcontext
    torch.set_default_device(None)


@pytest.fixture(params=["twin", "kernel"])
def place(request, kernels):
    """Where the tested functions run: torch operations, or the kernels."""
    return launch.twins_only if request.param == "twin" else kernels


def gradients(value, leaves):
    weight = torch.linspace(0.5, 2, value.numel(), dtype=value.dtype).view_as(value)
    found = torch.autograd.grad((value * weight).sum(), leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


def factors(kind, steps, states, rows=3, dtype=F64):
    """(init, matrices, emit, valid, shared, restart, restart_to) of a chain, with closed states and impossible words."""
    shape = {"a step": (steps - 1, rows, states, states), "shared": (states, states), "a row": (rows, states, states)}[kind]
    init, log = torch.randn(rows, states, dtype=dtype), torch.randn(shape, dtype=dtype)
    emit = torch.randn(steps, rows, states, dtype=dtype)
    if states > 1:
        log[..., 0, 1], emit[0, 0, 0] = -math.inf, -math.inf
    lengths = torch.tensor([steps, 1, max(1, steps // 2)] * (rows // 3))
    restart = restart_to = None
    if kind == "shared" and rows == 3:
        restart, restart_to = torch.rand(steps, rows) < 0.3, torch.randn(states, dtype=dtype).log_softmax(-1)
    return init, log, emit, torch.arange(steps).unsqueeze(-1) < lengths, kind != "a step", restart, restart_to


CHAINS = [("a step", 5, 4), ("a row", 4, 3), ("shared", 5, 5), ("shared", 2, 1), ("a step", 3, 1)]


@pytest.mark.parametrize("kind, steps, states", CHAINS, ids=str)
def test_chains(place, kind, steps, states):
    given = init, log, emit, valid, shared_, restart, restart_to = factors(kind, steps, states)
    leaves = [value.requires_grad_() for value in (init, log, emit, restart_to) if value is not None]
    with place():
        got = scan.chain_log_prob(*given)
        found = gradients(got.log_prob, leaves)
    log_prob, filtered, each = scan.forward_twin(*given)
    close(got.log_prob, log_prob)
    close(got.step_log_prob, each)
    close(got.filtered.exp()[valid], filtered.exp()[valid])
    close(found, gradients(log_prob, leaves))


@pytest.mark.parametrize("kind, steps, states", CHAINS, ids=str)
def test_paths(place, kind, steps, states):
    init, log, emit, valid, shared_, restart, restart_to = factors(kind, steps, states)
    matrices = scan.StepMatrices(log, shared_, restart, restart_to)
    wanted = path_scan.viterbi_in_torch(init, scan.StepMatrices(log, shared_, restart, restart_to), emit, valid)
    filtered = scan.forward_twin(init, log, emit, valid, shared_, restart, restart_to)[1]
    with place():
        path, log_prob = path_scan.viterbi_pass(init, matrices, emit, valid)
        drawn = path_scan.sample_pass(matrices, filtered, valid, 2)
    close(log_prob, wanted[1])
    assert (path == wanted[0])[valid].all()
    start = init.log_softmax(-1)
    for sample in drawn:  # every one is possible
        terms = [emit[t].gather(-1, sample[t].unsqueeze(-1)).squeeze(-1).where(valid[t], 0.0) for t in range(steps)]
        assert (sum(terms) + start.gather(-1, sample[0].unsqueeze(-1)).squeeze(-1) > -math.inf).all()


def test_samples_are_those_of_the_uniform_numbers(kernels):
    init, log, emit, valid, *_ = factors("a step", 4, 5)
    filtered = scan.forward_twin(init, log, emit, valid, False, None, None)[1]
    uniform = torch.rand(3, 4, 3, dtype=F64)
    number = torch.arange(-3, 9).view(4, 3).clamp_min(0)
    with kernels():
        got = paths.drawn_paths(log.flatten(0, 1), number, filtered, chain.flags_of(valid, None, emit), None, uniform)
    state = torch.zeros(3, 3, dtype=torch.long)
    for t in range(3, -1, -1):
        value = filtered[t].expand(3, 3, 5)
        if t < 3:
            value = value + path_scan.take_columns(log[t], state)
        below = value.softmax(-1).cumsum(-1)
        new = (below <= uniform[:, t].unsqueeze(-1) * below[..., -1:]).sum(-1)
        state = new if t == 3 else torch.where(valid[t + 1], new, state)
        assert (got[:, t] == state).all()


@pytest.mark.parametrize("peaked", [False, True])
def test_dense_scans(kernels, monkeypatch, peaked):
    """By products of matrices; rows that lose digits are done again in log space."""
    monkeypatch.setattr(shared, "LEAST_STATES", 4)
    given = init, log, emit, valid, *_ = factors("shared", 4, 5, rows=18, dtype=torch.float32)
    if peaked:
        emit[1:, 3] *= 300
        log[:, 2] -= 200
    leaves = [value.requires_grad_() for value in (init, log, emit)]
    wanted, filtered, each = scan.forward_twin(*given)
    with kernels():
        got = scan.chain_log_prob(*given)
        found = gradients(got.log_prob, leaves)
    close(got.log_prob, wanted, rtol=1e-4, atol=1e-4)
    close(got.filtered[valid], filtered[valid], rtol=1e-4, atol=1e-4)
    close(found, gradients(wanted, leaves), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "steps, blocks, width, features", [(5, 4, 5, 6), (2, 1, 1, 1), pytest.param(3, 3, 17, 3, marks=pytest.mark.slow)]
)
def test_pairs_of_blocks(kernels, steps, blocks, width, features):
    out, into = (torch.randn(blocks, width, features, dtype=F64, requires_grad=True) for _ in range(2))
    gate = torch.randn(steps - 1, 3, width, dtype=F64, requires_grad=True)
    init = torch.randn(3, width, dtype=F64, requires_grad=True)
    emit = torch.randn(steps, 3, width, dtype=F64, requires_grad=True)
    begin = torch.randn(steps, 3, width, dtype=F64, requires_grad=True)
    block = torch.randint(blocks, (steps, 3))
    valid, restart = torch.arange(steps).unsqueeze(-1) < torch.tensor([steps, 1, 2]), torch.rand(steps, 3) < 0.3
    filled = torch.arange(width) < torch.tensor([width, 1, 2, width][:blocks]).clamp(max=width).unsqueeze(-1)
    leaves = [out, into, gate, init, emit, begin]
    more = dict(filled=filled, valid=valid, restart=restart, restart_to=begin)
    with kernels():
        got = pair_chain.chain_log_prob(out, into, gate, init, emit, block, **more)
        found = gradients(got.log_prob, leaves)
        again = gradients(torch.autograd.grad(got.log_prob.sum(), emit, create_graph=True)[0][0], leaves)
    scores = (out[block[:-1]] @ into[block[1:]].transpose(-1, -2)).masked_fill(~filled[block[1:]].unsqueeze(-2), -math.inf)
    matrices = scores.log_softmax(-1) + gate.unsqueeze(-1)
    matrices = torch.where(restart[1:, :, None, None], begin[1:].unsqueeze(-2), matrices)
    wanted, _, each = scan.forward_twin(init, matrices, emit, valid, False, None, None)
    close(got.log_prob, wanted)
    close(got.step_log_prob, each)
    close(found, gradients(wanted, leaves))
    close(again, gradients(torch.autograd.grad(wanted.sum(), emit, create_graph=True)[0][0], leaves))


TOPICS = {"transition": "hierarchical", "num_topics": 3}
UNEVEN = {"states_per_block": [3, 4, 1]}


@pytest.mark.parametrize(
    "options",
    [{"transition": "softmax"} | UNEVEN, {"transition": "hierarchical"} | UNEVEN, TOPICS,
     TOPICS | {"transition": "softmax"}, TOPICS | {"reset_id": None}], ids=str,
)
def test_a_model_finds_its_kernels(kernels, options):
    """Loss and gradients of two training steps, with resets, dropout, uneven blocks, topics and a carried belief."""
    results = []
    for place in (launch.twins_only, kernels):
        torch.manual_seed(1)
        model = VLHMM(8, num_words=6, blocks=[0, 1, 1, 3, 2, 2] if "num_topics" in options else [0, 1, 1, 0, 2, 2], **{
            "hidden_size": 4, "init_scale": 1.0, "reset_id": 3, "state_dropout": 0.4} | options).double().train()  # fmt: skip
        model = model.to(torch.get_default_device())
        text, lengths, start = torch.randint(6, (2, 14)), torch.tensor([7, 4]), None
        text[0, 3] = text[1, 1] = 3
        found = []
        with place():
            for x in text.split(7, 1):
                chain = model._direct_chain(x, lengths, start)
                loss, start = -chain.log_prob().sum(), chain.filtered().detach()
                loss.backward()
                found += [loss.detach(), start.dense(model.num_states), chain.token_log_probs().detach()]
        results.append([*found, *(p.grad for p in model.parameters() if p.grad is not None)])
    close(results[1], results[0])


@pytest.mark.parametrize("dtype, spread", [(F64, 1.0), (torch.float32, 1.0), (torch.float32, 80.0)], ids=str)
@pytest.mark.parametrize("sizes", [(2, 3), (3, 1, 2), (1, 1), (19, 4)], ids=str)
def test_chains_of_products(kernels, monkeypatch, sizes, dtype, spread):
    """Also where products of probabilities underflow, and of moves that are impossible; rows of several lengths."""
    torch.manual_seed(0)
    tables, states = [], math.prod(sizes)
    for size in sizes[::-1]:
        log = spread * torch.randn(states // size, size, size, dtype=dtype)
        log[0, 0, 1:] = log[-1, :-1, -1] = -math.inf
        tables.append(log.log_softmax(-1).requires_grad_())
    init, emit = torch.randn(20, states, dtype=dtype).log_softmax(-1), spread * torch.randn(4, 20, states, dtype=dtype)
    emit[0, 0, 0] = emit[2, 1] = -math.inf
    emit.requires_grad_()
    steps, valid = product_steps.ProductSteps(sizes, tables), torch.arange(4).unsqueeze(-1) < torch.arange(20) % 4 + 1
    results = []
    for place in (launch.twins_only, kernels):
        with place():
            if place is not launch.twins_only:
                monkeypatch.setattr(product_steps.ProductSteps, "times", None)  # nobody makes products of probabilities
            found = product_steps.product_log_prob(init, steps, emit, valid)
            grads = gradients(found.log_prob[2:], [emit, *tables])
            with torch.no_grad():
                short = product_steps.forward_pass(init, steps, emit, valid, messages=False).log_prob
                forward = product_steps.forward_pass(init, steps, emit, valid)
                entropy = product_steps.entropy(steps, emit, forward, valid)[2:]  # of rows that are possible
                ahead, filtered = steps.backward(emit[1].T), forward.messages
                torch.manual_seed(1)
                drawn = product_steps.sample_pass(steps, filtered[:, 2:], valid[:, 2:], 2).to(dtype) if dtype == F64 else init
            results.append([found.log_prob.detach(), *grads, short, filtered.exp(), ahead, entropy, drawn])
    # the largest of what a sum of a row adds up is the size of what it rounds
    rtol = 1e-9 if dtype == F64 else 3e-5
    for got, expected in zip(results[1], results[0], strict=True):
        close(got, expected, rtol=rtol, atol=rtol * float(expected.abs().nan_to_num(0, 0, 0).max()))


@pytest.mark.slow
def test_operators_say_what_they_return(kernels):
    """So that torch.compile and CUDA graphs can plan with them."""
    init, log, emit, valid, *_ = factors("a step", 3, 4)
    table, number, flags = log.flatten(0, 1), torch.zeros(3, 3, dtype=torch.long), chain.flags_of(valid, None, emit)
    a, rows = torch.randn(2, 3, 4, dtype=F64), torch.arange(2)
    tokens = torch.randn(6, 4, dtype=F64)
    order, first = chain.by_matrix(number[1:], valid[1:], len(table))
    calls = [
        (chain.filtered, (init, table, number, None, emit, flags, None)), (chain.look_back, (table, number, None, emit, flags)),
        (chain.pair_counts, (table, order, first, tokens, tokens, tokens[:, 0], tokens[:, 1])),
        (paths.best_paths, (init, table, number, emit, flags, None)), (shared.filtered, (init, log[0, 0], emit, flags)),
        (paths.drawn_paths, (table, number, emit, flags, None, torch.rand(2, 3, 3, dtype=F64))),
        (shared.look_back, (log[0, 0], emit, flags)), (pairs.log_matrices, (a, a, rows, rows, None, torch.tensor(2))),
    ]  # fmt: skip
    with kernels():
        for operator, args in calls:
            torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.slow
def test_compiled_kernels_fit(tmp_path):
    """No number is spilled from registers, and shared memory is what the GPU has: for sm_80 and sm_90, without one."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}  # and in a process that has interpreted nothing
    script = [sys.executable, "-W", "error", str(Path(__file__).parents[2] / "scripts" / "bench" / "triton_figures.py")]
    run = subprocess.run(script, env=environment, capture_output=True, text=True)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, [line for line in found if not line["fits"]] or run.stderr
    assert len(found) == 2 * (3 * 12 + 3)
    rough = [line for line in found if line["precision"] == "tf32" or line["dtype"] == "bfloat16"]
    for line in rough:
        products = line["kernel"].startswith(("pair matrices", "pair gradient", "move of"))
        assert not products or line["tensor_products"] > 0, line
    large = subprocess.run([*script, "--too-large"], env=environment, capture_output=True, text=True)
    assert large.returncode == 1 and not json.loads(large.stdout)["fits"]
