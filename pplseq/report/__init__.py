"""What a report about a run shows (`learning`, `usage`, `blocks`, `sentence`, `tokens`, `summary`) and how it is drawn
(`page`, `drawing`, `style`, `picture`); tagged sentences and scores of taggers (`tagging`, `tag_tables`,
`tagging_picture`); words of a stream coloured by what two models make of them (`personal`, `personal_picture`);
transitions as an input varies (`effects`). Names are imported on first use."""

from pplseq._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Report": "summary",
        "summarise": "summary",
        "render_page": "page",
        "draw_picture": "picture",
        "SentenceView": "tagging",
        "render_tagging_page": "tagging",
        "draw_confusion": "tagging_picture",
        "draw_learning_curves": "tagging_picture",
        "plot_effects": "effects",
        "StreamView": "personal",
        "StreamTotals": "personal",
        "render_personal_page": "personal",
        "draw_personal_picture": "personal_picture",
    },
)
