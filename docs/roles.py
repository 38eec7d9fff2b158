"""Cross-references of docstrings, ``:class:`~pplseq.models.hmm.program.HMM```, as links of the reference."""

import re

import griffe

ROLE = re.compile(r":(?:py:)?(?:class|func|meth|mod|attr|data|exc|obj):`(~?)(?:([\w.]+) <)?([\w.]+)>?(?:\(\))?`")


class Roles(griffe.Extension):
    """Writes every role as a link where the reference has its target, and as code elsewhere."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(lambda role: _linked(obj, *role.groups()), obj.docstring.value)


def _linked(obj, short: str, name: str | None, target: str) -> str:
    shown = name or (target.rpartition(".")[2] if short else target)
    if not target.startswith("pplseq."):  # a name of the same class or module
        place = obj if obj.is_class or obj.is_module else obj.parent
        while place is not None and target.partition(".")[0] not in place.members:
            place = place.parent
        target = target if place is None else f"{place.path}.{target}"
    return f'<autoref optional identifier="{target}"><code>{shown}</code></autoref>'
