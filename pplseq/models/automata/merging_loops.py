"""Compiled loops of state merging over a prefix tree. Importing this module imports numba.

A tree of N nodes and L symbols is one array of whole numbers, so that one trail undoes every change:

    table[n]               what node n was merged into, itself for a state that stands for others
    table[N + n]           its label, -1 for none
    table[2N + n L + s]    its child by symbol s, -1 for none

Red states are settled; blue ones are children of red ones that are not red, and head trees that nothing was merged into.
"""

from __future__ import annotations

import numpy as np

from pplseq.kernels.compiled import jit


@jit
def standing(table, node):
    """The state that a node was merged into."""
    while table[node] != node:
        node = table[node]
    return node


@jit
def write(table, place, value, trail, used):
    """Changes a number so that it can be undone; returns the length of the trail."""
    trail[used, 0], trail[used, 1] = place, table[place]
    table[place] = value
    return used + 1


@jit
def undo(table, trail, used, mark):
    while used > mark:
        used -= 1
        table[trail[used, 0]] = trail[used, 1]
    return mark


@jit
def merge(table, num_nodes, num_symbols, red, blue, trail, used, pairs):
    """Merges a tree into a state, and what both lead to by the same symbols.

    Returns:
        score: pairs of equal labels that came together, -1 where two labels differ. used: the length of the trail.
    """
    score, waiting = 0, 1
    pairs[0, 0], pairs[0, 1] = red, blue
    while waiting:
        waiting -= 1
        one, two = standing(table, pairs[waiting, 0]), standing(table, pairs[waiting, 1])
        if one == two:
            continue
        label, other = table[num_nodes + one], table[num_nodes + two]
        if other >= 0:
            if label < 0:
                used = write(table, num_nodes + one, other, trail, used)
            elif label != other:
                return -1, used
            else:
                score += 1
        used = write(table, two, one, trail, used)
        mine, others = 2 * num_nodes + one * num_symbols, 2 * num_nodes + two * num_symbols
        for symbol in range(num_symbols):
            if table[others + symbol] < 0:
                continue
            if table[mine + symbol] < 0:
                used = write(table, mine + symbol, table[others + symbol], trail, used)
            else:
                pairs[waiting, 0], pairs[waiting, 1] = table[mine + symbol], table[others + symbol]
                waiting += 1
    return score, used


@jit
def blue_states(table, num_nodes, num_symbols, red, num_red, place, blue):
    """Writes the blue states in the order of the red ones and the symbols; returns how many there are."""
    found = 0
    for number in range(num_red):
        for symbol in range(num_symbols):
            child = table[2 * num_nodes + red[number] * num_symbols + symbol]
            if child < 0:
                continue
            child = standing(table, child)
            if place[child] == -1:  # neither red nor listed
                place[child] = -2
                blue[found] = child
                found += 1
    for number in range(found):
        place[blue[number]] = -1
    return found


@jit
def write_automaton(table, num_nodes, num_symbols, red, num_red, place, moves, labels):
    """The automaton of red states; -1 where no string goes."""
    for number in range(num_red):
        labels[number] = table[num_nodes + red[number]]
        for symbol in range(num_symbols):
            child = table[2 * num_nodes + red[number] * num_symbols + symbol]
            moves[number, symbol] = -1 if child < 0 else place[standing(table, child)]


@jit(entry=True)
def greedy(table, num_nodes, num_symbols, most, by_evidence, trail, pairs, red, place, blue, moves, labels):
    """Blue-fringe merging by evidence (EDSM), or of the first pair that fits (RPNI's order).

    Args:
        most: states allowed. place: (N,) of -1, room. moves: (most, L) out. labels: (most,) out.

    Returns:
        The number of states, 0 where there would be more than allowed.
    """
    red[0], place[0], num_red = 0, 0, 1
    while True:
        num_blue = blue_states(table, num_nodes, num_symbols, red, num_red, place, blue)
        if not num_blue:
            break
        best, best_red, best_blue, promoted = -1, 0, 0, False
        for number in range(num_blue):
            fits = False
            for own in range(num_red):
                score, used = merge(table, num_nodes, num_symbols, red[own], blue[number], trail, 0, pairs)
                undo(table, trail, used, 0)
                fits = fits or score >= 0
                if score > best:
                    best, best_red, best_blue = score, red[own], blue[number]
                if fits and not by_evidence:
                    break
            if not fits:
                if num_red == most:
                    return 0
                red[num_red], place[blue[number]] = blue[number], num_red
                num_red += 1
                promoted = True
                break
            if not by_evidence:
                break
        if not promoted:
            merge(table, num_nodes, num_symbols, best_red, best_blue, trail, 0, pairs)
    write_automaton(table, num_nodes, num_symbols, red, num_red, place, moves, labels)
    return num_red


@jit
def is_reversible(table, num_nodes, num_symbols, red, num_red, place, seen):
    """Whether no symbol leads from two red states to the same one; seen: (num_red,) room."""
    for symbol in range(num_symbols):
        seen[:num_red] = False
        for number in range(num_red):
            child = table[2 * num_nodes + red[number] * num_symbols + symbol]
            if child < 0:
                continue
            to = place[standing(table, child)]
            if to >= 0:
                if seen[to]:
                    return False
                seen[to] = True
    return True


@jit(entry=True)
def search(
    table, num_nodes, num_symbols, limit, reversible, budget,
    trail, pairs, red, place, blue, chosen, option, mark, moves, labels,
):  # fmt: skip
    """All automata of at most so many states that give every string its label, by going back over merges.

    Of the blue states that with the fewest possible merges is decided first. Two differ in which prefixes share states.

    Args:
        limit: states. reversible: only those in which no symbol leads from two states to the same one.
        budget: changes of the table, about, made and undone.
        chosen, mark: (N,) room. option: (N, limit + 1) room.
        moves: (M, limit, L) out, labels: (M, limit) out: as many automata as there is room for.

    Returns:
        found: how many. whole: whether there are no others.
    """
    found, spent, depth, used, num_red = 0, 0, 0, 0, 1
    red[0], place[0] = 0, 0
    scores, options = np.empty(limit + 1, np.int64), np.empty(limit + 1, np.int64)
    seen = np.empty(limit, np.bool_)
    forward = True
    while True:
        if forward:
            num_blue = blue_states(table, num_nodes, num_symbols, red, num_red, place, blue)
            if not num_blue:
                if found == len(moves):
                    return found, False
                write_automaton(table, num_nodes, num_symbols, red, num_red, place, moves[found], labels[found])
                found += 1
                forward = False
            else:
                if spent > budget:
                    return found, False
                least = limit + 2
                for number in range(num_blue):
                    count = 0
                    for own in range(num_red):
                        score, end = merge(table, num_nodes, num_symbols, red[own], blue[number], trail, used, pairs)
                        spent += 1 + end - used
                        if reversible and score >= 0:
                            spent += num_red
                            if not is_reversible(table, num_nodes, num_symbols, red, num_red, place, seen):
                                score = -1
                        undo(table, trail, end, used)
                        if score >= 0:
                            place_of = count
                            while place_of and scores[place_of - 1] < score:
                                scores[place_of], options[place_of] = scores[place_of - 1], options[place_of - 1]
                                place_of -= 1
                            scores[place_of], options[place_of] = score, own
                            count += 1
                    total = count + (num_red < limit)
                    if total < least:
                        least = total
                        chosen[depth] = blue[number]
                        option[depth, 0] = 0
                        # the last to be tried stands first
                        if num_red < limit:
                            option[depth, 1] = -1
                            option[depth, 0] = 1
                        for k in range(count - 1, -1, -1):
                            option[depth, 0] += 1
                            option[depth, option[depth, 0]] = options[k]
                        if total == 0 or count == 0:
                            break
                mark[depth] = used
                depth += 1
        # the next option of the deepest decision that has one
        forward = False
        while depth and not forward:
            top = depth - 1
            if option[top, 0] >= limit + 2:  # promoted: take it back
                option[top, 0] -= limit + 2
                num_red -= 1
                place[chosen[top]] = -1
            used = undo(table, trail, used, mark[top])
            if option[top, 0] == 0:
                depth = top
                continue
            own = option[top, option[top, 0]]
            option[top, 0] -= 1
            if own < 0:
                red[num_red], place[chosen[top]] = chosen[top], num_red
                num_red += 1
                option[top, 0] += limit + 2
            else:
                _, used = merge(table, num_nodes, num_symbols, red[own], chosen[top], trail, used, pairs)
            forward = True
        if not forward:
            return found, True
