"""Pages that the build makes: one a class, with all its verbs, those it inherits too; and the help of every command.

Each page of a model begins with a program that asks every verb that the class has; the build runs it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

# group -> class -> where it stands
CLASSES = {
    "Models": {
        "HMM": "models.hmm.program", "SemiMarkovHMM": "models.hmm.durations", "MixtureHMM": "models.hmm.mixture",
        "MixtureIOHMM": "models.iohmm.mixture", "VLHMM": "models.vlhmm.program", "LDS": "models.lds.program",
        "ConstrainedLDS": "models.lds.constrained", "StructuralModel": "models.structural.program",
        "TextLDS": "models.text_lds.program", "IOHMM": "models.iohmm.program", "ARHMM": "models.regressions.program",
        "SwitchingRegression": "models.regressions.program", "AutomatonLearner": "models.automata.learner",
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
TAGGED = """tagged = [
    TaggedSentence(("the", "dog", "barks"), ("DET", "NOUN", "VERB")),
    TaggedSentence(("a", "cat", "sleeps"), ("DET", "NOUN", "VERB")),
    TaggedSentence(("dogs", "bark"), ("NOUN", "VERB")),
]
words = [["the", "cat", "barks"]]"""
LINES = """lines = [line.split() for line in ("the dog barks", "a cat sleeps", "the cat barks", "a dog sleeps")]
vocabulary = Vocabulary.build(lines)
text = Text.from_lines(lines, vocabulary)"""
STEPS = "settings = SGDSettings(lr=0.1, batch_size=1, segment_length=4, epochs=5)"
SOURCE = """source = torch.tensor([0.4, 0.2, 0.2, 0.2]).log()  # of a model that says the same of every step
said = source.expand(2, 6, 1, 4)  # (2, 6, 1, 4): rows, steps, sources, words"""
STRINGS = """strings = ["", "0", "1", "00", "01", "10", "11", "000", "101", "110"]
even = [string.count("0") % 2 == 0 for string in strings]"""
WORDS = "x = torch.tensor([[0, 1, 2, 0, 1, 2], [3, 1, 2, 3, 1, 2]])  # (2, 6): rows, steps; numbers of words"
FORMULAS = {  # class -> what it says of data x and hidden states z, and of inputs u
    "HMM": r"""p(x, z) = \pi_{z_1} \prod_{t=2}^{T} A_{z_{t-1} z_t} \prod_{t=1}^{T} p(x_t \mid z_t), \qquad z_t \in \{1,
\ldots, K\}""",
    "SemiMarkovHMM": r"""p(x, z, d) = \pi_{z_1} \prod_{s=1}^{S} D_{z_s}(d_s) \prod_{s=2}^{S} A_{z_{s-1} z_s} \prod_{s=1}^{S}
\prod_{t \in \text{segment } s} p(x_t \mid z_s), \qquad A_{k k} = 0, \quad \sum_s d_s \ge T""",
    "MixtureHMM": r"""p(x) = \sum_{c=1}^{C} w_c \, p_c(x), \qquad p(c \mid x) = \frac{w_c \, p_c(x)}{p(x)}, \qquad p_c \text{
an HMM}""",
    "MixtureIOHMM": r"""p(x \mid u) = \sum_{c=1}^{C} p(c \mid u_1) \, p_c(x \mid u), \qquad p_c \text{ an IOHMM}""",
    "VLHMM": r"""p(x, z) = p(z_1) \prod_{t=2}^{T} p(z_t \mid z_{t-1}) \prod_{t=1}^{T} p(x_t \mid z_t)

p(z' \mid z) \propto \exp(f(z)^\top g(z')), \qquad p(x \mid z) \propto \exp(h(z)^\top w_x) \text{ for words of the block of }
z
\text{, else } 0""",
    "LDS": r"""z_1 \sim N(m, P), \qquad z_t = A z_{t-1} + \varepsilon_t, \quad \varepsilon_t \sim N(0, Q), \qquad
x_t = C z_t + d + \eta_t, \quad \eta_t \sim N(0, R)""",
    "ConstrainedLDS": r"""z_t = A(\theta) z_{t-1} + \varepsilon_t, \quad \varepsilon_t \sim N(0, Q(\theta)), \qquad
x_t = C(\theta) z_t + d(\theta) + \eta_t, \quad \eta_t \sim N(0, R(\theta))""",
    "StructuralModel": r"""x_t = \mu_t + \gamma_t + c_t + \beta^\top u_t + \eta_t, \qquad \mu_t = \mu_{t-1} + \nu_{t-1} +
\varepsilon_t, \qquad
\nu_t = \nu_{t-1} + \zeta_t, \qquad \gamma_t = -\sum_{j=1}^{s-1} \gamma_{t-j} + \omega_t""",
    "TextLDS": r"""z_1 \sim N(0, P), \qquad z_t = A z_{t-1} + \varepsilon_t, \quad \varepsilon_t \sim N(0, Q), \qquad
w_t = C z_t + \eta_t, \quad \eta_t \sim N(0, D), \qquad w_t = \text{diag}(\mu)^{-1/2} (e_{x_t} - \mu)""",
    "IOHMM": r"""p(x, z \mid u) = p(z_1 \mid u_1) \prod_{t=2}^{T} p(z_t \mid z_{t-1}, u_t) \prod_{t=1}^{T} p(x_t \mid z_t,
u_t)""",
    "ARHMM": r"""p(x, z) = p(z) \prod_{t} N\left(x_t \mid b_{z_t} + \sum_{l=1}^{L} W_{z_t}^{(l)} x_{t-l}, \;
R_{z_t}\right)""",
    "SwitchingRegression": r"""p(x, s \mid u) = p(s) \prod_{t} N\left(x_t \mid m_{s_t} + W_{s_t} u_t + \sum_{i=1}^{p}
\phi_{s_t, i} \, x_{t-i}, \;
\sigma^2_{s_t}\right)""",
    "HMMTagger": r"""p(\text{words}, \text{tags}) = \prod_{t=1}^{T+1} p(\text{tag}_t \mid \text{tag}_{t-1}, \text{tag}_{t-2})
\prod_{t=1}^{T}
p(\text{word}_t \mid \text{tag}_t)""",
    "LatentTagger": r"""p(\text{words}, \text{tags}) = \sum_{z : \, \text{tag}(z_t) = \text{tag}_t} \prod_t p(z_t \mid
z_{t-1}) \, p(\text{word}_t \mid z_t)""",
    "CRFTagger": r"""p(\text{tags} \mid \text{words}) = \frac{1}{Z(\text{words})} \exp\left(\sum_{t=1}^{T}
w_{\text{tag}_t}^\top f(\text{words}, t) +
\sum_{t=2}^{T} v_{\text{tag}_{t-1} \text{tag}_t}\right)""",
    "MEMMTagger": r"""p(\text{tags} \mid \text{words}) = \prod_{t=1}^{T} \frac{\exp(w_{\text{tag}_t}^\top f(\text{words}, t)
+ v_{\text{tag}_{t-1}
\text{tag}_t})}{\sum_k \exp(w_k^\top f(\text{words}, t) + v_{\text{tag}_{t-1} k})}""",
    "PROPS": r"""p(x, z) = \prod_t p(z_t \mid z_{t-1}) \, s_{z_t}(x_t \mid x_{<t}), \qquad s_k \text{ a source: a model whose
next-word
probabilities are all that is known of it}""",
    "KneserNey": r"""p(w \mid c) = \frac{\max(a(c w) - D(a(c w)), 0)}{\sum_v a(c v)} + \gamma(c) \, p(w \mid c')""",
}  # fmt: skip
BEGIN = {  # class -> its data and how it is made
    "HMM": (SERIES, "HMM(2, num_features=1).fit(x, num_restarts=3, seed=0)"),
    "SemiMarkovHMM": (SERIES, "SemiMarkovHMM(2, num_features=1, max_duration=4).fit(x, seed=0)"),
    "MixtureHMM": (SERIES, "MixtureHMM(2, 1, num_features=1, priors=True).fit(x, seed=0)"),
    "MixtureIOHMM": (
        f"{SERIES}\n{INPUTS}",
        'MixtureIOHMM(2, 1, num_inputs=1, outputs="normal", mealy=True).fit(x, inputs=inputs, num_restarts=4, seed=0)',
    ),
    "VLHMM": (WORDS, "VLHMM(num_words=4, num_states=8, blocks=[0, 0, 1, 1], hidden_size=4).fit(x, epochs=20, seed=0)"),
    "LDS": (SERIES, "LDS(2, num_features=1).fit(x, max_iterations=5, seed=0)"),
    "ConstrainedLDS": (SERIES, 'ConstrainedLDS(1, 1, {"transition": [["a"]]}).fit(x, max_iterations=5, seed=0)'),
    "StructuralModel": (SERIES, 'StructuralModel(trend="stochastic").fit(x)'),
    "IOHMM": (f"{SERIES}\n{INPUTS}", 'IOHMM(2, num_inputs=1, outputs="gaussian", num_outputs=1).fit(x, inputs=inputs, seed=0)'),
    "ARHMM": (SERIES, "ARHMM(2, 1, order=1).fit(x, seed=0)"),
    "SwitchingRegression": (f"{SERIES}\n{INPUTS}", "SwitchingRegression(2, num_inputs=1).fit(x, inputs=inputs, seed=0)"),
    "TextLDS": (WORDS, "TextLDS(2, num_words=4).fit(x, seed=0)"),
    "StreamingHMM": (WORDS, "StreamingHMM(2, num_words=4).fit(x, seed=0)"),
    "PROPS": (f"{WORDS}\n{SOURCE}", "PROPS(num_words=4, num_perturbations=1).fit(x, source_log_probs=said, seed=0)"),
    "PROPSLearner": (WORDS, "PROPSLearner([lambda past: [0.4, 0.2, 0.2, 0.2]], 4, seed=0).fit(x.tolist())"),
    "PersonalStream": ("", 'PersonalStream.open("ngram:builtin:python")'),
    "AutomatonLearner": (STRINGS, "AutomatonLearner().fit(strings, even)  # the smallest automaton that says so"),
    "HMMTagger": (TAGGED, "HMMTagger().fit(tagged)"),
    "LatentTagger": (TAGGED, "LatentTagger(num_substates=2).fit(tagged)"),
    "CRFTagger": (TAGGED, "CRFTagger().fit(tagged)"), "MEMMTagger": (TAGGED, "MEMMTagger().fit(tagged)"),
    "DictionaryTagger": (TAGGED, "DictionaryTagger().fit(tagged)"),
    "KneserNey": (LINES, "KneserNey(2).fit(text)"),
    "LSTM": (f"{LINES}\n{STEPS}", "LSTM(vocabulary, 8).fit(text, settings=settings)"),
    "AWDLSTM": (f"{LINES}\n{STEPS}", "AWDLSTM(vocabulary, 8, width=8).fit(text, settings=settings)"),
    "FeedForward": (f"{LINES}\n{STEPS}", "FeedForward(vocabulary, 8, order=3).fit(text, settings=settings)"),
    "RNN": (f"{LINES}\n{STEPS}", "RNN(vocabulary, 8).fit(text, settings=settings)"),
    "HMMRNN": (f"{LINES}\n{STEPS}", "HMMRNN(vocabulary, 8).fit(text, settings=settings)"),
}  # fmt: skip
GAUSSIAN = ("LDS", "ConstrainedLDS", "StructuralModel", "TextLDS")
VERBS = {  # verb -> its question: {inputs} is what is given beside x, {states} and {ahead} what of an answer is shown
    "score": "score(x{inputs})", "token_log_probs": "token_log_probs(x{inputs})[0]", "entropy": "entropy(x{inputs})",
    "filter": "filter(x{inputs}).{states}[0, -1]", "smooth": "smooth(x{inputs}).{states}[0, 0]",
    "decode": "decode(x{inputs})[0]",
    "n_best": "n_best(x, n=2{inputs}).log_probs[0]", "sample_states": "sample_states(x, seed=0{inputs})[0]",
    "predict_next": "predict_next(x{next}).{ahead}[0]", "forecast": "forecast(x, 2{future}).{ahead}[0]",
    "sample": "sample(2, 2, seed=0{drawn}).x[0]", "aic": "aic(x{inputs})", "bic": "bic(x{inputs})",
}  # fmt: skip
OTHER_VERBS = {  # group or class -> the same, where data are others
    "Taggers": {
        "tag": "tag(words)", "confidence": "confidence(words)", "n_best": "n_best(words[0], 2)",
        "explain": "explain(words[0], 1)[0]", "filter": "filter(words)[0]", "smooth": "smooth(words)[0]",
        "entropy": "entropy(words)", "score": "score({scored})", "token_log_probs": "token_log_probs(words)[0]",
        "predict_next": "predict_next(words).tags", "sample_states": "sample_states(words, seed=0)",
        "sample": "sample(4, seed=0)",
    },
    "Rivals": {
        "perplexity": "perplexity(text)", "log_prob": "log_prob(text)[:4]", "next_word": 'next_word(["the"])',
        "log_prob_of": "log_prob_of(vocabulary.encode([\"dog\"])[0])",
    },
    "PROPSLearner": {
        "learn_one": "learn_one(2).log_prob", "score_one": "score_one(0)", "predict_one": "predict_one()",
        "predict_proba_one": "predict_proba_one()", "score": "score(x.tolist())",
    },
    "PersonalStream": {
        "read": 'read("the value of the name").log_prob', "suggest": 'suggest("the value of ", 2)',
    },
    "AutomatonLearner": {"report": "report", "automaton": 'automaton.accepts("0110")'},
}  # fmt: skip
IMPORTED = {  # name that a program uses -> where it is from
    "TaggedSentence": "pplseq.data", "Text": "pplseq.data", "Vocabulary": "pplseq.data", "SGDSettings": "pplseq.baselines",
}  # fmt: skip


def program(name: str, room: str, offers) -> str:
    """The program of a class's page; `offers` says whether it has a verb."""
    import pplseq

    data, made = BEGIN[name]
    known = dict.fromkeys(("inputs", "next", "future", "drawn"), "")
    if "inputs =" in data:
        known = {
            "inputs": ", inputs=inputs", "next": ", inputs=inputs, next_inputs=ahead[:, 0]", "drawn": ", inputs=ahead",
            "future": ", inputs=inputs, future_inputs=ahead",
        }  # fmt: skip
    if "said =" in data:
        known |= {"inputs": ", source_log_probs=said", "drawn": ", source_log_probs=said[:, :2]"}
    known |= {"states": "means" if name in GAUSSIAN else "probs", "ahead": "word_log_probs" if WORDS in data else "means"}
    known["scored"] = "words" if offers("filter") else "tagged"  # a model of tags given words scores tags
    group = next(group for group, classes in CLASSES.items() if name in classes)
    verbs = OTHER_VERBS.get(name) or {
        verb: question for verb, question in OTHER_VERBS.get(group, VERBS).items()
        if offers(verb) and not (verb == "n_best" and name in GAUSSIAN)  # of real numbers there is no second-best path
        and not (verb in ("predict_next", "forecast") and "said =" in data)  # nobody knows what sources will say
    }  # fmt: skip
    asked = [f'print("{verb}:", model.{question.format(**known)})' for verb, question in verbs.items()]
    face = "pplseq" if name in pplseq.__all__ else f"pplseq.{room.split('.')[0]}"
    used = {name: face} | {other: place for other, place in IMPORTED.items() if re.search(rf"\b{other}\b", data)}
    imports = [
        f"from {place} import {', '.join(sorted(n for n in used if used[n] == place))}" for place in sorted(set(used.values()))
    ]  # fmt: skip
    imports = [*(["import torch"] if "torch." in data else []), *imports]
    return "\n".join([*imports, "", *data.splitlines(), f"model = {made}", *asked])


def class_page(name: str, room: str) -> str:
    """The page of a class."""
    text = f"# {name}\n\n"
    if name in FORMULAS:
        text += f"```math\n{FORMULAS[name]}\n```\n\n"
    if name in BEGIN:
        asked = program(name, room, lambda verb: hasattr(getattr(importlib.import_module(f"pplseq.{room}"), name), verb))
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
