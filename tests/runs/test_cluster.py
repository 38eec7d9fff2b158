"""Sums over parts on the workers of a cluster: the numbers of one process, and what goes wrong by name."""

import copy
import operator
import os
import signal
import threading
import time
from functools import partial

import pytest
import torch

import pplseq
from pplseq.infer.fit.em import expectation_maximization
from pplseq.models.batch import split_rows
from pplseq.runs import cluster as clusters
from pplseq.runs.cluster import ClusterError, PartFailed, connected

pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("default")  # Dask's own


def square(number):
    if number == 13:
        raise ValueError("unlucky")
    if number == 17:
        raise FileNotFoundError("gone")
    return number * number


def rows(count=23):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, (1 + 3 * n % 11,), generator=generator).tolist() for n in range(count)]


def vectors():
    generator = torch.Generator().manual_seed(2)
    found = [torch.randn(2 + 3 * n % 7, 2, generator=generator, dtype=torch.float64) for n in range(9)]
    found[3][1] = torch.nan
    return found


def test_a_sum_is_that_of_all_parts(here):
    for count in (1, 2, 3, 7):
        assert here.total(square, list(range(count)), operator.add) == sum(n * n for n in range(count))
    told = []
    assert here.each(square, [2, 3, 4], done=lambda *now: told.append(now)) == [4, 9, 16]
    assert told == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(ValueError, match="parts: nothing to add up"):
        here.total(square, [], operator.add)


def test_parts_that_fail_are_named_when_the_others_are_done(here):
    with pytest.raises(PartFailed, match=r"2 of 4 parts failed: b.txt: ValueError: unlucky; d.txt: FileNotFoundError: gone"):
        here.each(square, [1, 13, 2, 17], ["a.txt", "b.txt", "c.txt", "d.txt"])
    with pytest.raises(PartFailed, match=r"part 2: ValueError: unlucky"):
        here.total(square, [1, 13, 2], operator.add)


def late(number, place):
    """The first part waits until all others are done."""
    for _ in range(500 if number == 0 else 0):
        if len(list(place.iterdir())) == 5:
            break
        time.sleep(0.02)
    (place / f"{number} after {len(list(place.iterdir()))}").touch()
    return number


def test_a_straggler_holds_up_no_other_part(here, tmp_path):
    assert here.each(partial(late, place=tmp_path), range(6)) == list(range(6))
    assert (tmp_path / "0 after 5").exists()


@pytest.mark.parametrize("batch_size", [4, 100])
def test_em_on_a_cluster_is_em(here, batch_size):
    alone = pplseq.HMM(3, num_words=5).fit(rows(), seed=0, max_iterations=12, tolerance=0.0)
    there = pplseq.HMM(3, num_words=5).fit(
        rows(), seed=0, max_iterations=12, tolerance=0.0, batch_size=batch_size, cluster=here
    )
    assert there.history.log_likelihoods == pytest.approx(alone.history.log_likelihoods, rel=1e-10)
    torch.testing.assert_close(there.state_dict(), alone.state_dict(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("make", [lambda: pplseq.HMM(2, num_features=2, covariance="full"), lambda: pplseq.LDS(2, 2)])
def test_em_of_vectors_on_a_cluster(here, make):
    torch.manual_seed(0)
    models = [make() for _ in range(2)]
    for model, cluster in zip(models, (None, here), strict=True):
        model.fit(vectors(), seed=0, max_iterations=5, tolerance=0.0, batch_size=2, cluster=cluster)
    assert models[1].history.log_likelihoods == pytest.approx(models[0].history.log_likelihoods, rel=1e-10)


def test_a_run_on_a_cluster_goes_on_without_one(here, tmp_path):
    make = lambda: pplseq.HMM(3, num_words=5)  # noqa: E731
    whole = make().fit(rows(), seed=0, max_iterations=9, tolerance=0.0)
    make().fit(rows(), seed=0, max_iterations=4, tolerance=0.0, folder=tmp_path / "run", cluster=here, batch_size=5)
    rest = make().fit(rows(), seed=0, max_iterations=9, tolerance=0.0, folder=tmp_path / "run", resume=True)
    torch.testing.assert_close(rest.state_dict(), whole.state_dict(), rtol=1e-8, atol=1e-10)


def test_what_a_cluster_cannot_do_is_refused(here, monkeypatch):
    model = pplseq.HMM(2, num_words=5)
    with pytest.raises(ValueError, match="cluster: stepwise EM goes from batch to batch"):
        model.fit(rows(), cluster=here, step_size=0.7)
    with pytest.raises(TypeError, match="method 'sgd' has no option 'cluster'"):
        model.fit(rows(), method="sgd", cluster=here)
    with pytest.raises(ValueError, match=r"cluster: expected local:N with N workers, such as local:2, got 'local:0'"):
        model.fit(rows(), cluster="local:0")
    with pytest.raises(ValueError, match="cluster: expected 'local:N' or 'tcp://HOST:PORT', got 'here'"):
        model.fit(rows(), cluster="here")
    with pytest.raises(TypeError, match="cluster: expected 'local:N'"):
        model.fit(rows(), cluster=3)
    with pytest.raises(ClusterError, match="does not answer within 0.3 s; is a scheduler running there"):
        with connected("tcp://127.0.0.1:9", patience=0.3):
            pass
    monkeypatch.setattr(clusters, "version_here", lambda: "0.0.1")
    with pytest.raises(ClusterError, match=r"has pplseq 0.0.1, and .* is asking; install the same version everywhere"):
        with connected(here.client):
            pass


@pytest.mark.parametrize("ask", [lambda c: c.each(square, [2, 3]), lambda c: c.total(square, [2, 3], operator.add)])
def test_where_all_workers_are_gone_nobody_waits_for_ever(ask):
    distributed = pytest.importorskip("distributed")
    with distributed.Client(processes=False, n_workers=1, dashboard_address=":0", set_as_default=False) as client:
        with connected(client, patience=0.2) as cluster:
            assert cluster.each(square, [2]) == [4]
            client.cluster.scale(0)
            with pytest.raises(ClusterError, match=r"all workers of .* are gone, and none came within 0.2 s; start some"):
                ask(cluster)
            cluster.patience = 10
            threading.Timer(0.1, lambda: client.cancel([distributed.Future(key, client) for key in client.futures])).start()
            with pytest.raises(ClusterError, match="its work was cancelled; start its scheduler"):
                ask(cluster)


def test_a_cluster_that_does_not_close_is_left(monkeypatch):
    distributed, waited = pytest.importorskip("distributed"), []

    class Stuck(distributed.LocalCluster):
        def __init__(self, **options):
            super().__init__(processes=False, **options)

        def close(self, timeout=None):
            super().close()
            waited.append(timeout)
            raise TimeoutError

    monkeypatch.setattr(distributed, "LocalCluster", Stuck)
    with connected("local:1") as cluster:
        assert cluster.num_workers == 1
    assert waited == [clusters.PATIENCE]


def dies_once(marker, number):
    if not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def dies(number):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_workers_that_die(tmp_path):
    said = []
    with connected("local:2", say=said.append) as cluster:
        assert "2 workers; dashboard: http://127.0.0.1:" in said[0]
        parts = [(str(tmp_path / "died"), n) for n in range(8)]
        assert cluster.total(dies_once, parts, operator.add) == sum(n * n for n in range(8))
        os.remove(tmp_path / "died")
        assert cluster.each(dies_once, parts) == [n * n for n in range(8)]
        alone = pplseq.HMM(3, num_words=5)
        there, killed = copy.deepcopy(alone), []
        batches = split_rows(alone._as_batch(rows()), 3)
        first = expectation_maximization(alone, batches, max_iterations=6, tolerance=0.0)

        def kill_one(history):
            if len(history.log_likelihoods) in (1, 3):  # with the batches that it held
                pids = cluster.client.run(os.getpid)
                killed.append(next(iter(pids.values())))
                os.kill(killed[-1], signal.SIGKILL)

        second = expectation_maximization(
            there, batches, max_iterations=6, tolerance=0.0, cluster=cluster, on_iteration=kill_one
        )
        assert len(killed) == 2
        assert second.log_likelihoods == pytest.approx(first.log_likelihoods, rel=1e-10)
        with pytest.raises(PartFailed, match="part 1: its worker died again and again"):
            cluster.each(dies, [1])
