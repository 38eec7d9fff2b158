"""Faults planted one at a time, each of which some test must notice: whether the tests have power.

    python scripts/mutants.py                 # all; ends with 1 where one survives
    python scripts/mutants.py --only kalman   # those whose name holds a text
    python scripts/mutants.py --list

A thinning of the tests stands when nothing survives that died before. Every fault is planted in a copy of the project and meets
the tests that are named beside it, those that guard the place.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    """What is wrong, where, and who should notice: ``old`` stands once in the file, and ``new`` in its place is a fault."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


EMISSIONS = "tests/models/parts/test_emissions.py"
WAYS = "tests/models/test_ways.py"
CONTRACT = "tests/models/test_contract.py"

MUTANTS = [
    # ---- kernels
    Mutant(
        "scan: the wrong state's row maximum", "pplseq/kernels/scan.py",
        "        score = message + row_max\n        top = score.amax(-1, keepdim=True)", "        score = message\n        top = score.amax(-1, keepdim=True)",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "best path: the last step decides nothing", "pplseq/kernels/path_scan.py",
        "        best = best + emit[t]\n", "        best = best + emit[t] * (t + 1 < emit.shape[0])\n",
        ("tests/kernels/test_time_scan.py", "tests/kernels/test_scan.py", "tests/infer/discrete/test_chain.py"),
    ),
    Mutant(
        "k best paths: a row without steps has as many as states", "pplseq/kernels/path_scan.py",
        "        first = first.where(valid[0].unsqueeze(-1), nothing)\n", "",
        ("tests/kernels/test_time_scan.py", "tests/kernels/test_scan.py", "tests/infer/discrete/test_chain.py"),
    ),
    Mutant(
        "sampled paths: padded steps are drawn too", "pplseq/kernels/path_scan.py",
        "        position = new if valid is None else torch.where(valid[t], new, position)\n", "        position = new\n",
        ("tests/kernels/test_time_scan.py", "tests/kernels/test_scan.py", "tests/infer/discrete/test_chain.py"),
    ),
    Mutant(
        "contexts: what becomes too small counts as impossible", "pplseq/kernels/contexts/loops.py",
        "                    if value < LOWEST and new[z] > 0.0 and emit[t, n, z] != -np.inf:\n", "                    if False:\n",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "contexts: an emission that is no number is not looked at", "pplseq/kernels/contexts/loops.py",
        "            if value != value:\n                return 0, np.nan\n", "",
        ("tests/kernels/test_contexts.py",),
    ),
    Mutant(
        "contexts: every row weighs one in the gradient", "pplseq/kernels/contexts/loops.py",
        "share = weight[n] * own / both", "share = own / both",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "contexts: symbols that a word forbids move too", "pplseq/kernels/contexts/reference.py",
        ".masked_fill(along >= number[rows].unsqueeze(-1), -math.inf)", "",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "contexts: the gradient of an impossible row is no number", "pplseq/kernels/contexts/reference.py",
        "posterior = state_posterior(filtered, beta, valid)", "posterior = torch.softmax(filtered + beta, -1)",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "products: moves of padded steps count", "pplseq/kernels/product_steps.py",
        "log_weight.isinf() | ~valid[t + 1]", "log_weight.isinf()",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "kalman in parallel: what is said behind a stretch counts in full", "pplseq/kernels/parallel/kalman_scan.py",
        "symmetric(a.mT @ next_j @ passed) + j", "symmetric(a.mT @ next_j @ a) + j",
        ("tests/infer/gaussian/test_gaussian_recursions.py",),
    ),
    Mutant(
        "contexts: the k best paths take a move once", "pplseq/kernels/contexts/reference.py",
        "        rank[winner] += 1\n", "        rank[winner] += k\n",
        ("tests/kernels/test_contexts.py",),
    ),
    Mutant(
        "chain loops: pairs of all steps are those of the first matrix", "pplseq/kernels/chain/loops.py",
        "num_states, pairs, moves[n, begin + k])", "num_states, pairs, 0)",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "threads: Ctrl-C leaves products rounded", "pplseq/threads.py",
        "        if precisions and not self.is_within and LOCK.acquire(blocking=False):", "        if False:",
        ("tests/models/test_threads.py",),
    ),
    Mutant(
        "threads: a block that is ended late puts a precision back that was put back", "pplseq/kernels/precision.py",
        "        if backend in threads.precisions:", "        if True:",
        ("tests/models/test_threads.py",),
    ),
    Mutant(
        "threads: a fork beside a training goes on rounding", "pplseq/threads.py",
        "        LOCK = threading.RLock()\n        _put_precisions_back()\n", "        LOCK = threading.RLock()\n",
        ("tests/models/test_threads.py",),
    ),
    Mutant(
        "topics: what lies behind the end of a segment is part of it", "pplseq/kernels/pair_scan.py",
        "new = torch.where(restart[t][:, None, None], 1.0, new)", "new = new",
        ("tests/kernels/test_pair_scan.py",),
    ),
    Mutant(
        "topics: scaled by the largest of all", "pplseq/kernels/pair_scan.py",
        "    top = logs.amax(-1)\n", "    top = logs.amax((-2, -1)).unsqueeze(-1).expand(logs.shape[:-1])\n",
        ("tests/kernels/test_pair_scan.py",),
    ),
    Mutant(
        "topics: shuffled lines teach how long one is kept", "pplseq/models/vlhmm/program.py",
        "if self._is_learning and self._learns_lines_apart:", "if False:",
        ("tests/models/test_topics.py",),
    ),
    Mutant(
        "topics: the first block of a sentence is that of no topic", "pplseq/kernels/pair_scan.py",
        "            steps = steps + lift.where(restart.unsqueeze(-1), 0.0)\n", "            pass\n",
        ("tests/models/test_topics.py",),
    ),
    Mutant(
        "topics: those that are known close nothing", "pplseq/distributions/topics.py",
        "        lifts = lifts.masked_fill(others, -math.inf)\n", "",
        ("tests/models/test_topics.py",),
    ),
    Mutant(
        "topics: one softmax over states sums those that are left out", "pplseq/distributions/topics.py",
        "        if torch.is_grad_enabled() or not self.layout.complete:\n            return self._sums(leaving)\n", "",
        ("tests/models/test_topics.py",),
    ),
    Mutant(
        "topics: labelled parts are clustered like all others", "pplseq/models/vlhmm/topics.py",
        "        posterior = torch.where(known.unsqueeze(-1) > 0, told, found)\n", "        posterior = found\n",
        ("tests/models/test_topics.py",),
    ),
    Mutant(
        "topics: next words behind the end of a sentence go on with it", "pplseq/distributions/topics.py",
        "belief.ids[:, :1, None, None]) == self.end_block", "belief.ids[:, :1, None, None]) < 0",
        ("tests/models/test_topics.py", "tests/report/test_transitions.py"),
    ),
    Mutant(
        "parameter sets: sets that loops leave change places", "pplseq/kernels/restart_scan.py",
        "place = np.argsort(order + left)", "place = np.arange(num_sets)",
        ("tests/kernels/test_restart_scan.py", "tests/kernels/test_chain_recursions.py"),
    ),
    Mutant(
        "parameter sets: likelihoods never look back", "pplseq/kernels/restart_scan.py",
        "    if float(least) < _deepest(alpha.dtype):\n", "    if False:\n",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "chain loops: messages grow without bounds", "pplseq/kernels/chain/loops.py",
        "        if total < SMALL or total > LARGE:\n            log +=", "        if total < SMALL:\n            log +=",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "chain loops: what is too small to be used is impossible", "pplseq/kernels/loop_math.py",
        "np.int64(0) if x[j] == -np.inf else", "np.int64(0) if x[j] < SMALLEST else",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "chain pieces: matrices of the first piece again", "pplseq/kernels/chain/piece_loops.py",
        "    number = links.which + (begin + first) * links.stride", "    number = links.which + first * links.stride",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "chain loops: all rows start as the first one", "pplseq/kernels/chain/loops.py",
        "starts[n if len(starts) > 1 else 0, j] += single[j]", "starts[0, j] += single[j]",
        ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "covariance loops: tiles add what an observation takes away", "pplseq/kernels/gaussian/covariance_loops.py",
        "        add_times(turned(root, -1.0), root, h, filtered[node], True)", "        add_times(turned(root, 1.0), root, h, filtered[node], True)",
        ("tests/infer/gaussian/test_gaussian_recursions.py",),
    ),
    Mutant(
        "covariance loops: Joseph's form with a gain of the wrong sign", "pplseq/kernels/gaussian/covariance_loops.py",
        "rest[i, j] -= gain[node, i, k] * system.loadings[kind, k, j]", "rest[i, j] += gain[node, i, k] * system.loadings[kind, k, j]",
        ("tests/infer/gaussian/test_gaussian_recursions.py",),
    ),
    Mutant(
        "linear recursion: the gradient of a reverse one is that of a forward one", "pplseq/kernels/matrix_table.py",
        "(adjoint[:-1], states[1:]) if ctx.reverse else (adjoint[1:], states[:-1])", "(adjoint[1:], states[:-1])",
        ("tests/kernels/test_linear_recursion.py",),
    ),
    Mutant(
        "linear recursion: blocks too short to forget are warmed up all the same", "pplseq/kernels/linear_recursion.py",
        "    if 2 * past <= block:\n", "    if block:\n        past = min(past, block - 1)\n", ("tests/kernels/test_linear_recursion.py",),
    ),
    Mutant(
        "shared matrix: what lies behind the end of a row counts", "pplseq/kernels/shared_matrix.py",
        "                ops.keep(message, 1.0, padded[t])\n", "                pass\n", ("tests/kernels/test_chain_recursions.py",),
    ),
    Mutant(
        "shared matrix: totals of steps that are not rescaled count twice", "pplseq/kernels/shared_matrix.py",
        "    steps[1:] += matrix_top.squeeze() - log_total[:-1].where(carried.unsqueeze(-1), 0.0)", "    steps[1:] += matrix_top.squeeze()",
        ("tests/kernels/test_shared_matrix.py",),
    ),
    Mutant(
        "pairs: a gate's gradient leaves the others alone", "pplseq/kernels/pair_scan.py",
        ".mul_(total.neg_())", ".mul_(total.neg_() * 0)", ("tests/kernels/test_pair_scan.py",),
    ),
    # ---- infer
    Mutant(
        "kalman: half of the squares", "pplseq/infer/gaussian/chain.py",
        "result = known - squares / 2", "result = known - squares / 4",
        (WAYS,),
    ),
    Mutant(
        "kalman: unused steps count", "pplseq/infer/gaussian/chain.py",
        "return result if flat.used is None else torch.where(flat.used, result, 0.0)", "return result",
        ("tests/infer/gaussian/test_gaussian_recursions.py", WAYS),
    ),
    Mutant(
        "closed forms: a Dirichlet mode by its mean", "pplseq/infer/fit/closed_forms.py",
        "weight = counts if concentration is None else counts + (concentration - 1.0)",
        "weight = counts if concentration is None else counts + concentration",
        ("tests/infer/fit/test_em.py", "tests/models/hmm/test_hmm_fit.py", "tests/models/iohmm/test_iohmm_em.py"),
    ),
    Mutant(
        "closed forms: the count of a Gaussian's prior", "pplseq/infer/fit/closed_forms.py",
        "count = weight + 1 + 2 * (prior.shape - 1) if prior else weight\n", "count = weight + 1 if prior else weight\n",
        ("tests/infer/fit/test_em.py", "tests/models/hmm/test_hmm_fit.py"),
    ),
    Mutant(
        "marked sites: one scale for another", "pplseq/infer/programs/factors/elimination.py",
        "        scale = other if scale is None else scale\n    return 1.0", "        scale = scale\n    return 1.0",
        ("tests/infer/programs/factors",),
    ),
    Mutant(
        "time index: what comes before it ends where it does", "pplseq/infer/programs/time_index.py",
        "            return TimeIndex(self.start + shift, self.stop + shift)", "            return TimeIndex(self.start + shift, self.stop)",
        ("tests/infer/programs/test_time.py", "tests/infer/programs/test_markov.py", "tests/models/test_program_contract.py"),
    ),
    Mutant(
        "kalman programs: an observation's offset is forgotten", "pplseq/infer/programs/kalman_collapse.py",
        "emission.residual(value, read.offset)", "emission.residual(value, None)", ("tests/infer/programs/test_kalman_programs.py",),
    ),
    Mutant(
        "kalman programs: a mask of observations is forgotten", "pplseq/infer/programs/kalman_collapse.py",
        'Observation(msg["name"], emission, value, msg["mask"], event, fn, read.offset)',
        'Observation(msg["name"], emission, value, None, event, fn, read.offset)',
        ("tests/infer/programs/test_kalman_collapse.py",),
    ),
    # ---- parts
    Mutant(
        "parts: zeros of a hurdle are the base's", "pplseq/models/parts/zeros.py",
        "counts[..., 0] = above * unseen if hurdle else", "counts[..., 0] = above * 0 if hurdle else", (EMISSIONS,),
    ),
    Mutant(
        "parts: the gate has all zeros", "pplseq/models/parts/zeros.py",
        "return made.gate / (made.gate + (1 - made.gate) * none)", "return torch.ones_like(made.gate + none)", (EMISSIONS,),
    ),
    Mutant(
        "parts: exposures do not count in the M-step", "pplseq/models/parts/families.py",
        'p.get("exposure", weight.new_ones(()))', "weight.new_ones(())", (EMISSIONS,),
    ),
    Mutant(
        "parts: forecasts forget exposures to come", "pplseq/models/hmm/program.py",
        "self._observations_of(states, emission, known)", "self._observations_of(states, emission)", (EMISSIONS,),
    ),
    Mutant(
        "parts: a regression counts by no size", "pplseq/models/iohmm/restarts/responses.py",
        "visits * size)", "visits)", (EMISSIONS,),
    ),
    Mutant(
        "parts: a link's mean beside another column's", "pplseq/distributions/columns.py",
        "return [[first[c] + level for c in columns", "return [[first[0] + level for c in columns", (EMISSIONS,),
    ),
    # ---- models, what all share
    Mutant(
        "forms: a frame's columns are not put in order", "pplseq/models/forms.py",
        "    return frame[[columns[there.index(each)] for each in names]]", "    return frame[[column for column in columns if column in names]]",
        ("tests/models/test_forms.py", "tests/models/hmm/test_column_names.py"),
    ),
    Mutant(
        "row labels: dates in no order pass", "pplseq/models/row_labels.py",
        "    if not index.is_monotonic_increasing:", "    if False:", ("tests/models/test_row_labels.py",),
    ),
    Mutant(
        "batch: lists come back one step too long", "pplseq/models/batch.py",
        "return [row[: len(sequence)] for", "return [row[: len(sequence) + 1] for", (CONTRACT, "tests/models/test_forms.py"),
    ),
    Mutant(
        "fitting: the worse half of starts goes on", "pplseq/models/fitting.py",
        "key=values.__getitem__, reverse=True)", "key=values.__getitem__)",
        ("tests/models/test_fitting.py",),
    ),
    Mutant(
        "fitting: the last of several fits is kept", "pplseq/models/fitting.py",
        "    _, history, best = max(found, key=lambda one: one[0])", "    _, history, best = found[-1]",
        ("tests/models/test_fitting.py", "tests/models/regressions"),
    ),
    Mutant(
        "answers: a gap may be the end word", "pplseq/recipes/text/questions.py",
        "        if ended:\n            refused.append(vocabulary.eos_id)\n", "",
        ("tests/cli/test_questions.py", "tests/cli/test_constrained_questions.py"),
    ),
    Mutant(
        "summary: intervals of one standard error", "pplseq/models/information.py",
        "half = math.sqrt(2) * torch.erfinv", "half = torch.erfinv",
        ("tests/models/test_information.py",),
    ),
    # ---- models, family by family
    Mutant(
        "hmm: gaps count as observed", "pplseq/models/hmm/rows.py",
        "    if bool((x.isnan() if x.is_floating_point() else x < 0).any()):", "    if False:", (WAYS,),
    ),
    Mutant(
        "hmm: a gap halves the likelihood", "pplseq/kernels/chain/table_loops.py",
        "    weights[num_words], shift[num_words] = 1.0, 0.0", "    weights[num_words], shift[num_words] = 0.5, 0.0", (WAYS,),
    ),
    Mutant(
        "hmm: rows go on behind their ends", "pplseq/kernels/chain/loops.py",
        "    return lengths[n] if len(lengths) else index.shape[1]", "    return index.shape[1]", (WAYS,),
    ),
    Mutant(
        "hmm: EM on arrays in spite of priors", "pplseq/models/hmm/by_loops.py",
        "        if self.priors is not None or self._buffers.get(\"_rows\") is not None:\n            return False\n", "", (WAYS,),
    ),
    Mutant(
        "hmm: ties forgotten in log_joint", "pplseq/models/hmm/by_loops.py",
        '        if self._buffers.get("_rows") is not None or not are_rows(batch):', "        if not are_rows(batch):",
        (WAYS,),
    ),
    Mutant(
        "semi-markov: the first regime's duration is not counted", "pplseq/models/parts/durations.py",
        "            lasted = entered.sum(0) if self.is_stationary else start + entered.sum(0)\n",
        "            lasted = entered.sum(0)\n",
        ("tests/models/hmm/test_durations.py",),
    ),
    Mutant(
        "captured steps: the carried belief is that of the capture", "pplseq/runs/captured.py",
        "            if own is not None:\n                own.copy_(value)\n", "            pass\n", ("tests/runs/test_captured.py",),
    ),
    Mutant(
        "captured steps: what was drawn for the comparison is not drawn again", "pplseq/runs/captured.py",
        "        expected = self._aside(*own)\n        checkpoint.restore_random_states(before, self.device)\n",
        "        expected = self._aside(*own)\n", ("tests/runs/test_captured.py",),
    ),
    Mutant(
        "gradients: scales have no floor", "pplseq/infer/fit/gradients.py",
        "if not is_kept and beyond(moved, ends):", "if False:", ("tests/models/test_repeated_numbers.py",),
    ),
    Mutant(
        "switching: regimes that last are not pooled", "pplseq/models/regressions/fit.py",
        "moments, weight = (statistics[name].double().unflatten(0, (-1, each)).sum(1) for name in",
        "moments, weight = (statistics[name].double().unflatten(0, (-1, each))[:, 0] for name in",
        ("tests/models/regressions/test_durations.py",),
    ),
    Mutant(
        "lds: a score by token is one by row", "pplseq/models/lds/by_loops.py",
        "return value / (asked[1].num_steps if per_token else 1)", "return value / (x.shape[0] if per_token else 1)", (WAYS,),
    ),
    Mutant(
        "lds: offset moments of EM dropped", "pplseq/models/lds/by_loops.py",
        "np.column_stack([m.error_state, m.error_sum]) if seen", "np.column_stack([m.error_state, 0 * m.error_sum]) if seen", (WAYS,),
    ),
    Mutant(
        "lds: what is missing counts as what is seen in EM", "pplseq/kernels/gaussian/systems.py",
        "seen_second = seen_second - spreads[kind]", "pass",
        ("tests/models/lds/test_by_loops.py",),
    ),
    Mutant(
        "lds: rows begin a step behind their end in the smoother", "pplseq/kernels/gaussian/mean_loops.py",
        "while width < most and ends[width] > t:", "while width < most and ends[width] >= t:",
        ("tests/models/lds/test_by_loops.py",),
    ),
    Mutant(
        "lds: a forecast without noise of the state", "pplseq/models/lds/queries.py",
        "covariance = symmetric(matrix @ covariance @ matrix.mT + shocks)", "covariance = symmetric(matrix @ covariance @ matrix.mT)",
        (CONTRACT,),
    ),
    Mutant(
        "lds: intervals of another level", "pplseq/infer/forecasts.py",
        "half = half * 2**0.5 * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))",
        "half = half * 2**0.5 * float(torch.erfinv(torch.tensor(0.9, dtype=torch.float64)))",
        ("tests/models/test_intervals.py",),
    ),
    Mutant(
        "left out: the steps behind say nothing of a variance", "pplseq/infer/gaussian/left_out.py",
        " + (gain * (spread @ gain)).sum(-2)\n", "\n",
        ("tests/models/lds/test_outliers.py",),
    ),
    Mutant(
        "left out: a diffuse start is known beforehand", "pplseq/infer/gaussian/diffuse.py",
        "        precision = proper - (added @ known.covariance * added).sum(-1)\n", "        precision = proper\n",
        ("tests/models/lds/test_outliers.py",),
    ),
    Mutant(
        "outliers: one number is tested", "pplseq/models/lds/outliers.py",
        "level / max(1, self.number) / 2", "level / 2",
        ("tests/models/lds/test_outliers.py",),
    ),
    Mutant(
        "outliers: one search", "pplseq/models/lds/outliers.py",
        "        rows = (most > 1).nonzero().flatten()\n", "        rows = (most < 0).nonzero().flatten()\n",
        ("tests/models/lds/test_outliers.py",),
    ),
    Mutant(
        "outliers: what was taken out stays out", "pplseq/models/lds/outliers.py",
        "            rows = places[size < SURELY * self.bound, 0].unique()\n", "            rows = places[:0, 0]\n",
        ("tests/models/lds/test_outliers.py",),
    ),
    Mutant(
        "diagnostics: sums of lags without their weights", "pplseq/models/diagnostics/residuals.py",
        "** 2 / (count - lag)", "** 2 / count", ("tests/models/test_diagnostics.py",),
    ),
    Mutant(
        "diagnostics: a residual knows its own step", "pplseq/models/diagnostics/residuals.py",
        "chain.predicted_states()", "chain.filtered_states()", ("tests/models/test_diagnostics.py",),
    ),
    Mutant(
        "compare: blocks of time are fitted with what they score", "pplseq/models/diagnostics/comparison.py",
        "cut(batch, slice(None), first), cut", "cut(batch, slice(None), last), cut", ("tests/models/test_diagnostics.py",),
    ),
    Mutant(
        "iohmm: a restart that fell keeps the worse parameters", "pplseq/models/iohmm/restarts/em.py",
        "                put(self.parameters, where, take(before.parameters, where))\n", "", ("tests/models/iohmm/test_iohmm_em.py",),
    ),
    Mutant(
        "iohmm: the prior of a start does not fade", "pplseq/models/iohmm/restarts/em.py",
        "(1 - iteration / over.clamp_min(1)).clamp_min(0), 1.0)", "1.0, 1.0)", ("tests/models/iohmm/test_iohmm_em.py",),
    ),
    Mutant(
        "structural: criteria of another start", "pplseq/models/structural/program.py",
        "count = self.num_free_parameters + len(batch.x) * wandering", "count = self.num_free_parameters", ("tests/models/structural",),
    ),
    Mutant(
        "props: the guard gives nothing back", "pplseq/models/props/guard.py",
        "self.weight = max(self.least, (1 - self.back) * min(share, 1.0))", "self.weight = max(self.least, min(share, 1.0))",
        ("tests/models/props/test_guard.py",),
    ),
    Mutant(
        "props: a batch averages what nobody has learned yet", "pplseq/models/props/online_batch.py",
        "return torch.where(weight > 0, sums / weight.clamp_min(1e-300), now)", "return sums / weight.clamp_min(1e-300)",
        ("tests/models/props/test_online_batch.py",),
    ),
    Mutant(
        "props: online counts without their gain", "pplseq/models/props/online_em.py",
        "            rho[moves:fixed].reshape(-1)[:: num_states + 1] += gain", "            rho[moves:fixed].reshape(-1)[:: num_states + 1] += 1.0",
        ("tests/models/props/test_online_em.py",),
    ),
    Mutant(
        "tagger: probabilities of the n best are not normalised", "pplseq/models/taggers/probabilistic.py",
        "value - total) for path, value in found", "value) for path, value in found", ("tests/models/taggers/test_tagger_contract.py",),
    ),
    Mutant(
        "tagger: new words as probable as words seen once", "pplseq/models/taggers/hmm.py",
        "        new = ((totals == 1).sum() + 0.5) / (totals.sum() + 1)", "        new = ((totals == 1).sum() + 1.5) / (totals.sum() + 1)",
        ("tests/models/taggers/test_hmm_tagger.py",),
    ),
    Mutant(
        "tagger: interpolation leaves out the context", "pplseq/models/taggers/counts.py",
        "            probs = np.where(total > 0, (count + new * probs) / np.maximum(total, 1), probs)", "            probs = np.where(total > 0, count / np.maximum(total, 1), probs)",
        ("tests/models/taggers/test_tag_counts.py", "tests/models/taggers/test_hmm_tagger.py"),
    ),
    Mutant(
        "tagger: a word with one tag counts as ambiguous", "pplseq/models/taggers/scores.py",
        "if len(found) > 1))", "if len(found) > 0))", ("tests/models/taggers/test_tag_scores.py",),
    ),
    Mutant(
        "latent tagger: no pseudo-count of other tags", "pplseq/models/taggers/latent.py",
        "by_tag = (of_tag + overall) / (of_tag.sum(-1, keepdim=True) + 1)", "by_tag = of_tag / of_tag.sum(-1, keepdim=True)",
        ("tests/models/taggers/test_latent_tagger.py",),
    ),
    # ---- sources and baselines
    Mutant(
        "kneser-ney: one discount for all counts", "pplseq/baselines/kneser_ney.py",
        "[np.minimum(counts, 3)]", "[np.minimum(counts, 1)]", ("tests/baselines/test_kneser_ney.py",),
    ),
    Mutant(
        "kneser-ney: discounts of the wrong ratio", "pplseq/baselines/kneser_ney.py",
        "3 - 4 * y * n4 / n3)", "3 - 3 * y * n4 / n3)", ("tests/baselines/test_kneser_ney.py",),
    ),
    Mutant(
        "cache: the rest is shared by too few", "pplseq/sources/continuous_cache.py",
        "return self.smoothing / (size + self.smoothing) / self.num_words", "return self.smoothing / (size + self.smoothing) / (self.num_words - 1)",
        ("tests/sources/test_adaptive_sources.py",),
    ),
    Mutant(
        "mixture: weights move by another step", "pplseq/sources/mixture.py",
        "step = (self.num_steps + 1) ** -self.exponent", "step = self.num_steps ** -self.exponent", ("tests/sources/test_stream_sources.py",),
    ),
    # ---- data, runs, recipes, command
    Mutant(
        "vocabulary: the unknown word loses its counts", "pplseq/data/vocabulary.py",
        "special[unknown] = sum(counts.values()) - sum(count for _, count in ranked)", "special[unknown] = 0", ("tests/data/test_vocabulary.py",),
    ),
    Mutant(
        "vocabulary: rare words stay one count too long", "pplseq/data/vocabulary.py",
        "if count >= min_count or word == unknown}", "if count >= min_count - 1 or word == unknown}", ("tests/data/test_vocabulary.py", "tests/data/test_text.py"),
    ),
    Mutant(
        "batches: every epoch in the same order", "pplseq/data/batches.py",
        "np.random.default_rng([self.seed, epoch])", "np.random.default_rng([self.seed, 0])", ("tests/data/test_batches.py",),
    ),
    Mutant(
        "batches: an epoch that was resumed is not the next", "pplseq/data/batches.py",
        "self._epoch, self._position, self._resume_at = epoch, position, position", "self._epoch, self._position, self._resume_at = epoch, position, 0",
        ("tests/data/test_batches.py",),
    ),
    Mutant(
        "evaluation: a segment forgets the one before", "pplseq/runs/evaluation.py",
        "start=None if batch.is_first else belief)", "start=None)", ("tests/runs/test_evaluation.py",),
    ),
    Mutant(
        "evaluation: unknown words count as known", "pplseq/runs/evaluation.py",
        "else scores[text.tokens != text.vocabulary.unknown_id]", "else scores", ("tests/runs/test_evaluation.py",),
    ),
    Mutant(
        "command: the file wins over flags", "pplseq/cli/options.py",
        '    return {**from_file(ctx.params.get("config"), settings), **{name: ctx.params[name] for name in options}}',
        '    return {**{name: ctx.params[name] for name in options}, **from_file(ctx.params.get("config"), settings)}',
        ("tests/cli/test_train.py", "tests/cli/test_iohmm_command.py"),
    ),
]  # fmt: skip


def plant(mutant: Mutant, root: Path) -> None:
    """Puts the fault into the project at ``root``.

    Raises:
        ValueError: the text that it replaces does not stand there once.
    """
    path = root / mutant.file
    text = path.read_text()
    if (found := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.name}: expected {mutant.old!r} once in {mutant.file}, found {found} times")
    path.write_text(text.replace(mutant.old, mutant.new))


def dies(mutant: Mutant, root: Path = ROOT) -> bool:
    """Whether the tests beside the fault fail once it is planted, in a copy of the project."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        for part in ("pplseq", "tests", "scripts"):
            shutil.copytree(root / part, copy / part)
        shutil.copy(root / "pyproject.toml", copy)
        plant(mutant, copy)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if ended.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: the tests did not run:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.returncode == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name or file holds this")
    parser.add_argument("--list", action="store_true", help="names alone")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name or options.only in mutant.file]
    survived = []
    for mutant in chosen:
        if options.list:
            print(f"{mutant.file}: {mutant.name}")
            continue
        began = time.perf_counter()
        dead = dies(mutant)
        survived += [] if dead else [mutant.name]
        print(f"{'dies    ' if dead else 'SURVIVES'} {time.perf_counter() - began:5.0f} s  {mutant.name}", flush=True)
    if not options.list:
        print(f"{len(chosen) - len(survived)} of {len(chosen)} noticed")
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
