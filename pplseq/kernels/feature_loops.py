"""Compiled loops over the words of a few sentences: numbers of their features, and sums of the features' weights.

The readable twins are :meth:`pplseq.models.taggers.features.TagFeatures.encode` of many words and
:meth:`pplseq.models.taggers.weights.SparseRows.times`. Importing this module imports numba.

Shapes, of N words in a row, A attributes, F templates of at most P parts and C features: records (N, A + F), a word's values of
attributes, then what it is as a feature of each template that looks at one attribute; begins (S + 1,) where sentences begin;
attributes and offsets (F, P), -1 behind a template's parts; alone (F,) templates whose features are in the records; codes (C,)
values of templates, each template's rising from starts (F + 1,) on; edges (2, F) as records, beyond a sentence's two ends.
"""

from __future__ import annotations

import numpy as np

from pplseq.kernels.compiled import jit

BITS = 21  # of a part in the code of a template's value
ABSENT = -1


@jit
def place_of(codes, begin, end, code):
    """Where a code stands in a rising part of the codes, or ABSENT."""
    last = end
    while begin < end:
        middle = (begin + end) // 2
        if codes[middle] < code:
            begin = middle + 1
        else:
            end = middle
    return begin if begin < last and codes[begin] == code else ABSENT


@jit(entry=True)
def add_features(values, attributes, alone, codes, starts, records):
    """records (N, A + F): values (N, A) of words' attributes, and their features of templates that look at one attribute."""
    num_words, num_values = values.shape
    for n in range(num_words):
        for a in range(num_values):
            records[n, a] = values[n, a]
        for f in range(len(alone)):
            code = values[n, attributes[f, 0]] if alone[f] else ABSENT
            records[n, num_values + f] = place_of(codes, starts[f], starts[f + 1], code)


@jit(entry=True)
def encode(records, begins, attributes, offsets, alone, codes, starts, edges, out):
    """out (N, F): numbers of the features of all words, ABSENT where there is none."""
    num_templates, most = attributes.shape
    num_values = records.shape[1] - num_templates
    for s in range(len(begins) - 1):
        begin, end = begins[s], begins[s + 1]
        for n in range(begin, end):
            for f in range(num_templates):
                if alone[f]:
                    at = n + offsets[f, 0]
                    if at < begin:
                        out[n, f] = edges[0, f]
                    elif at >= end:
                        out[n, f] = edges[1, f]
                    else:
                        out[n, f] = records[at, num_values + f]
                    continue
                code = 0
                for part in range(most):
                    if attributes[f, part] < 0:
                        break
                    at, value = n + offsets[f, part], 0
                    if at >= end:
                        value = 1
                    elif at >= begin:
                        value = records[at, attributes[f, part]]
                    if value == ABSENT:
                        code = ABSENT
                        break
                    code = (code << BITS) | value
                out[n, f] = place_of(codes, starts[f], starts[f + 1], code)


@jit(entry=True, fastmath={"contract"})  # sums in the order of the templates
def add_weights(features, begins, weights, pairs, starts, num_tags, out):
    """out (T, S, K), zero before: sums of the weights of the features (N, F) of each word.

    Args:
        weights: (P,) of pairs (P,), feature * K + tag, rising; starts (C + 1,) where each feature's begin.
    """
    rounded = np.empty(1, out.dtype)
    for s in range(len(begins) - 1):
        for n in range(begins[s], begins[s + 1]):
            row = out[n - begins[s], s]
            for f in range(features.shape[1]):
                feature = features[n, f]
                if feature == ABSENT:
                    continue
                for p in range(starts[feature], starts[feature + 1]):
                    rounded[0] = weights[p]
                    row[pairs[p] - feature * num_tags] += rounded[0]
