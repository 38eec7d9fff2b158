"""Checkpoints are whole or absent, and say what is wrong with them."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from pplseq.runs import checkpoint

TENSORS = {"weights.a": torch.arange(6.0).view(2, 3), "random.cpu": torch.arange(9, dtype=torch.uint8)}
STATE = {"progress": {"step": 3, "best": float("inf")}, "value": 0.1 + 0.2}


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "last"
    checkpoint.replace_folder(folder, lambda new: checkpoint.save_training(new, TENSORS, STATE))
    return folder


def test_round_trip_is_exact(saved):
    tensors, state = checkpoint.load_training(saved)
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert state == STATE


def test_nothing_is_pickled(saved):
    assert sorted(path.suffix for path in saved.iterdir()) == [".json", ".safetensors"]


def test_failed_save_keeps_the_previous_one(saved):
    def full_disk(folder):
        (folder / "half").write_text("half of it")
        raise OSError(28, "No space left on device")

    with pytest.raises(checkpoint.SaveError, match="No space left on device; the previous checkpoint there is whole"):
        checkpoint.replace_folder(saved, full_disk)
    assert checkpoint.load_training(saved)[1] == STATE
    assert sorted(path.name for path in saved.parent.iterdir()) == ["last"]


def test_failed_first_save_leaves_nothing(tmp_path):
    def full_disk(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(checkpoint.SaveError, match="nothing was left behind"):
        checkpoint.replace_folder(tmp_path / "last", full_disk)
    assert list(tmp_path.iterdir()) == []


def test_swap_cut_off_between_its_two_renames(saved):
    os.rename(saved, saved.with_name(".last.old"))
    assert checkpoint.load_training(saved)[1] == STATE


def test_swap_cut_off_after_both_renames(saved):
    (saved.with_name(".last.old")).mkdir()
    assert checkpoint.load_training(saved)[1] == STATE
    assert not saved.with_name(".last.old").exists()


@pytest.mark.parametrize("name", ["training.json", "training.safetensors"])
def test_truncated(saved, name):
    data = (saved / name).read_bytes()
    (saved / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(checkpoint.CheckpointError, match=f"{name} is cut short"):
        checkpoint.load_training(saved)


@pytest.mark.parametrize("name", ["training.json", "training.safetensors"])
def test_missing_file(saved, name):
    (saved / name).unlink()
    with pytest.raises(checkpoint.CheckpointError, match=f"it has no {name}"):
        checkpoint.load_training(saved)


def test_damaged(saved):
    data = bytearray((saved / "training.safetensors").read_bytes())
    data[-1] ^= 1
    (saved / "training.safetensors").write_bytes(data)
    with pytest.raises(checkpoint.CheckpointError, match="damaged"):
        checkpoint.load_training(saved)


@pytest.mark.parametrize("header", [{"format": "other", "version": 1}, [1, 2], {"model_type": "gpt2"}])
def test_foreign(saved, header):
    (saved / "training.json").write_text(json.dumps(header))
    with pytest.raises(checkpoint.CheckpointError, match="written by another program"):
        checkpoint.load_training(saved)


def test_other_version(saved):
    header = json.loads((saved / "training.json").read_text())
    (saved / "training.json").write_text(json.dumps(header | {"version": 99}))
    with pytest.raises(checkpoint.CheckpointError, match="version 99"):
        checkpoint.load_training(saved)


def test_foreign_tensors_with_a_matching_header(saved):
    save_file({"x": torch.zeros(1)}, saved / "training.safetensors")
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.load_training(saved)


def test_weights_of_another_model():
    module = torch.nn.Linear(2, 3)
    weights = {f"weights.{name}": value for name, value in checkpoint.named_weights(module).items()}
    with pytest.raises(checkpoint.CheckpointError, match=r"weight has shape \(3, 2\) there and \(3, 4\) here"):
        checkpoint.restore_weights(torch.nn.Linear(4, 3), weights)
    with pytest.raises(checkpoint.CheckpointError, match="bias on one side only"):
        checkpoint.restore_weights(torch.nn.Linear(2, 3, bias=False), weights)


def test_optimizer_round_trip_is_exact():
    def trained():
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 2)
        return module, torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)

    def step(module, optimizer):
        optimizer.zero_grad()
        module(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    module, optimizer = trained()
    step(module, optimizer)
    optimizer.param_groups[0]["lr"] = 0.025
    tensors, groups = checkpoint.flatten_optimizer(optimizer)
    groups = json.loads(json.dumps(groups))
    copy, copy_optimizer = trained()
    copy.load_state_dict(module.state_dict())
    checkpoint.restore_optimizer(copy_optimizer, {k: v.clone() for k, v in tensors.items()}, groups)
    for _ in range(3):
        step(module, optimizer)
        step(copy, copy_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), copy.parameters(), strict=True))


def test_optimizer_of_another_model():
    optimizer = torch.optim.AdamW(torch.nn.Linear(3, 2).parameters())
    other = torch.optim.AdamW(torch.nn.Linear(3, 2, bias=False).parameters())
    with pytest.raises(checkpoint.CheckpointError, match="another model"):
        checkpoint.restore_optimizer(other, *checkpoint.flatten_optimizer(optimizer))


def test_one_process_at_a_time(tmp_path):
    from pplseq.runs.checkpoint import only_one_run

    with only_one_run(tmp_path / "run"):
        with pytest.raises(ValueError, match="another process is training there"), only_one_run(tmp_path / "run"):
            pass
    with only_one_run(tmp_path / "run"):
        pass
