"""A tokenizer for Hugging Face sources, without downloads."""


class Letters:
    """A tokenizer whose pieces are letters, a space before a word's first one."""

    bos_token_id, eos_token_id, all_special_ids = None, 0, [0]
    names = ["<|end|>", "\n", " a", " b", "a", "b"]

    def __len__(self):
        return len(self.names)

    def encode(self, text, add_special_tokens=False):
        if text == "\n":
            return [1]
        word = text[1:].replace("<unk>", "bbb")
        return [2 + "ab".index(word[0])] + [4 + "ab".index(letter) for letter in word[1:]]

    def convert_ids_to_tokens(self, ids):
        return [self.names[n] for n in ids]
