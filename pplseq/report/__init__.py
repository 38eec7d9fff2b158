"""What a report about a run shows (`learning`, `usage`, `blocks`, `sentence`, `tokens`, `summary`) and how it is drawn
(`page`, `drawing`, `style`, `picture`); tagged sentences and scores of taggers (`tagging`, `tag_tables`,
`tagging_picture`); words of a stream coloured by what two models make of them (`personal`, `personal_picture`);
transitions as an input varies (`effects`). Names are imported on first use."""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
