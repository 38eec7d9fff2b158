"""Numbers of the words that each of many users has seen: a hash table a user, so that memory does not grow with V."""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 16  # words of a bucket, which are looked at together
SPREAD = 0x9E3779B1  # an odd number near 2^32 over the golden ratio: neighbouring ids go to different buckets (Knuth, 6.4)


class SeenWords:
    """B tables from word ids to rows of numbers; the tables of all users are as large as the fullest needs.

    A word's bucket is given by its hash's last bits, and holds ``WIDTH`` words. Where one is full, all tables double, and one
    more bit decides between a bucket's two halves.

    Args:
        num_users: B. columns: numbers of a word, by name, e.g. {"cold": K_p}. like: a tensor of their type and device.

    Attributes:
        keys: (B, N) ids, -1 where free. columns: (B, N, ...) by name.

    Cost: a look-up compares ``WIDTH`` ids a user; memory: about twice the words that a user has seen.
    """

    def __init__(self, num_users: int, columns: dict[str, int], like: Tensor):
        self.keys = torch.full((num_users, WIDTH), -1, dtype=torch.long, device=like.device)
        self.columns = {name: like.new_zeros(num_users, WIDTH, size) for name, size in columns.items()}
        self._users = torch.arange(num_users, device=like.device)
        self._within = torch.arange(WIDTH, device=like.device)

    @property
    def num_buckets(self) -> int:
        return self.keys.shape[1] // WIDTH

    def _bucket(self, words: Tensor, num_buckets: int) -> Tensor:
        mixed = (words * SPREAD) & 0xFFFFFFFF  # below 2^63 for ids below 2^31
        return (mixed ^ (mixed >> 15)) % num_buckets

    def _places(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """(B, WIDTH) places of the words' buckets, and the ids there."""
        places = self._bucket(words, self.num_buckets)[:, None] * WIDTH + self._within
        return places, self.keys[self._users[:, None], places]

    def get(self, words: Tensor, names: list[str]) -> list[Tensor]:
        """(B, ...) each, of one word of every user; zeros where it was not seen."""
        places, keys = self._places(words)
        found, at = (keys == words[:, None]).max(1)
        place = places[self._users, at]
        return [torch.where(found[:, None], self.columns[name][self._users, place], 0.0) for name in names]

    def add(self, words: Tensor, values: dict[str, Tensor], wanted: Tensor) -> None:
        """Adds (B, ...) numbers to one word of every user in a mask (B,)."""
        while True:
            places, keys = self._places(words)
            same, free = keys == words[:, None], keys == -1
            at = torch.where(same.any(1), same.to(torch.uint8).argmax(1), free.to(torch.uint8).argmax(1))
            if not bool((wanted & ~same.any(1) & ~free.any(1)).any()):
                break
            self._double()
        place = places[self._users, at]
        self.keys[self._users, place] = torch.where(wanted, words, self.keys[self._users, place])
        for name, value in values.items():
            self.columns[name][self._users, place] += torch.where(wanted[:, None], value, 0.0)

    def _double(self) -> None:
        num = self.num_buckets
        second = (self._bucket(self.keys, 2 * num) >= num) & (self.keys >= 0)
        first = (self.keys >= 0) & ~second
        self.keys = torch.cat([torch.where(part, self.keys, -1) for part in (first, second)], 1)
        self.columns = {
            name: torch.cat([torch.where(part[..., None], value, 0.0) for part in (first, second)], 1)
            for name, value in self.columns.items()
        }

    def user(self, index: int) -> dict[str, Tensor]:
        """One user's words, under "words", and their numbers, in the order of their ids."""
        keys = self.keys[index]
        order = torch.argsort(keys)[int((keys < 0).sum()) :]
        return {"words": keys[order]} | {name: value[index, order] for name, value in self.columns.items()}
