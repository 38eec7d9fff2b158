"""Pages that the build makes: one a class, with all its verbs, those it inherits too; and the help of every command.

Each page of a model begins with a program that asks every verb that the class has; the build runs it.
"""

from __future__ import annotations

from collections.abc import Iterator

# group -> class -> where it stands
CLASSES = {
    "Models": {
        "HMM": "models.hmm.program", "SemiMarkovHMM": "models.hmm.durations", "MixtureHMM": "models.hmm.mixture",
        "VLHMM": "models.vlhmm.program",
        "LDS": "models.lds.program", "ConstrainedLDS": "models.lds.constrained", "StructuralModel": "models.structural.program",
        "TextLDS": "models.text_lds.program", "IOHMM": "models.iohmm.program", "ARHMM": "models.arhmm.program",
        "SwitchingRegression": "models.switching.program", "AutomatonLearner": "models.automata.learner",
    },
    "Taggers": {
        "HMMTagger": "models.taggers.hmm", "LatentTagger": "models.taggers.latent", "CRFTagger": "models.taggers.conditional",
        "MEMMTagger": "models.taggers.conditional", "DictionaryTagger": "models.taggers.dictionary",
    },
    "Streams": {
        "PROPSLearner": "models.props.learner", "PROPS": "models.props.program", "StreamingHMM": "models.props.program",
        "PersonalStream": "sources.stream",
    },
    "Rivals": {"KneserNey": "baselines.kneser_ney", "LSTM": "baselines.lstm", "AWDLSTM": "baselines.awd_lstm",
               "FeedForward": "baselines.feed_forward", "RNN": "baselines.rnn", "HMMRNN": "baselines.hmm_rnn"},
}  # fmt: skip
SERIES = """x = torch.tensor([[0.1, -0.2, 0.0, 3.9, 4.2, 4.1, 0.3, -0.1], [4.0, 4.2, 3.8, 0.2, 0.1, -0.3, 4.1, 3.9]])
x = x.unsqueeze(-1)  # (2, 8, 1): rows, steps, columns"""
INPUTS = "inputs = torch.tensor([[0.0, 1.0] * 4, [1.0, 0.0] * 4]).unsqueeze(-1)\nahead = torch.ones(2, 2, 1)"
WORDS = "x = torch.tensor([[0, 1, 2, 0, 1, 2], [3, 1, 2, 3, 1, 2]])  # (2, 6): rows, steps; numbers of words"
BEGIN = {  # class -> its data and how it is made
    "HMM": (SERIES, "HMM(2, num_features=1).fit(x, num_restarts=3, seed=0)"),
    "SemiMarkovHMM": (SERIES, "SemiMarkovHMM(2, num_features=1, max_duration=4).fit(x, seed=0)"),
    "MixtureHMM": (SERIES, "MixtureHMM(2, 1, num_features=1, priors=True).fit(x, seed=0)"),
    "VLHMM": (WORDS, "VLHMM(num_words=4, num_states=8, blocks=[0, 0, 1, 1], hidden_size=4).fit(x, epochs=20, seed=0)"),
    "LDS": (SERIES, "LDS(2, num_features=1).fit(x, max_iterations=5, seed=0)"),
    "ConstrainedLDS": (SERIES, 'ConstrainedLDS(1, 1, {"transition": [["a"]]}).fit(x, max_iterations=5, seed=0)'),
    "StructuralModel": (SERIES, 'StructuralModel(trend="stochastic").fit(x)'),
    "IOHMM": (f"{SERIES}\n{INPUTS}", 'IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1).fit(x, inputs=inputs, seed=0)'),
    "ARHMM": (SERIES, "ARHMM(2, 1, order=1).fit(x, seed=0)"),
    "SwitchingRegression": (f"{SERIES}\n{INPUTS}", "SwitchingRegression(2, num_inputs=1).fit(x, inputs=inputs, seed=0)"),
    "StreamingHMM": (WORDS, "StreamingHMM(2, num_words=4).fit(x, seed=0)"),
}  # fmt: skip
GAUSSIAN = ("LDS", "ConstrainedLDS", "StructuralModel")
VERBS = {  # verb -> its question: {inputs} is what is given beside x, {states} and {ahead} what of an answer is shown
    "score": "score(x{inputs})", "token_log_probs": "token_log_probs(x{inputs})[0]", "entropy": "entropy(x{inputs})",
    "filter": "filter(x{inputs}).{states}[0, -1]", "smooth": "smooth(x{inputs}).{states}[0, 0]",
    "decode": "decode(x{inputs})[0]",
    "n_best": "n_best(x, n=2{inputs}).log_probs[0]", "sample_states": "sample_states(x, seed=0{inputs})[0]",
    "predict_next": "predict_next(x{next}).{ahead}[0]", "forecast": "forecast(x, 2{future}).{ahead}[0]",
    "sample": "sample(2, 2, seed=0{drawn}).x[0]", "aic": "aic(x{inputs})", "bic": "bic(x{inputs})",
}  # fmt: skip


def program(name: str, offers) -> str:
    """The program of a class's page; `offers` says whether it has a verb."""
    data, made = BEGIN[name]
    known = dict.fromkeys(("inputs", "next", "future", "drawn"), "")
    if "inputs" in data:
        known = {
            "inputs": ", inputs=inputs", "next": ", inputs=inputs, next_inputs=ahead[:, 0]", "drawn": ", inputs=ahead",
            "future": ", inputs=inputs, future_inputs=ahead",
        }  # fmt: skip
    known |= {"states": "means" if name in GAUSSIAN else "probs", "ahead": "word_log_probs" if data == WORDS else "means"}
    asked = [
        f'print("{verb}:", model.{question.format(**known)})' for verb, question in VERBS.items()
        if offers(verb) and not (verb == "n_best" and name in GAUSSIAN)  # of real numbers there is no second-best path
    ]  # fmt: skip
    return "\n".join(["import torch", f"from pplseq import {name}", "", data, f"model = {made}", *asked])


def class_page(name: str, room: str) -> str:
    """The page of a class."""
    text = f"# {name}\n\n"
    if name in BEGIN:
        import pplseq

        asked = program(name, lambda verb: hasattr(getattr(pplseq, name), verb))
        options = f'exec="1" source="above" result="text" session="{name}"'
        text += f"Its questions, on made-up data:\n\n```python {options}\n{asked}\n```\n\n"
    return text + f"::: pplseq.{room}.{name}\n    options:\n      inherited_members: true\n      show_bases: true\n"


def commands_page() -> str:
    """What every command says of itself."""
    import click

    from pplseq.cli import main

    def told(command: click.Command, context: click.Context) -> Iterator[str]:
        yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                _, inner, _ = command.resolve_command(context, [name])
                if inner is not None and not inner.hidden:
                    yield from told(inner, click.Context(inner, parent=context, info_name=name, terminal_width=96))

    beginning = "# Every command\n\nWhat `--help` says. `pplseq query RUN --help` lists the questions that a run answers.\n\n"
    return beginning + "\n".join(told(main, click.Context(main, info_name="pplseq", terminal_width=96)))


def contents() -> dict[str, str]:
    """Name of a file -> its text."""
    rooms = {name: room for group in CLASSES.values() for name, room in group.items()}
    made = {f"reference/classes/{name}.md": class_page(name, room) for name, room in rooms.items()}
    return made | {"reference/every_command.md": commands_page()}
