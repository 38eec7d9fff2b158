"""What a checkpoint of a training holds, and how it is taken back."""

import json

import pytest
import torch

from pplseq.folder import FolderError
from pplseq.runs import checkpoint

TENSORS = {"weights.a": torch.arange(6.0).view(2, 3), "random.cpu": torch.arange(9, dtype=torch.uint8)}
STATE = {"progress": {"step": 3, "best": float("inf")}, "value": 0.1 + 0.2}


def test_round_trip_beside_a_model(tmp_path):
    def save_model(folder):
        (folder / "model.json").write_text("{}")

    folder = checkpoint.TRAINING.write(tmp_path / "last", {"state": STATE}, tensors=TENSORS, more=save_model)
    header, tensors, *_ = checkpoint.TRAINING.read(folder)
    assert header["state"] == STATE and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "training.json", "training.safetensors"]
    (folder / "model.json").write_text("[]")
    with pytest.raises(FolderError, match="model.json: damaged.*resume from another checkpoint"):
        checkpoint.TRAINING.read(folder)


def test_random_numbers_go_on(tmp_path):
    torch.manual_seed(3)
    states = checkpoint.random_states(torch.device("cpu"))
    drawn = torch.rand(3)
    checkpoint.restore_random_states(states, torch.device("cpu"))
    assert torch.equal(torch.rand(3), drawn)


def test_weights_of_another_model():
    module = torch.nn.Linear(2, 3)
    weights = {f"weights.{name}": value for name, value in checkpoint.named_weights(module).items()}
    with pytest.raises(FolderError, match=r"weight has shape \(3, 2\) there and \(3, 4\) here"):
        checkpoint.restore_weights(torch.nn.Linear(4, 3), weights)
    with pytest.raises(FolderError, match="bias on one side only"):
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
    with pytest.raises(FolderError, match="another model"):
        checkpoint.restore_optimizer(other, *checkpoint.flatten_optimizer(optimizer))


def test_one_process_at_a_time(tmp_path):
    from pplseq.runs.checkpoint import only_one_run

    with only_one_run(tmp_path / "run"):
        with pytest.raises(ValueError, match="another process is training there"), only_one_run(tmp_path / "run"):
            pass
    with only_one_run(tmp_path / "run"):
        pass
