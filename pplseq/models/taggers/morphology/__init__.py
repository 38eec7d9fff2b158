"""Tags of several columns and lemmas: parts of speech, features and dictionary forms from one model."""
