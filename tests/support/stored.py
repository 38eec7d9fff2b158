"""Stored folders changed by hand, with checksums that are right again: as a writer with other values would have left them."""

import json

from safetensors.torch import load_file, save_file

from pplseq.folder import seal


def rewrite(folder, header="config.json", without=(), **changes):
    """Change entries of a header, or take some out."""
    content = {**json.loads((folder / header).read_text()), **changes}
    seal(folder / header, {name: value for name, value in content.items() if name not in (*without, "files", "sha256")})


def rewrite_tensors(folder, change, header="config.json", name="model.safetensors"):
    """Replace tensors by what `change` makes of a dictionary of them."""
    save_file(change(load_file(folder / name)), folder / name)
    rewrite(folder, header)
