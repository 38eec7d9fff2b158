"""Streams that come piece by piece, as a pipe does into which somebody types."""

import io


class Slowly(io.RawIOBase):
    """Gives one piece a read, and notes when it was asked for it."""

    def __init__(self, pieces, events):
        self.pieces, self.events = list(pieces), events

    def readable(self):
        return True

    def readinto(self, place):
        if not self.pieces:
            return 0
        piece = self.pieces.pop(0)
        self.events.append(piece)
        place[: len(piece)] = piece
        return len(piece)


def slowly(pieces, events=None):
    return io.BufferedReader(Slowly(pieces, [] if events is None else events))
